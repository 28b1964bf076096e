"""Run many workflows in one process. Any number of hosts may share a store."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Self, overload

from typing_extensions import Unpack

from perdure.checkpoint import check_budget
from perdure.clock import SystemClock, moment_of, now
from perdure.engine import Call, InvocationKwargs, fork, input_digest, lock_run, resolve_kwargs, storable_kwargs
from perdure.errors import LeaseLostError, RunBusyError, RunExistsError, StaleHeadError, WorkflowCheckpointException
from perdure.graph import WorkflowMessage
from perdure.hosting.advance import Advancer, Catalog, Factory, end_halt
from perdure.hosting.embedded import EmbeddedScheduler, first_of, pause_seconds
from perdure.hosting.run import NO_MARK, HostedRun, RunInfo, record_of
from perdure.storage import (
    FileCheckpointStorage,
    HostInfo,
    HostListStore,
    HostStore,
    Order,
    PendingRequest,
    RunFilter,
    StoreStorage,
    is_host_store,
    knows_hosts,
    open_storage,
    tags_text,
)
from perdure.workflows import Edit, Workflow, apply_edit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
    from datetime import datetime

    from perdure.events import WorkflowEvent
    from perdure.hosting.scheduler import Scheduler
    from perdure.kernel import Snapshot
    from perdure.records import RunStatus

# Wait this long for another process that is starting the same run. If that process dies, the store does not notify.
_BUSY_SECONDS = 0.5

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_termination_signal(ask: Callable[[], None]) -> Generator[None]:
    """Call `ask` on SIGTERM and SIGINT instead of their default action.

    Only the main thread receives signals; elsewhere nothing changes.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _ENDING}
    caught: list[signal.Signals] = []
    try:
        for number in _ENDING:
            try:
                loop.add_signal_handler(number, ask)
            except (ValueError, RuntimeError, NotImplementedError):
                break
            caught.append(number)
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
            if before[number] is not None:
                signal.signal(number, before[number])


logger = logging.getLogger(__name__)

_EVERY = 1_000_000

# Checks of the registration and of the last collection have this distance.
_UPKEEP_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class HostHealth:
    """The state of a host, for endpoints that report liveness and readiness.

    Attributes:
        is_serving: The host advances runs.
        is_draining: The host takes no more runs and stops those that it advances.
        is_store_reachable: The newest look for due runs succeeded, and none takes long.
        looked_at: The time of the newest successful look.
        running: The number of runs being advanced now.
        queue_depth: The number of due runs that waited at the newest look, which sees about `max_runs` of them.

    The three values about looks are None if the host has another scheduler than the embedded one.
    """

    is_serving: bool
    is_draining: bool
    is_store_reachable: bool | None
    looked_at: datetime | None
    running: int
    queue_depth: int | None


