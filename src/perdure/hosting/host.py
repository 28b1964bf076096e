"""`Host`: many runs of many workflows in one process. Any number of hosts may share a store."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, get_args, overload

from perdure.engine import PRESENCE, Call, input_digest, rewinding
from perdure.engine import kwargs as run_kwargs
from perdure.errors import (
    ClaimLostError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.graph import WorkflowMessage
from perdure.hosting.advance import Advancer, Catalog, Factory, end_halt
from perdure.hosting.embedded import EmbeddedScheduler, first_of
from perdure.hosting.run import HostedRun, RunInfo, RunReader
from perdure.moments import moment_of, now
from perdure.records import RunStatus
from perdure.storage import StoreStorage, is_host_store, open_storage
from perdure.workflows import Edit, checked_budget, edited

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.events import WorkflowEvent
    from perdure.hosting.scheduler import Scheduler
    from perdure.kernel import Snapshot
    from perdure.records import RunRecord
    from perdure.storage import HostStore, PendingRequest
    from perdure.workflows import Workflow

_BUSY_SECONDS = 0.5
"""How long to wait for another who is about to begin a run: if it dies before that, nothing tells of it."""


class Entrance:
    """Commits what a run begins with, and runs nothing."""

    def __init__(self, storage: StoreStorage, store: HostStore, catalog: Catalog, reader: RunReader) -> None:
        self._storage = storage
        self._store = store
        self._catalog = catalog
        self._reader = reader

    async def start(
        self,
        workflow_name: str,
        message: Any,
        *,
        run_id: str | None,
        deadline: timedelta | datetime | None,
        budget: Mapping[str, float] | None,
        kwargs: Mapping[str, Mapping[str, Any] | None],
    ) -> str:
        """Begin a run, unless it has begun with the same message; its id."""
        workflow, clock = self._catalog.build(workflow_name), self._storage.clock
        chosen = run_id or clock.new_id()
        call = Call(
            message=message.data if isinstance(message, WorkflowMessage) else message,
            run_id=chosen,
            storage=self._storage,
            kwargs=kwargs,
            deadline=None if deadline is None else moment_of(clock, deadline, "the deadline of a run"),
            budget=None if budget is None else checked_budget(budget),
            only_enters=True,
        )
        self._require_storable(workflow, call)
        while not await self._has_begun(workflow, call):
            mark = await self._reader.mark(chosen)
            try:
                await _entered(workflow, call)
            except RunBusyError:
                # Somebody else is about to begin it: with the same message, it is the same run.
                await first_of(self._reader.mark(chosen, seen=mark), clock.sleep(_BUSY_SECONDS))
            except (StaleHeadError, ClaimLostError):
                continue
            else:
                break
        return chosen

    async def _has_begun(self, workflow: Workflow, call: Call) -> bool:
        """Whether there is the run already. Raises RunExistsError if it is another one."""
        assert call.run_id is not None, "a run that is started has an id"
        record = await self._store.run(call.run_id)
        if record is None:
            return False
        digest = input_digest(workflow.blueprint.bound(self._storage), call.message)
        if record.workflow_name != workflow.name or record.input_digest != digest:
            raise RunExistsError(call.run_id)
        return True

    def _require_storable(self, workflow: Workflow, call: Call) -> None:
        given = run_kwargs.resolved(call.kwargs, workflow.graph.executors)
        _, withheld = run_kwargs.storable(given, workflow.blueprint.bound(self._storage).values)
        if withheld:
            raise ValueError(
                f"a host can't start run {call.run_id!r} with {', '.join(withheld)}: these are secret or can't be "
                "stored, and whoever goes on with the run needs them; let the factory give them to the executors"
            )

    async def fork(self, run_id: str, checkpoint_id: str | None, *, edit: Edit | None) -> str:
        """Begin a run at a checkpoint of another; its id. It has a checkpoint of its own at once."""
        record = await self._reader.record(run_id)
        chosen = checkpoint_id or record.head
        assert chosen is not None, "a run that is known has a head"
        manifest = await self._store.manifest(chosen)
        if chosen != record.head and manifest.run_id != run_id:
            raise WorkflowCheckpointException(
                f"checkpoint {chosen!r} is of run {manifest.run_id!r}, not of {run_id!r}; fork that run"
            )
        workflow = self._catalog.build(record.workflow_name)
        binding = workflow.blueprint.bound(self._storage)

        def change(snapshot: Snapshot) -> Snapshot:
            return edited(snapshot, edit or Edit(), workflow.graph, binding.values)

        tenure = await rewinding.fork(workflow.blueprint, binding, checkpoint_id=chosen, change=change)
        return tenure.run_id

    async def reopen(self, run_id: str) -> bool:
        """Let a run go on that has failed, was parked or was cancelled; whether it can."""
        record = await self._reader.record(run_id)
        if record.halt is not None:
            await end_halt(self._store, run_id)
        if record.status != "cancelled":
            return record.halt is not None or (record.status == "running" and record.owner is None)
        call = Call(run_id=run_id, storage=self._storage, only_enters=True)
        # Somebody who has taken it meanwhile goes on with it, which is what was wanted.
        with suppress(RunBusyError, StaleHeadError, ClaimLostError):
            await _entered(self._catalog.build(record.workflow_name), call)
        return True


async def _entered(workflow: Workflow, call: Call) -> None:
    """Commit what the call brings."""
    async for _ in workflow.stream(call):
        pass


_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_ending(ask: Callable[[], None]) -> Generator[None]:
    """Call `ask` for each signal that asks to end, in place of what happens otherwise.

    Only the main thread is told of signals; elsewhere nothing is changed.
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


