"""A scripted model in a run that goes on elsewhere: it goes on in its script, and is asked only for what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure import SqliteCheckpointStorage, WorkflowBuilder
from perdure.agents import Agent, tool
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from perdure import Workflow

DOWN = ConnectionError("the model is down")


def workflow_of(script: list[Any], path: Path, dug: list[int]) -> tuple[Workflow, ScriptedChatClient]:
    """Everything anew, as another process would make it; only the file is the same."""

    @tool
    def dig(depth: int) -> str:
        """Dig."""
        dug.append(depth)
        return f"sand at {depth}"

    client = ScriptedChatClient(script)
    digger = Agent(client, "You dig.", name="digger", tools=[dig])
    storage = SqliteCheckpointStorage(path)
    return WorkflowBuilder(name="digging", start_executor=digger, checkpoint_storage=storage).build(), client


async def lived(workflow: Workflow, *, stream: bool) -> str:
    if stream:
        result = await workflow.run("Dig.", run_id="dig-1", stream=True).get_final_response()
    else:
        result = await workflow.run("Dig.", run_id="dig-1")
    return "".join([output.text for output in result.get_outputs()])


@pytest.mark.parametrize("stream", [False, True])
async def test_another_life_goes_on_in_the_script_behind_what_was_answered(tmp_path: Path, *, stream: bool) -> None:
    replies = [ToolCall("dig", depth=1), ToolCall("dig", depth=2), "Only sand."]
    dug: list[int] = []
    for failing in (1, 2):
        # Until the last life the model fails, each time one reply later.
        workflow, client = workflow_of([*replies[:failing], DOWN], tmp_path / "runs.db", dug)
        with pytest.raises(ConnectionError, match="down"):
            await lived(workflow, stream=stream)
        assert len(client.calls) == 2
    workflow, client = workflow_of(replies, tmp_path / "runs.db", dug)
    assert await lived(workflow, stream=stream) == "Only sand."
    assert len(client.calls) == 1
    assert dug == [1, 2]


async def test_the_next_turn_of_a_run_goes_on_in_the_script(tmp_path: Path) -> None:
    replies = ["Only sand.", "Still only sand."]
    path = tmp_path / "runs.db"
    workflow, _ = workflow_of(replies, path, [])
    await workflow.run("Dig.", run_id="dig-1")
    await SqliteCheckpointStorage(path).send("dig-1", "Dig deeper.")
    again, client = workflow_of(replies, path, [])
    result = await again.run(run_id="dig-1")
    assert result.get_outputs()[-1].text == "Still only sand."
    assert [call.text for call in client.calls] == ["Dig deeper."]
