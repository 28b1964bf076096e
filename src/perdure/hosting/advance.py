"""Advance one run on a host: build its workflow, drive it until it is idle, release it, and classify its errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.checkpoint import event_batch
from perdure.clock import Clock, now
from perdure.codec import MALFORMED, Codec, Trust
from perdure.engine import (
    Call,
    failure_of,
    is_of_another_program,
    lock_run,
    log_run,
    run_failed,
    status_of,
    take_over_events,
)
from perdure.errors import (
    CheckpointWriteError,
    IncompatibleGraphError,
    IncompatibleTypeError,
    LeaseLostError,
    MissingRunKwargsError,
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
from perdure.events import WorkflowErrorDetails
from perdure.graph import Executor, FunctionExecutor, Graph, no_exit, sharing
from perdure.hosting.embedded import first_of
from perdure.hosting.scheduler import AdvanceResult, Dispatch
from perdure.metrics import measure
from perdure.records import Halt, Lease, RunRecord
from perdure.storage import HostStore, StoreStorage, knows_hosts, this_process
from perdure.workflows import Workflow, WorkflowExecutor

if TYPE_CHECKING:
    from perdure.events import WorkflowEvent


async def quarantine(store: HostStore, clock: Clock, record: RunRecord, token: int | None = None) -> Lease | None:
    """Quarantine a run that killed too many processes. Return its lease if it has made progress since."""
    run_id, last = record.run_id, record.owner
    async with lock_run(store.place, run_id):
        lease = await store.acquire(run_id, token=token)
        if lease.attempts <= record.attempts:
            return lease
        reason = (
            f"the last {record.attempts} processes that advanced it died without progress, "
            f"most recently {last or 'unknown'}"
        )
        events = event_batch(take_over_events(lease), Codec(Trust.of()))
        await store.release(lease, halt=Halt("parked", now(clock), reason, events=events))
        return None


async def fail(store: HostStore, clock: Clock, run_id: str, error: Exception, *, has_opened: bool) -> bool:
    """Record that a run has failed. Return False if the error is not the run's own.

    The engine has recorded the failure already, unless the run could not be opened. If this process opened the run and
    no longer owns it, another process has taken it over: then nothing is recorded here.
    """
    record = await store.run(run_id)
    if record is None or record.halt is not None:
        return True
    halt = failure_of(error, clock)
    is_ours = record.owner is not None and record.owner.id == this_process().id
    if halt is None or (has_opened and not is_ours):
        return False
    async with lock_run(store.place, run_id):
        lease = await store.acquire(run_id)
        await store.release(lease, halt=halt)
    run_failed(run_id, record.workflow_name, error, halt)
    return True


async def end_halt(store: HostStore, run_id: str) -> None:
    """Let a failed or quarantined run continue. Raises RunNotFoundError, RunExportedError."""
    # A process that holds the lease has ended the halt already.
    with suppress(RunBusyError):
        async with lock_run(store.place, run_id):
            lease = await store.acquire(run_id)
            await store.release(lease)


logger = logging.getLogger(__name__)

_OWNED_BY_OTHERS = (RunBusyError, LeaseLostError, StaleHeadError)
_GONE = (RunNotFoundError, RunExportedError, RunFailedError, RunParkedError)
_NOT_ADVANCED = frozenset({"cancelled", "failed", "parked", "exported"})
_NOT_LOADABLE = (IncompatibleGraphError, IncompatibleTypeError, UntrustedTypeError, MissingRunKwargsError)
_REASON_LENGTH_MAX = 500


@dataclass(eq=False)
class Advancer:
    """Advance runs and track the active ones.

    `active` has the tasks that advance runs, by run. `is_draining` is True once runs must stop at their next superstep
    boundary.
    """

    host_id: str
    storage: StoreStorage
    store: HostStore
    catalog: Catalog
    max_attempts: int
    on_event: Callable[[str, WorkflowEvent[Any]], object] | None
    active: dict[str, asyncio.Task[Any]] = field(default_factory=dict[str, "asyncio.Task[Any]"])
    _stopped: set[str] = field(default_factory=set[str])
    is_draining: bool = False

    async def advance(self, dispatch: Dispatch) -> AdvanceResult:
        """Advance a run until nothing is left to do, or until the host drains."""
        run_id = dispatch.run_id
        if self.is_draining or run_id in self._stopped or run_id in self.active:
            return AdvanceResult(None, tries_again=True)
        task = asyncio.current_task()
        assert task is not None, "a run is advanced by a task"
        self.active[run_id] = task
        try:
            with sharing():
                return await self._advance(dispatch)
        except _OWNED_BY_OTHERS as error:
            logger.info("run %r belongs to another process: %s", run_id, error)
            return AdvanceResult(None, tries_again=True)
        except _GONE as error:
            logger.info("run %r can't be advanced: %s", run_id, error)
            return AdvanceResult(None)
        except Exception:
            logger.exception("run %r could not be advanced", run_id)
            return AdvanceResult(None, tries_again=True)
        finally:
            del self.active[run_id]

    async def _advance(self, dispatch: Dispatch) -> AdvanceResult:
        run_id = dispatch.run_id
        record = await self.store.run(run_id)
        if record is None:
            raise RunNotFoundError(run_id)
        if record.run_status in _NOT_ADVANCED:
            # Commands in its inbox wait until somebody recovers the run.
            return AdvanceResult(record.run_status)
        try:
            with no_exit():
                attempt = _Attempt(self.catalog.build(record.workflow_name))
        except Exception as error:
            logger.exception("workflow %r of run %r could not be built", record.workflow_name, run_id)
            await self._note_block(record, error)
            return AdvanceResult(None, tries_again=True)
        lease: Lease | None = None
        if record.attempts >= self.max_attempts:
            lease = await quarantine(self.store, self.storage.clock, record, dispatch.token)
            if lease is None:
                measure("perdure.run.ended", workflow=record.workflow_name, status="quarantined")
                text, attempts = "was quarantined after %d attempts", record.attempts
                log_run(logging.ERROR, text, attempts, run_id=run_id, workflow=record.workflow_name)
                return AdvanceResult("quarantined")
        try:
            with no_exit():
                await self._drive(attempt, dispatch, lease)
        except Exception as error:  # noqa: BLE001 - sorted there, and raised again if it is nobody's fault
            return await self._failed(attempt, record, error)
        finally:
            if lease is not None and not attempt.has_opened:
                await self.store.release(lease, halt=lease.halt)
        return attempt.state()

    async def _drive(self, attempt: _Attempt, dispatch: Dispatch, lease: Lease | None) -> None:
        call = Call(
            run_id=dispatch.run_id,
            storage=self.storage,
            skip_past_events=True,
            is_hosted=True,
            waits=False,
            streaming=True,
            token=dispatch.token,
            lease=lease,
        )
        stream = attempt.workflow.stream(call)
        try:
            async for event in stream:
                self._emit(dispatch.run_id, event)
                attempt.note(event)
                if self.is_draining and not attempt.is_inside:
                    return
        finally:
            await stream.aclose()

    def _emit(self, run_id: str, event: WorkflowEvent[Any]) -> None:
        if self.on_event is None:
            return
        try:
            self.on_event(run_id, event)
        except Exception:
            logger.exception("on_event failed for an event of run %r", run_id)

    async def _failed(self, attempt: _Attempt, record: RunRecord, error: Exception) -> AdvanceResult:
        """Decide what an error means for the run."""
        run_id = record.run_id
        if isinstance(error, (*_OWNED_BY_OTHERS, *_GONE)):
            raise error
        if _is_store_failure(error, has_opened=attempt.has_opened):
            logger.warning("run %r waits for its store, which failed: %s", run_id, error)
            return AdvanceResult(None, has_changed=attempt.has_changed, tries_again=True)
        if attempt.is_unreadable(error):
            logger.warning("run %r can't be loaded by this host: %s", run_id, error)
            await self._note_block(record, error)
            return AdvanceResult(None, has_changed=attempt.has_changed)
        if await fail(self.store, self.storage.clock, run_id, error, has_opened=attempt.has_opened):
            return AdvanceResult("failed", has_changed=attempt.has_changed)
        return AdvanceResult(None, has_changed=attempt.has_changed, tries_again=True)

    async def _note_block(self, record: RunRecord, error: Exception) -> None:
        """Note in the store why this host can't load a run."""
        if knows_hosts(self.store) and record.head is not None:
            details = WorkflowErrorDetails.from_exception(error)
            reason = " ".join(f"{details.error_type}: {details.message}".split())[:_REASON_LENGTH_MAX]
            await self.store.note_block(self.host_id, record.run_id, head=record.head, reason=reason)

    @asynccontextmanager
    async def stopped(self, run_id: str) -> AsyncGenerator[None]:
        """Stop a run on this host, and do not start it again inside the block."""
        self._stopped.add(run_id)
        try:
            await self._stop([self.active[run_id]] if run_id in self.active else [])
            yield
        finally:
            self._stopped.discard(run_id)

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Let runs stop at their next boundary. Cancel the rest after `seconds`, or as soon as `hurry` is set."""
        self.is_draining = True
        try:
            tasks = list(self.active.values())
            if tasks and seconds > 0:
                await first_of(asyncio.wait(tasks), self.storage.clock.sleep(seconds), hurry.wait())
        finally:
            await self._stop(list(self.active.values()))

    @staticmethod
    async def _stop(tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _is_store_failure(error: Exception, *, has_opened: bool) -> bool:
    """Return True if the store is at fault, not the run.

    Before a run is opened none of its code runs, so every error comes from the store, except for refusals and
    malformed data.
    """
    if isinstance(error, CheckpointWriteError) or type(error) is WorkflowCheckpointException:
        return True
    return not has_opened and not isinstance(error, (WorkflowException, *MALFORMED))


@dataclass(slots=True)
class _Attempt:
    """One attempt to advance a run, and its progress. `is_inside` is True inside a superstep, False between two."""

    workflow: Workflow
    is_inside: bool = False
    has_changed: bool = False

    def note(self, event: WorkflowEvent[Any]) -> None:
        """Track progress by the emitted events."""
        if event.type in {"superstep_started", "checkpoint", "superstep_completed"}:
            self.is_inside = event.type == "superstep_started"
            self.has_changed |= event.type == "checkpoint"

    @property
    def has_opened(self) -> bool:
        """True once the run was found and read."""
        return self.workflow.loaded_run is not None

    def is_unreadable(self, error: Exception) -> bool:
        """Return True if this program can't load the run: another version wrote it, or it lacks secret kwargs."""
        loaded_run = self.workflow.loaded_run
        if loaded_run is None:
            return isinstance(error, _NOT_LOADABLE)
        return isinstance(error, MissingRunKwargsError) or is_of_another_program(error, loaded_run.read_from)

    def state(self) -> AdvanceResult:
        """Return the state in which this attempt leaves the run."""
        loaded_run = self.workflow.loaded_run
        if loaded_run is None:
            return AdvanceResult(None, tries_again=True)
        wake_at = loaded_run.snapshot.wake_at
        moment = None if wake_at is None else datetime.fromisoformat(wake_at)
        # Uncommitted progress is lost with this attempt, so the run is tried again.
        return AdvanceResult(
            status_of(loaded_run.snapshot), moment, has_changed=self.has_changed, tries_again=loaded_run.is_ahead
        )


