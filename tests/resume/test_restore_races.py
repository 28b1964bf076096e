"""A run that is deleted while it is restored to an earlier checkpoint."""

from typing import Any

import pytest
from tests.workflow.nodes import Context, node
from typing_extensions import override

from perdure import WorkflowBuilder
from perdure.errors import RunNotFoundError, StaleHeadError
from perdure.records import Lease, NewRun
from perdure.storage import MemoryStore, StoreStorage


class RemovingStore(MemoryStore):
    """A store in which somebody removes a run as soon as it is leased again."""

    removes = False

    @override
    async def acquire(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Lease:
        lease = await super().acquire(run_id, create=create, takeover=takeover, token=token)
        if self.removes:
            await self.remove(run_id)
        return lease


async def nothing(_: Any, ctx: Context) -> None:
    """Do nothing."""


async def test_restoring_a_run_that_is_deleted_meanwhile_says_that_it_is_gone() -> None:
    store = RemovingStore()
    workflow = WorkflowBuilder(start_executor=node("a", nothing), checkpoint_storage=StoreStorage(store)).build()
    run = workflow.start(1, run_id="r")
    await run.result()
    first = (await run.checkpoints())[0]
    store.removes = True
    with pytest.raises(RunNotFoundError, match="no run 'r'"):
        await run.restore(first.checkpoint_id)


def test_commit_to_a_deleted_run_does_not_blame_another_process() -> None:
    assert str(StaleHeadError("r", expected="r@1", head=None)) == (
        "run 'r' was at 'r@1' and does not exist any more: it was deleted; start a new run"
    )
