"""One run advanced on a host: built, driven until it rests, given free. Whose fault an error is, is decided here."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from perdure.engine import Call, is_of_another_program, status_of
from perdure.errors import (
    CheckpointWriteError,
    ClaimLostError,
    IncompatibleGraphError,
    IncompatibleTypeError,
    RunBusyError,
    RunExportedError,
    RunFailedError,
    RunNotFoundError,
    RunParkedError,
    StaleHeadError,
    UntrustedTypeError,
    WorkflowCheckpointException,
    WorkflowException,
)
from perdure.graph import no_exit, sharing
from perdure.hosting.halting import fail, park
from perdure.hosting.scheduler import Rest
from perdure.hosting.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from perdure.clock import Clock
    from perdure.events import WorkflowEvent
    from perdure.hosting.catalog import Catalog
    from perdure.hosting.scheduler import Dispatch
    from perdure.records import Claim, RunRecord
    from perdure.storage import HostStore, StoreStorage
    from perdure.workflows import Workflow

logger = logging.getLogger(__name__)

_ANOTHERS = (RunBusyError, ClaimLostError, StaleHeadError)
_GONE = (RunNotFoundError, RunExportedError, RunFailedError, RunParkedError)
_LEFT_ALONE = frozenset({"cancelled", "failed", "parked", "exported"})
_OF_ANOTHER_PROGRAM = (IncompatibleGraphError, IncompatibleTypeError, UntrustedTypeError)


class Advancer:
    """Advances runs, and knows which are under way."""

    def __init__(
        self,
        *,
        storage: StoreStorage,
        store: HostStore,
        catalog: Catalog,
        clock: Clock,
        max_attempts: int,
        on_event: Callable[[str, WorkflowEvent[Any]], object] | None,
    ) -> None:
        self._storage = storage
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self._max_attempts = max_attempts
        self._on_event = on_event
        self._lives: dict[str, asyncio.Task[Any]] = {}
        self._barred: set[str] = set()
        self.is_draining = False
        """Whether runs stop at their next boundary."""

    @property
    def count(self) -> int:
        """How many runs are under way."""
        return len(self._lives)

    async def advance(self, dispatch: Dispatch) -> Rest:
        """Advance a run until it rests, or until the host wants it to stop."""
        run_id = dispatch.run_id
        if self.is_draining or run_id in self._barred or run_id in self._lives:
            return Rest(None, tries_again=True)
        with self._living(run_id), sharing():
            try:
                return await self._advance(dispatch)
            except _ANOTHERS as error:
                logger.info("run %r is left to others: %s", run_id, error)
                return Rest(None, tries_again=True)
            except _GONE as error:
                logger.info("run %r is not here any more: %s", run_id, error)
                return Rest(None)
            except Exception:
                logger.exception("run %r could not be advanced", run_id)
                return Rest(None, tries_again=True)

    @contextmanager
    def _living(self, run_id: str) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None, "a run is advanced by a task"
        self._lives[run_id] = task
        try:
            yield
        finally:
            del self._lives[run_id]

    async def _advance(self, dispatch: Dispatch) -> Rest:
        run_id = dispatch.run_id
        record = await self._store.run(run_id)
        if record is None:
            raise RunNotFoundError(run_id)
        if record.standing in _LEFT_ALONE:
            # What waits for it waits until somebody wants it to go on.
            return Rest(record.standing)
        try:
            with no_exit():
                life = _Life(self._catalog.build(record.workflow_name))
        except Exception:
            logger.exception("workflow %r of run %r could not be built", record.workflow_name, run_id)
            return Rest(None, tries_again=True)
        claim: Claim | None = None
        if record.attempts >= self._max_attempts:
            claim = await park(self._store, self._clock, record, dispatch.token)
            if claim is None:
                logger.error("run %r was parked after %d attempts", run_id, record.attempts)
                return Rest("parked")
        return await self._lived(life, dispatch, record, claim)

    async def _lived(self, life: _Life, dispatch: Dispatch, record: RunRecord, claim: Claim | None) -> Rest:
        """Let a run live. One that is claimed already goes on under that very claim: its token is used up."""
        try:
            with no_exit():
                await self._drive(life, dispatch, claim)
        except Exception as error:  # noqa: BLE001 - sorted there, and raised again if it is nobody's fault
            return await self._failed(life, record, error)
        finally:
            if claim is not None and not life.has_opened:
                await self._store.release(claim, halt=claim.halt)
        return life.rest()

    async def _drive(self, life: _Life, dispatch: Dispatch, claim: Claim | None) -> None:
        call = Call(
            run_id=dispatch.run_id,
            storage=self._storage,
            only_goes_on=True,
            is_unasked=True,
            waits=False,
            streaming=True,
            token=dispatch.token,
            claim=claim,
        )
        stream = life.workflow.stream(call)
        try:
            async for event in stream:
                self._tell(dispatch.run_id, event)
                life.note(event)
                if self.is_draining and not life.is_inside:
                    return
        finally:
            await stream.aclose()

    def _tell(self, run_id: str, event: WorkflowEvent[Any]) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(run_id, event)
        except Exception:
            logger.exception("on_event failed for an event of run %r", run_id)

    async def _failed(self, life: _Life, record: RunRecord, error: Exception) -> Rest:
        """Decide what an error means for the run."""
        run_id = record.run_id
        if isinstance(error, (*_ANOTHERS, *_GONE)):
            raise error
        if _is_trouble_of_the_store(error, has_opened=life.has_opened):
            logger.warning("run %r can't go on while its store is in trouble: %s", run_id, error)
            return Rest(None, has_changed=life.has_changed, tries_again=True)
        if life.can_not_read(error):
            logger.warning("run %r is left alone, another version of the program has written it: %s", run_id, error)
            return Rest(None, has_changed=life.has_changed)
        logger.warning("run %r has failed: %s: %s", run_id, type(error).__name__, error)
        if await fail(self._store, self._clock, run_id, error, has_opened=life.has_opened):
            return Rest("failed", has_changed=life.has_changed)
        return Rest(None, has_changed=life.has_changed, tries_again=True)

    @asynccontextmanager
    async def barred(self, run_id: str) -> AsyncGenerator[None]:
        """Have a run at rest here, as far as this host is concerned: it is stopped, and not begun with."""
        self._barred.add(run_id)
        try:
            await self._stop([self._lives[run_id]] if run_id in self._lives else [])
            yield
        finally:
            self._barred.discard(run_id)

    async def drained(self, seconds: float, hurry: asyncio.Event) -> None:
        """Let the runs stop at their next boundary, and stop those that have not after a time, or when it must be."""
        self.is_draining = True
        try:
            lives = list(self._lives.values())
            if lives and seconds > 0:
                await first_of(asyncio.wait(lives), self._clock.sleep(seconds), hurry.wait())
        finally:
            await self._stop(list(self._lives.values()))

    @staticmethod
    async def _stop(tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _is_trouble_of_the_store(error: Exception, *, has_opened: bool) -> bool:
    """Whether the run is not at fault. Until it is opened nothing of it is called, so what is no refusal is trouble."""
    if isinstance(error, CheckpointWriteError) or type(error) is WorkflowCheckpointException:
        return True
    return not has_opened and not isinstance(error, WorkflowException)


class _Life:
    """One life of a run: how far it has got."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.is_inside = False
        """Whether it is inside of a superstep, and not between two."""
        self.has_changed = False

    def note(self, event: WorkflowEvent[Any]) -> None:
        """Follow what is told."""
        match event.type:
            case "superstep_started":
                self.is_inside = True
            case "checkpoint":
                self.is_inside, self.has_changed = False, True
            case "superstep_completed":
                self.is_inside = False
            case _:
                pass

    @property
    def has_opened(self) -> bool:
        """Whether the run was found and read."""
        return self.workflow.tenure is not None

    def can_not_read(self, error: Exception) -> bool:
        """Whether the error says that this program is not the one that has written the run."""
        tenure = self.workflow.tenure
        if tenure is None:
            return isinstance(error, _OF_ANOTHER_PROGRAM)
        return is_of_another_program(error, tenure.read_from)

    def rest(self) -> Rest:
        """Where it has left the run."""
        tenure = self.workflow.tenure
        if tenure is None:
            return Rest(None, tries_again=True)
        wake_at = tenure.snapshot.wake_at
        moment = None if wake_at is None else datetime.fromisoformat(wake_at)
        # What a workflow goes on without having committed it is only known to a life that has ended now.
        return Rest(status_of(tenure.snapshot), moment, has_changed=self.has_changed, tries_again=tenure.is_ahead)
