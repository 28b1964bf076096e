"""What is false or empty in a content is something that was said, and is kept."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
from perdure.agents import Content

CALL = Content.from_function_call("call-1", "pay", arguments="{}")


NOTHING: list[Any] = [False, {}, [], 0, ""]
SAID = [
    Content.from_function_approval_response(approved=False, id="call-1", function_call=CALL),
    *[Content.from_function_result("call-1", result=result) for result in NOTHING],
    Content.from_function_call("call-1", "pay", arguments={}),
    Content("shell_command_output", stdout="", exit_code=0, timed_out=False),
]


@pytest.mark.parametrize("content", SAID, ids=repr)
def test_a_content_survives_a_dict(content: Content) -> None:
    assert Content.from_dict(content.to_dict()) == content


@executor
async def keeper(content: Content, ctx: WorkflowContext[None, str]) -> None:
    ctx.set_state("kept", content)
    await ctx.yield_output("kept")


@pytest.mark.parametrize("content", SAID, ids=repr)
async def test_a_content_survives_a_checkpoint(content: Content) -> None:
    storage = InMemoryCheckpointStorage()
    await WorkflowBuilder(name="keeping", start_executor=keeper, checkpoint_storage=storage).build().run(content)
    checkpoint = await storage.get_latest(workflow_name="keeping")
    assert checkpoint is not None
    assert checkpoint.state["kept"] == content
