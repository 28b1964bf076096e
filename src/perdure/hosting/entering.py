"""How runs come to be on a host: started, forked, reopened. Each is durable before anybody advances it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.engine import Call, input_digest, rewinding
from perdure.engine import kwargs as run_kwargs
from perdure.errors import ClaimLostError, RunBusyError, RunExistsError, StaleHeadError, WorkflowCheckpointException
from perdure.graph import WorkflowMessage
from perdure.hosting.halting import end_halt
from perdure.hosting.waiting import first_of
from perdure.moments import moment_of
from perdure.workflows import Edit, checked_budget, edited

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from perdure.hosting.catalog import Catalog
    from perdure.hosting.reading import RunReader
    from perdure.kernel import Snapshot
    from perdure.storage import HostStore, StoreStorage
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