class Host:
    """Start runs, advance them, and take over runs of dead processes.

    A serving host advances every run of its registered workflows that has work to do and no living owner. A run that
    waits for a person, for time, or has finished exists in the store alone.

    Args:
        storage: A storage that ships with perdure, or its URL. Runs use its clock.
        scheduler: Decides when a run is advanced, instead of the embedded scheduler. `max_runs` is ignored then.
        max_runs: The number of runs that are advanced at once.
        max_attempts: A run is quarantined after this many processes in a row died while advancing it.
        drain_seconds: When the host drains, runs have this long to stop at the end of a superstep.
        blocked_seconds: `result` of a run raises RunBlockedError when no living host could load the run for this long.
            With None it waits for such a host.
        collect_every: How often one of the hosts of a store removes unused data: `storage.collect()`. None for never.
        on_event: Called with the run id and each live event.
    """

    def __init__(
        self,
        storage: StoreStorage | str,
        *,
        scheduler: Scheduler | None = None,
        max_runs: int = 100,
        max_attempts: int = 5,
        drain_seconds: float = 30.0,
        blocked_seconds: float | None = 30.0,
        collect_every: timedelta | None = timedelta(hours=1),
        on_event: Callable[[str, WorkflowEvent[Any]], object] | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {max_attempts}")
        if collect_every is not None and collect_every <= timedelta():
            raise ValueError(f"collect_every must be a positive time, not {collect_every}; use None for never")
        self.storage = open_storage(storage) if isinstance(storage, str) else storage
        self._store = _host_store(self.storage)
        self._clock = self.storage.clock
        # Any clock of runs may be a test's, but hosts of several processes need different ids.
        self.host_id = SystemClock().new_id()
        self.blocked_seconds = blocked_seconds
        self._drain_seconds = drain_seconds
        self._collect_every = collect_every
        self._catalog = Catalog(self.storage)
        self._advancer = Advancer(self.host_id, self.storage, self._store, self._catalog, max_attempts, on_event)
        self._scheduler = scheduler or EmbeddedScheduler(self._store, self._clock, max_runs=max_runs)
        self._serving: asyncio.Task[None] | None = None
        self._has_registered = asyncio.Event()
        self._is_draining = False

    @property
    def is_serving(self) -> bool:
        """True while this host advances runs."""
        return self._serving is not None and not self._serving.done()

    @property
    def running(self) -> int:
        """The number of runs being advanced now."""
        return len(self._advancer.active)

    def health(self) -> HostHealth:
        """Return the state of this host, without asking the store."""
        scheduler = self._scheduler if isinstance(self._scheduler, EmbeddedScheduler) else None
        return HostHealth(
            self.is_serving,
            self._is_draining,
            None if scheduler is None else scheduler.is_store_reachable,
            None if scheduler is None else scheduler.looked_at,
            self.running,
            None if scheduler is None else scheduler.queue_depth,
        )

    @property
    def workflow_names(self) -> tuple[str, ...]:
        """The names of the registered workflows."""
        return self._catalog.names

    @overload
    def register(self, factory: Factory, name: str | None = None) -> Factory: ...
    @overload
    def register(self, factory: None = None, name: str | None = None) -> Callable[[Factory], Factory]: ...
    def register(
        self, factory: Factory | None = None, name: str | None = None
    ) -> Factory | Callable[[Factory], Factory]:
        """Register a function that builds a workflow. Also a decorator.

        The function is called for each attempt to advance a run, so that runs never share executors, and twice at once
        to check its workflow. `name` replaces the workflow's own name.

        Raises TypeError if it builds no workflow, ValueError if its workflows share executors or the name is taken.
        """
        if factory is None:
            return lambda given: self.register(given, name)
        if self.is_serving:
            raise RuntimeError("this host is serving: register workflows before it serves")
        self._catalog.add(factory, name=name)
        return factory

    async def start(
        self,
        workflow_name: str,
        message: Any,
        *,
        run_id: str | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        function_invocation_kwargs: InvocationKwargs | None = None,
        client_kwargs: InvocationKwargs | None = None,
    ) -> HostedRun:
        """Start a run. It is durable when this returns; any serving host advances it.

        The same `run_id` with the same message is the same run, finished or not. Kwargs must be storable, since any
        host may continue the run. Listings find the run by its `tags`.

        Raises UnknownWorkflowError, RunExistsError if the run was started with another message, EncodeError, and
        ValueError for kwargs that can't be stored.
        """
        workflow, clock = self._catalog.build(workflow_name), self._clock
        chosen = run_id or clock.new_id()
        call = Call(
            message=message.data if isinstance(message, WorkflowMessage) else message,
            run_id=chosen,
            storage=self.storage,
            kwargs={"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs},
            deadline=None if deadline is None else moment_of(clock, deadline, "the deadline of a run"),
            budget=None if budget is None else check_budget(budget),
            tags=tags_text(tags),
            commit_input_only=True,
        )
        binding = workflow.blueprint.bound(self.storage)
        _, withheld = storable_kwargs(resolve_kwargs(call.kwargs, workflow.graph.executors), binding.values)
        if withheld:
            raise ValueError(
                f"a host can't start run {chosen!r} with {', '.join(withheld)}: they are secret or can't be "
                "stored, but any host that continues the run needs them; pass them to the executors in the factory"
            )
        while True:
            record = await self._store.run(chosen)
            if record is not None:
                digest = input_digest(binding, call.message)
                if record.workflow_name != workflow.name or record.input_digest != digest:
                    raise RunExistsError(chosen)
                break
            mark = await self._store.watch(chosen, seen=NO_MARK)
            try:
                await _commit_input(workflow, call)
                break
            except RunBusyError:
                # Another process is starting it. With the same message it is the same run.
                await first_of(self._store.watch(chosen, seen=mark), clock.sleep(_BUSY_SECONDS))
            except (StaleHeadError, LeaseLostError):
                continue
        await self._scheduler.start(chosen)
        return HostedRun(self, chosen)

    async def runs(
        self,
        workflow: str | None = None,
        status: RunStatus | Sequence[RunStatus] | None = None,
        *,
        order: Order = "oldest",
        limit: int | None = None,
        after: str | None = None,
        **chosen: Unpack[RunFilter],
    ) -> list[RunInfo]:
        """List the runs of the store, as `storage.runs` does."""
        return await self.storage.runs(workflow, status, order=order, limit=limit, after=after, **chosen)

    async def hosts(self) -> list[HostInfo]:
        """List the living hosts of the store, as `storage.hosts` does."""
        return await self.storage.hosts()

    async def run(self, run_id: str) -> HostedRun:
        """Return a handle on a run. Raises RunNotFoundError."""
        await record_of(self._store, run_id)
        return HostedRun(self, run_id)

    async def info(self, run_id: str) -> RunInfo:
        """Return the state of a run. Raises RunNotFoundError."""
        return await self.storage.run(run_id)

    async def requests(
        self,
        run_id: str | None = None,
        workflow: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        after: PendingRequest | None = None,
    ) -> list[PendingRequest]:
        """List open requests, as `storage.requests` does."""
        return await self.storage.requests(run_id, workflow_name=workflow, tags=tags, limit=limit, after=after)

    async def respond(
        self,
        run_id: str,
        responses: Mapping[str, Any],
        *,
        by: str | None = None,
        approves: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests of a run by id. The answers are durable when this returns.

        Raises what `storage.respond` raises. A wrong answer, or one to an answered request, changes nothing.
        """
        await self.storage.respond(run_id, responses, by=by, approves=approves)
        await self._scheduler.wake(run_id)

    async def send(
        self,
        run_id: str,
        message: Any,
        target: str | None = None,
        *,
        by: str | None = None,
        message_id: str | None = None,
    ) -> str:
        """Send a message to a run: to one of its executors, or as its next turn. Return the message id.

        It is durable when this returns. A cancelled, failed or quarantined run takes it once it is recovered.
        """
        sent = await self.storage.send(run_id, message, target=target, by=by, message_id=message_id)
        await self._scheduler.wake(run_id)
        return sent

    async def cancel(self, run_id: str, reason: str | None = None, *, by: str | None = None) -> None:
        """Stop a run, wherever it is advanced. It ends in a checkpoint from which `recover` continues.

        Raises RunNotFoundError, RunExportedError.
        """
        record = await record_of(self._store, run_id)
        await self.storage.cancel(run_id, reason=reason, by=by)
        if record.halt is not None and record.halt.kind != "exported":
            # Nobody reads the inbox of a halted run. Once the halt ends, the cancel command is what it finds first.
            await end_halt(self._store, run_id)
        await self._scheduler.cancel(run_id)

    async def fork(
        self,
        run_id: str,
        checkpoint_id: str | None = None,
        *,
        edit: Edit | None = None,
        budget: Mapping[str, float] | None = None,
    ) -> HostedRun:
        """Start a new run at a checkpoint of a run, its newest by default. The source is not changed.

        Resources that `budget` does not name keep the budget that they have in the checkpoint.

        Raises RunNotFoundError, CheckpointNotFoundError, UnknownWorkflowError.
        """
        record = await record_of(self._store, run_id)
        chosen = checkpoint_id or record.head
        assert chosen is not None, "a run that is known has a head"
        manifest = await self._store.manifest(chosen)
        if chosen != record.head and manifest.run_id != run_id:
            raise WorkflowCheckpointException(
                f"checkpoint {chosen!r} belongs to run {manifest.run_id!r}, not to {run_id!r}; fork that run"
            )
        workflow = self._catalog.build(record.workflow_name)
        binding, raised = workflow.blueprint.bound(self.storage), check_budget(budget or {})

        def change(snapshot: Snapshot) -> Snapshot:
            limits = snapshot.limits
            if raised:
                snapshot = replace(snapshot, limits=replace(limits, budget={**limits.budget, **raised}))
            return apply_edit(snapshot, edit or Edit(), workflow.graph, binding.values)

        # The edit commits a checkpoint, so that the fork has its own at once.
        loaded_run = await fork(workflow.blueprint, binding, checkpoint_id=chosen, change=change)
        await self._scheduler.start(loaded_run.run_id)
        return HostedRun(self, loaded_run.run_id)

    async def restore(self, run_id: str, checkpoint_id: str) -> None:
        """Move a run back to one of its checkpoints, as `storage.restore` does, and continue it from there.

        A run that this host advances is stopped first.
        """
        async with self._advancer.stopped(run_id), lock_run(self._store.place, run_id):
            await self.storage.restore(run_id, checkpoint_id)
        await self._scheduler.wake(run_id)

    def events(
        self, run_id: str, *, from_seq: int = 1, follow: bool = False, until_rest: bool = False
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Iterate over the committed events of a run, as `storage.events` does."""
        return self.storage.events(run_id, from_seq=from_seq, follow=follow, until_rest=until_rest)

    async def delete(self, run_id: str) -> bool:
        """Delete a run with its checkpoints, events, requests and unshared blobs. Return False if there is none.

        A run that this host advances is stopped first. Raises RunBusyError if another process advances it.
        """
        async with self._advancer.stopped(run_id), lock_run(self._store.place, run_id):
            is_removed = await self._store.remove(run_id)
        if is_removed:
            await self._store.collect()
        return is_removed

    async def recover(self, run_id: str | None = None, *, budget: Mapping[str, float] | None = None) -> list[str]:
        """Continue a failed, quarantined or cancelled run; without `run_id`, look now for all runs that can continue.

        A new `budget` is durable before the run can continue; resources that it does not name keep theirs.

        Returns the ids of the runs that continue, here or on another host. Raises RunNotFoundError, RunExportedError.
        """
        if run_id is None:
            if budget is not None:
                raise ValueError("a budget belongs to one run: give its run_id")
            found = await self._store.due(at=now(self._clock), workflow_names=self._catalog.names, limit=_EVERY)
            recovered = [due.record.run_id for due in found]
        else:
            if budget is not None:
                await self.storage.set_budget(run_id, budget)
            recovered = [run_id] if await self._reopen(run_id) else []
        for each in recovered:
            await self._scheduler.wake(each)
        return recovered

    async def _reopen(self, run_id: str) -> bool:
        """Let a failed, quarantined or cancelled run continue. Return True if it can."""
        record = await record_of(self._store, run_id)
        if record.halt is not None:
            await end_halt(self._store, run_id)
        if record.status != "cancelled":
            return record.halt is not None or (record.status == "running" and record.owner is None)
        call = Call(run_id=run_id, storage=self.storage, commit_input_only=True)
        # A process that has taken the run meanwhile continues it, which is what was asked for.
        with suppress(RunBusyError, StaleHeadError, LeaseLostError):
            await _commit_input(self._catalog.build(record.workflow_name), call)
        return True

    async def __aenter__(self) -> Self:
        serving = self._begin()
        # From now on no run of these workflows is blocked for lack of a host.
        await first_of(self._has_registered.wait(), asyncio.wait([serving]))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and return. A second signal cuts the drain short."""
        ending, hurry = asyncio.Event(), asyncio.Event()

        def ask() -> None:
            (hurry if ending.is_set() else ending).set()

        serving = self._begin()
        with on_termination_signal(ask):
            try:
                await first_of(ending.wait(), asyncio.wait([serving]))
            finally:
                await self._drain(self._drain_seconds, hurry)
        if serving.done() and not serving.cancelled():
            serving.result()

    async def drain(self, seconds: float | None = None) -> None:
        """Stop serving. Runs stop at the end of their superstep, or are cancelled after `seconds`.

        Work that finished inside a superstep is recorded. When this returns, other hosts can take all runs.
        """
        await self._drain(self._drain_seconds if seconds is None else seconds, asyncio.Event())

    async def _drain(self, seconds: float, hurry: asyncio.Event) -> None:
        serving, self._serving = self._serving, None
        self._advancer.is_draining = self._is_draining = True
        try:
            if serving is not None:
                serving.cancel()
                await asyncio.wait([serving])
            await self._advancer.drain(seconds, hurry)
        finally:
            self._is_draining = False
        if serving is not None:
            logger.info("the host has drained: it advances no run any more")

    def _begin(self) -> asyncio.Task[None]:
        if self.is_serving:
            raise RuntimeError("this host is already serving")
        self._advancer.is_draining = False
        self._has_registered.clear()
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(_log_error)
        logger.info("the host serves workflows %s", ", ".join(map(repr, self._catalog.names)))
        return self._serving

    async def _serve(self) -> None:
        store = self._store
        if not knows_hosts(store):
            self._has_registered.set()
            await self._scheduler.serve(self._advancer.advance, self._catalog.names)
            return
        upkeep = asyncio.create_task(self._keep_up(store))
        try:
            await self._has_registered.wait()
            await self._scheduler.serve(self._advancer.advance, self._catalog.names)
        finally:
            upkeep.cancel()
            await asyncio.wait([upkeep])
            with suppress(WorkflowCheckpointException):
                await store.unregister_host(self.host_id)

    async def _keep_up(self, store: HostListStore) -> None:
        """Stay registered, and remove unused data when it is this host's turn.

        A notification of the store starts each round, never a timer: a test's clock may skip all waits.
        """
        failures, due = 0, self._clock.now()
        while True:
            try:
                async with store.subscribe() as subscription:
                    while True:
                        subscription.clear()
                        if self._clock.now() >= due:
                            # A process that was out of reach for long may have been removed.
                            await store.register_host(self.host_id, workflows=self._catalog.versions)
                            self._has_registered.set()
                            await self._collect_if_due(store)
                            failures, due = 0, self._clock.now() + _UPKEEP_EVERY
                        await subscription.wait()
            except Exception as error:  # noqa: BLE001 - the host serves on
                self._has_registered.set()
                logger.warning("the upkeep of this host failed and is tried again: %s", error)
                await self._clock.sleep(pause_seconds(failures))
                failures += 1

    async def _collect_if_due(self, store: HostListStore) -> None:
        if self._collect_every is None:
            return
        before = (self._clock.now() - self._collect_every).astimezone(UTC).isoformat()
        if await store.begin_upkeep(at=now(self._clock), before=before):
            logger.info("collected unused data: %d values", await self.storage.collect())


async def _commit_input(workflow: Workflow, call: Call) -> None:
    async for _ in workflow.stream(call):
        pass


def _log_error(serving: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        error = serving.exception()
        if error is not None:
            logger.error("the host stops serving because its scheduler failed: %s", error)


def _host_store(storage: object) -> HostStore:
    store = storage.store if isinstance(storage, StoreStorage) else None
    if is_host_store(store):
        return store
    if isinstance(storage, FileCheckpointStorage):
        raise TypeError(
            "a host can't run on a FileCheckpointStorage, because files have no index of the runs that are due; use "
            "SQLite: SqliteCheckpointStorage(path). To move runs there, use export_run and import_run"
        )
    raise TypeError(
        f"a host needs a storage that ships with perdure, or the URL of one, not a {type(storage).__name__}: other "
        "storages keep no leases, commands and timers"
    )
