"""Names that can't be stored are refused where they are given."""

from pathlib import Path
from typing import Any

import pytest
from tests.workflow.nodes import Context, node

from perdure import SqliteCheckpointStorage, WorkflowBuilder
from perdure.errors import WorkflowCheckpointException

LONE = "a\ud800"


async def test_name_with_lone_surrogate_in_a_handler_is_an_error_that_says_what_to_do() -> None:
    async def call(_: Any, ctx: Context) -> None:
        with pytest.raises(ValueError, match=r"the step name .*lone surrogate '\\ud800'.*errors='replace'"):
            await ctx.step(LONE, int)
        with pytest.raises(ValueError, match=r"the step key .*lone surrogate"):
            await ctx.step("s", int, key=LONE)
        with pytest.raises(ValueError, match=r"the scope name .*lone surrogate"):
            ctx.scope(LONE)
        await ctx.yield_output("refused")

    result = await WorkflowBuilder(start_executor=node("a", call)).build().run(1)
    assert result.get_outputs() == ["refused"]


async def nothing(_: Any, ctx: Context) -> None:
    """Do nothing."""


def test_executor_id_and_workflow_name_with_lone_surrogate_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the executor id .*lone surrogate"):
        node(LONE, nothing)
    with pytest.raises(ValueError, match=r"the workflow name .*lone surrogate"):
        WorkflowBuilder(name=LONE, start_executor=node("a", nothing)).build()


async def test_ids_with_lone_surrogate_are_refused_by_storages(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    workflow = WorkflowBuilder(start_executor=node("a", nothing), checkpoint_storage=storage).build()
    with pytest.raises(WorkflowCheckpointException, match=r"the run id .*lone surrogates"):
        await workflow.run(1, run_id=LONE)
    with pytest.raises(WorkflowCheckpointException, match=r"name of a tenant .*lone surrogates"):
        storage.tenant(LONE)
    with pytest.raises(WorkflowCheckpointException, match="lone surrogate"):
        await storage.list_checkpoint_ids(workflow_name=LONE)
    await storage.close()