Factory: TypeAlias = Callable[[], Workflow]


class Catalog:
    """Workflow factories by name. The workflows they build use the host's clock."""

    def __init__(self, storage: StoreStorage) -> None:
        self._storage = storage
        self._factories: dict[str, Factory] = {}
        self.versions: dict[str, int] = {}
        """The versions of the registered workflows, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The registered names."""
        return tuple(self._factories)

    def add(self, factory: Factory, *, name: str | None) -> None:
        """Register a factory after building its workflow twice to check it.

        Raises TypeError if it builds no workflow, ValueError if its workflows share executors, the name is taken, or
        the workflow has another clock than the storage.
        """
        if not callable(factory):
            raise TypeError(f"a factory must be a function that builds a workflow, not {factory!r}")
        first, second = self._build(factory, name), self._build(factory, name)
        if first.name in self._factories:
            raise ValueError(f"workflow {first.name!r} is already registered; register this one with another name")
        _require_no_shared_executors(first, second)
        # From now on the storage can decode the types this workflow trusts.
        first.blueprint.bound(self._storage)
        self._factories[first.name] = factory
        self.versions[first.name] = first.graph.rules.version

    def build(self, name: str) -> Workflow:
        """Build a workflow with executors of its own. Raises UnknownWorkflowError."""
        factory = self._factories.get(name)
        if factory is None:
            raise UnknownWorkflowError(name, known=self.names)
        return self._build(factory, name)

    def _build(self, factory: Factory, name: str | None) -> Workflow:
        made = factory()
        if not isinstance(made, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance] - users may not check
            raise TypeError(
                f"{factory!r} returned a {type(made).__name__}, not a Workflow; return WorkflowBuilder(...).build()"
            )
        clock = made.blueprint_on(self._storage).clock
        return _with_own_executors(replace(made.graph, name=name or made.name), clock)


def _with_own_executors(graph: Graph, clock: Clock) -> Workflow:
    """Build a workflow whose stateless executors are copies, because modules may share them."""
    executors = {executor_id: _copy(executor, clock) for executor_id, executor in graph.executors.items()}
    return Workflow(replace(graph, executors=executors), checkpoint_storage=None, clock=clock)


def _copy(executor: Executor, clock: Clock) -> Executor:
    """Copy a function executor, or a sub-workflow of such. Return any other executor unchanged."""
    if type(executor) is FunctionExecutor:
        return executor.clone(deep=False)
    if type(executor) is WorkflowExecutor:
        copy = executor.clone(deep=False)
        assert isinstance(copy, WorkflowExecutor), "a copy is of the same class"
        copy.workflow = _with_own_executors(executor.workflow.graph, clock)
        return copy
    return executor


def _require_no_shared_executors(first: Workflow, second: Workflow) -> None:
    known = {id(executor) for executor in first.blueprint.executors()}
    for executor in second.blueprint.executors():
        if id(executor) in known:
            raise ValueError(
                f"the factory of workflow {first.name!r} returns the same executor {executor.id!r} each time, so two "
                "runs would share its state; build the workflow and its executors inside the factory"
            )