class Host:
    """Starts runs, advances them, and goes on with those that others have left.

    `storage` is one that ships with perdure, or its URL; its clock is that of the runs. While a host serves it takes
    every run of its workflows that can go on and that nobody living advances, at most `max_runs` at once. A run that
    rests, for people, for time or for good, is in the store alone.

    A run that `max_attempts` processes in a row did not outlive is parked. A draining host lets its runs stop at the
    end of their supersteps, for `drain_seconds` at most. `on_event` is told each live event with the id of its run. A
    `scheduler` decides in place of the embedded one when which run is advanced; `max_runs` is its own affair then.
    """

    def __init__(
        self,
        storage: StoreStorage | str,
        *,
        scheduler: Scheduler | None = None,
        max_runs: int = 100,
        max_attempts: int = 5,
        drain_seconds: float = 30.0,
        on_event: Callable[[str, WorkflowEvent[Any]], object] | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts is 1 or more, not {max_attempts}")
        self.storage = open_storage(storage) if isinstance(storage, str) else storage
        self._store = _host_store(self.storage)
        self._clock = self.storage.clock
        self._drain_seconds = drain_seconds
        self._catalog = Catalog(self.storage, self._clock)
        self._reader = RunReader(self.storage)
        self._entrance = Entrance(self.storage, self._store, self._catalog, self._reader)
        self._advancer = Advancer(
            storage=self.storage,
            store=self._store,
            catalog=self._catalog,
            clock=self._clock,
            max_attempts=max_attempts,
            on_event=on_event,
        )
        self._scheduler = scheduler or EmbeddedScheduler(self._store, self._clock, max_runs=max_runs)
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_serving(self) -> bool:
        """Whether this host advances runs."""
        return self._serving is not None and not self._serving.done()

    @property
    def running(self) -> int:
        """How many runs it is advancing just now."""
        return self._advancer.count

    @property
    def workflow_names(self) -> tuple[str, ...]:
        """The workflows that are registered."""
        return self._catalog.names

    @overload
    def register(self, factory: Factory, name: str | None = None) -> Factory: ...
    @overload
    def register(self, factory: None = None, name: str | None = None) -> Callable[[Factory], Factory]: ...
    def register(
        self, factory: Factory | None = None, name: str | None = None
    ) -> Factory | Callable[[Factory], Factory]:
        """Let the host run the workflow that a function builds; also as a decorator.

        The function is called for each life of a run, so that each has its own executors, and twice at once to look at
        what it builds. A `name` takes the place of the workflow's own.

        Raises TypeError for what is no factory, ValueError for one that hands out shared executors or a taken name.
        """
        if factory is None:
            return lambda given: self.register(given, name)
        if self.is_serving:
            raise RuntimeError("this host serves already: register its workflows before that")
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
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> HostedRun:
        """Begin a run. It is durable when this returns; this host or another that serves advances it.

        The same `run_id` with the same message is the same run, whoever advances it, finished or not. Kwargs have to be
        storable, since any host may go on with the run.

        Raises UnknownWorkflowError, RunExistsError if the run began with another message, EncodeError, and ValueError
        for kwargs that can't be stored.
        """
        chosen = await self._entrance.start(
            workflow_name,
            message,
            run_id=run_id,
            deadline=deadline,
            budget=budget,
            kwargs={"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs},
        )
        await self._scheduler.start(chosen)
        return self._handle(chosen)

    async def runs(
        self,
        workflow: str | None = None,
        status: RunStatus | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[RunInfo]:
        """The runs of the store, all or some, in the order in which they began.

        At most `limit` of them, and those that began `after` the run of this id, which need not have the status: the
        last of one page is where the next one goes on. The store is asked for all of them nevertheless.

        Raises ValueError for no status or limit, RunNotFoundError if there is no run to go on after.
        """
        if status is not None and status not in get_args(RunStatus):
            raise ValueError(f"there is no status {status!r}; there are {', '.join(get_args(RunStatus))}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit is 1 or more, not {limit}")
        if after is None:
            found = await self._store.runs(workflow_name=workflow, status=status)
        else:
            found = _after(after, await self._store.runs(), workflow=workflow, status=status)
        return [RunInfo.of(record) for record in found[:limit]]

    async def run(self, run_id: str) -> HostedRun:
        """A handle on a run. Raises RunNotFoundError."""
        await self._reader.record(run_id)
        return self._handle(run_id)

    async def info(self, run_id: str) -> RunInfo:
        """Where a run stands. Raises RunNotFoundError."""
        return RunInfo.of(await self._reader.record(run_id))

    async def requests(self, run_id: str | None = None, workflow: str | None = None) -> list[PendingRequest]:
        """The requests that wait for an answer: of a run, of a workflow's runs, or of all."""
        return await self.storage.requests(run_id, workflow_name=workflow)

    async def respond(
        self,
        run_id: str,
        responses: Mapping[str, Any],
        *,
        by: str | None = None,
        approves: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests of a run by id. The answers are durable when this returns.

        Raises what `storage.respond` does: a wrong answer, and one to a request that was answered, changes nothing.
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
        """Send a message to a run: to one of its executors, or as its next turn. Returns its id.

        It is durable when this returns. A run that was cancelled, has failed or was parked takes it when it goes on.
        """
        sent = await self.storage.send(run_id, message, target=target, by=by, message_id=message_id)
        await self._scheduler.wake(run_id)
        return sent

    async def cancel(self, run_id: str, reason: str | None = None, *, by: str | None = None) -> None:
        """Tell a run to stop, whoever advances it. It ends in a checkpoint from which `recover` goes on.

        Raises RunNotFoundError, RunExportedError.
        """
        record = await self._reader.record(run_id)
        await self.storage.cancel(run_id, reason=reason, by=by)
        if record.halt is not None and record.halt.kind != "exported":
            # Nobody would look into the inbox of a halted run. What it finds there first is the wish to stop.
            await end_halt(self._store, run_id)
        await self._scheduler.cancel(run_id)

    async def fork(self, run_id: str, checkpoint_id: str | None = None, *, edit: Edit | None = None) -> HostedRun:
        """A new run that begins at a checkpoint of a run, the newest if none is named. That run is not touched.

        Raises RunNotFoundError, CheckpointNotFoundError, UnknownWorkflowError.
        """
        forked = await self._entrance.fork(run_id, checkpoint_id, edit=edit)
        await self._scheduler.start(forked)
        return self._handle(forked)

    async def delete(self, run_id: str) -> bool:
        """Forget a run: its checkpoints, events, requests, and what only it has needed; False if there is none.

        If this host advances it, it is stopped. Raises RunBusyError if another one does.
        """
        async with self._advancer.barred(run_id), PRESENCE.at(self._store.place, run_id):
            is_removed = await self._store.remove(run_id)
        if is_removed:
            await self._store.collect()
        return is_removed

    async def recover(self, run_id: str | None = None) -> list[str]:
        """Go on with a run that has failed, was parked or was cancelled; or look now for all that can go on.

        Returns the ids of the runs that go on, though it may be another host that has just taken them. Raises
        RunNotFoundError, RunExportedError.
        """
        if run_id is None:
            found = await self._store.due(at=now(self._clock), workflow_names=self._catalog.names, limit=_EVERY)
            recovered = [due.record.run_id for due in found]
        else:
            recovered = [run_id] if await self._entrance.reopen(run_id) else []
        for each in recovered:
            await self._scheduler.wake(each)
        return recovered

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    async def serve(self) -> None:
        """Serve until the process gets SIGTERM or SIGINT, then drain and return. A second signal ends the draining."""
        ending, hurry = asyncio.Event(), asyncio.Event()

        def ask() -> None:
            (hurry if ending.is_set() else ending).set()

        serving = self._begin()
        with on_ending(ask):
            try:
                await first_of(ending.wait(), asyncio.wait([serving]))
            finally:
                await self._drain(self._drain_seconds, hurry)
        if serving.done() and not serving.cancelled():
            serving.result()

    async def drain(self, seconds: float | None = None) -> None:
        """Serve no more: runs stop at the end of their supersteps, and after so many seconds in the midst of them.

        What has finished inside of a superstep is recorded. When this returns, all runs are free for other hosts.
        """
        await self._drain(self._drain_seconds if seconds is None else seconds, asyncio.Event())

    async def _drain(self, seconds: float, hurry: asyncio.Event) -> None:
        serving, self._serving = self._serving, None
        self._advancer.is_draining = True
        if serving is not None:
            serving.cancel()
            await asyncio.wait([serving])
        await self._advancer.drained(seconds, hurry)

    def _begin(self) -> asyncio.Task[None]:
        if self.is_serving:
            raise RuntimeError("this host serves already")
        self._advancer.is_draining = False
        self._serving = asyncio.create_task(self._scheduler.serve(self._advancer.advance, self._catalog.names))
        self._serving.add_done_callback(_log_error)
        return self._serving

    def _handle(self, run_id: str) -> HostedRun:
        return HostedRun(self, self._reader, run_id)


def _after(
    run_id: str, records: Sequence[RunRecord], *, workflow: str | None, status: RunStatus | None
) -> list[RunRecord]:
    """Those that follow a run, of a workflow and where one stands, if that is asked for. Raises RunNotFoundError."""
    position = next((number for number, record in enumerate(records) if record.run_id == run_id), None)
    if position is None:
        raise RunNotFoundError(run_id)
    return [
        record
        for record in records[position + 1 :]
        if workflow in {None, record.workflow_name} and status in {None, record.standing}
    ]


def _log_error(serving: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        error = serving.exception()
        if error is not None:
            logger.error("the scheduler of a host has failed, the host serves no more: %s", error)


def _host_store(storage: object) -> HostStore:
    store = storage.store if isinstance(storage, StoreStorage) else None
    if is_host_store(store):
        return store
    raise TypeError(
        f"a host needs a storage that ships with perdure, or the URL of one, not a {type(storage).__name__}: other "
        "storages have no place for claims, commands and timers"
    )
