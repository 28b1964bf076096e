"""One run advanced on a host: built, driven until it rests, given free. Whose fault an error is, is decided here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.engine import PRESENCE, Call, failure_of, is_of_another_program, status_of
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
    UnknownWorkflowError,
    UntrustedTypeError,
    WorkflowCheckpointException,
    WorkflowException,
)
from perdure.graph import FunctionExecutor, no_exit, sharing
from perdure.hosting.embedded import first_of
from perdure.hosting.scheduler import Rest
from perdure.moments import now
from perdure.records import Halt
from perdure.storage import this_process
from perdure.workflows import Workflow, WorkflowExecutor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from perdure.clock import Clock
    from perdure.events import WorkflowEvent
    from perdure.graph import Executor, Graph
    from perdure.hosting.scheduler import Dispatch
    from perdure.records import Claim, RunRecord
    from perdure.storage import HostStore, StoreStorage


async def park(store: HostStore, clock: Clock, record: RunRecord, token: int | None = None) -> Claim | None:
    """Park a run that has ended too many processes; if somebody has got on with it meanwhile, the claim that stands."""
    run_id, last = record.run_id, record.owner
    async with PRESENCE.at(store.place, run_id):
        claim = await store.claim(run_id, token=token)
        if claim.attempts <= record.attempts:
            return claim
        reason = (
            f"the last {record.attempts} processes that advanced it ended without getting on; "
            f"the last was {last or 'not seen'}"
        )
        await store.release(claim, halt=Halt("parked", now(clock), reason))
        return None


async def fail(store: HostStore, clock: Clock, run_id: str, error: Exception, *, has_opened: bool) -> bool:
    """See to it that a run is known to have failed; False if the error is none of its own.

    Whoever drove it has said so already, unless it could not be opened. If it was opened here and is not this
    process's any more, somebody has taken it over: then it is not for the one who was replaced to say how it stands.
    """
    record = await store.run(run_id)
    if record is None or record.halt is not None:
        return True
    halt = failure_of(error, clock)
    is_ours = record.owner is not None and record.owner.id == this_process().id
    if halt is None or (has_opened and not is_ours):
        return False
    async with PRESENCE.at(store.place, run_id):
        claim = await store.claim(run_id)
        await store.release(claim, halt=halt)
    return True


async def end_halt(store: HostStore, run_id: str) -> None:
    """Let a run go on that has failed or was parked. Raises RunNotFoundError, RunExportedError."""
    # Somebody who has taken the run has ended the halt by that.
    with suppress(RunBusyError):
        async with PRESENCE.at(store.place, run_id):
            claim = await store.claim(run_id)
            await store.release(claim)


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


Factory: TypeAlias = Callable[[], Workflow]


class Catalog:
    """Factories by the names of their workflows. What they build goes by the clock of the host."""

    def __init__(self, storage: object, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._factories: dict[str, Factory] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are known."""
        return tuple(self._factories)

    def add(self, factory: Factory, *, name: str | None) -> None:
        """Take up a factory, after a look at what it builds.

        Raises TypeError for what is no factory of workflows, ValueError for one that builds shared executors, and for a
        name that is taken.
        """
        if not callable(factory):
            raise TypeError(f"a factory is called to build a workflow, {factory!r} can't be; give a function")
        first, second = self._built(factory, name), self._built(factory, name)
        if first.name in self._factories:
            raise ValueError(f"there is a workflow {first.name!r} already; give this one another name")
        _require_apart(first, second)
        # From now on the storage reads what this workflow trusts.
        first.blueprint.bound(self._storage)
        self._factories[first.name] = factory

    def build(self, name: str) -> Workflow:
        """A workflow of a name, with executors of its own. Raises UnknownWorkflowError."""
        factory = self._factories.get(name)
        if factory is None:
            raise UnknownWorkflowError(name, known=self.names)
        return self._built(factory, name)

    def _built(self, factory: Factory, name: str | None) -> Workflow:
        made = factory()
        if not isinstance(made, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance] - users may not check
            raise TypeError(
                f"{factory!r} gave a {type(made).__name__}, not a Workflow; let it return WorkflowBuilder(...).build()"
            )
        return _of_its_own(replace(made.graph, name=name or made.name), self._clock)


def _of_its_own(graph: Graph, clock: Clock) -> Workflow:
    """A workflow of these executors, where those that keep nothing have become copies: modules may share them."""
    executors = {executor_id: _own(executor, clock) for executor_id, executor in graph.executors.items()}
    return Workflow(replace(graph, executors=executors), checkpoint_storage=None, clock=clock)


def _own(executor: Executor, clock: Clock) -> Executor:
    """A copy of one that is but a function, or a workflow of such; any other as it is."""
    if type(executor) is FunctionExecutor:
        return executor.clone(deep=False)
    if type(executor) is WorkflowExecutor:
        copy = executor.clone(deep=False)
        assert isinstance(copy, WorkflowExecutor), "a copy is of the same class"
        copy.workflow = _of_its_own(executor.workflow.graph, clock)
        return copy
    return executor


def _require_apart(first: Workflow, second: Workflow) -> None:
    known = {id(executor) for executor in first.blueprint.executors()}
    for executor in second.blueprint.executors():
        if id(executor) in known:
            raise ValueError(
                f"the factory of workflow {first.name!r} gives the same executor {executor.id!r} each time, so two "
                "runs would share its state; build the workflow and its executors inside of the factory"
            )
