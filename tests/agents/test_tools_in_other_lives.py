"""Tools that are more than functions of their arguments: agents, tools that change the session or the list of tools."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm
from tests.agents.nested_program import Life

from perdure import WorkflowBuilder
from perdure.agents import Agent, AgentExecutor, FunctionInvocationContext, FunctionTool, tool
from perdure.agents.messages.conversation import INTERRUPTED
from perdure.errors import ToolException
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from tests.conftest import Storage

ROOT = Path(__file__).parents[2]


def died(directory: Path, kind: str) -> bool:
    """Let a life of its own begin the run, and die."""
    return warm.run("-m", "tests.agents.nested_program", str(directory), kind, cwd=ROOT).returncode == 9


def effects(directory: Path) -> list[str]:
    return (directory / "effects").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("kind", "told"), [("stranger", INTERRUPTED), ("asking", "settled")], ids=["a stranger", "who would ask somebody"]
)
async def test_what_an_agent_did_as_a_tool_is_not_done_again(kind: str, told: str, tmp_path: Path) -> None:
    assert died(tmp_path, kind)
    assert await Life(tmp_path, kind).run() == [told]
    assert effects(tmp_path) == ["paid"]


async def test_tools_that_were_added_are_found_among_those_that_the_client_knows(tmp_path: Path) -> None:
    assert died(tmp_path, "known")
    assert await Life(tmp_path, "known").run() == ["special of ['expert', 'special']"]
    assert effects(tmp_path) == ["special"]


async def test_a_tool_that_was_added_and_is_not_found_again_is_no_tool_that_never_was(tmp_path: Path) -> None:
    assert died(tmp_path, "lost")
    with pytest.raises(ToolException, match="'special' was added by tool 'expert' before this run was resumed"):
        await Life(tmp_path, "lost").run()
    assert await Life(tmp_path, "known").run() == ["special of ['expert', 'special']"]


async def test_changes_of_tools_are_made_again_when_a_handler_is_entered_again(storage: Storage) -> None:
    asked: list[list[str]] = []
    is_down = [True]
    hosted = {"type": "function", "function": {"name": "hosted"}}
    declared = FunctionTool(name="declared", description="Answered by others.")
    old = tool(lambda: "old", name="old")

    @tool
    def change(ctx: FunctionInvocationContext) -> str:
        """Change the tools."""
        ctx.add_tools([declared, hosted])
        ctx.remove_tools("old")
        return "changed"

    def say(_: Any, options: Any) -> Any:
        asked.append([each["function"]["name"] if isinstance(each, dict) else each.name for each in options["tools"]])
        if len(asked) == 1:
            return ToolCall("change")
        if is_down:
            raise ConnectionError("down")
        return "done"

    agent = Agent(ScriptedChatClient(say), name="a", tools=[change, old])
    workflow = WorkflowBuilder(name="w", start_executor=agent, checkpoint_storage=storage).build()
    with pytest.raises(ConnectionError):
        await workflow.run("go", run_id="r")
    is_down.clear()
    assert [output.text for output in (await workflow.run(run_id="r")).get_outputs()] == ["done"]
    assert asked == [["change", "old"], *[["change", "declared", "hosted"]] * 2]


async def test_tools_of_one_answer_that_change_the_session_do_not_undo_each_other(storage: Storage) -> None:
    @tool
    async def count(ctx: FunctionInvocationContext) -> str:
        """Count."""
        ctx.session.state["count"] = ctx.session.state.get("count", 0) + 1
        return "counted"

    agent = Agent(ScriptedChatClient([[ToolCall("count")] * 3, "done"]), name="a", tools=[count])
    node = AgentExecutor(agent)
    await WorkflowBuilder(name="w", start_executor=node, checkpoint_storage=storage).build().run("go")
    assert node.session.state["count"] == 3


async def test_why_a_tool_failed_is_in_the_log_for_who_looks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> str:
        raise ValueError("the secret reason")

    caplog.set_level(logging.DEBUG, logger="perdure.agents")
    await Agent(ScriptedChatClient([ToolCall("fail"), "done"]), name="a", tools=[fail]).run("go")
    told = {record.levelname: record for record in caplog.records if "'fail' failed" in record.message}
    assert "secret" not in told["WARNING"].getMessage()
    assert told["WARNING"].exc_info is None
    debug = told["DEBUG"].exc_info
    assert debug is not None
    assert str(debug[1]) == "the secret reason"
