"""What the tools of an agent set in the state of a function is kept with the record of their calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm
from tests.functional.memory import NOTES
from tests.soak import IS_SOAK

from perdure import Agent, Message, RunContext, get_run_context, step, tool, workflow
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.storage import StoreStorage as Storage

PROGRAM = Path(__file__).with_name("memory.py")
INTERRUPTED = Path(__file__).with_name("interrupted.py")
REMEMBERED = ["a", "b", "c", "d", "helped", "of the helper"]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("death", range(0, NOTES + 1, 1 if IS_SOAK else 4))
def test_what_tools_have_set_is_the_same_after_a_crash(death: int, kind: str, tmp_path: Path) -> None:
    ended = warm.run(str(PROGRAM), str(tmp_path), kind, str(death), timeout=120)
    assert ended.returncode == (-9 if 0 < death < NOTES else 0), ended.stderr
    if ended.returncode:
        ended = warm.run(str(PROGRAM), str(tmp_path), kind, "0", timeout=120)
    (told,) = json.loads(ended.stdout)
    assert told == {"before": [], "seen": REMEMBERED, "all": sorted([*REMEMBERED, "last"]), "answer": "yes"}


@pytest.mark.parametrize("policy", ["rerun", "tell", "ask", "find", "step"])
def test_what_was_done_inside_of_an_interrupted_call_is_kept_whether_it_is_made_again_or_not(
    policy: str, tmp_path: Path
) -> None:
    assert warm.run(str(INTERRUPTED), str(tmp_path), policy, timeout=120).returncode == -9
    ended = warm.run(str(INTERRUPTED), str(tmp_path), policy, timeout=120)
    assert ended.returncode == 0, ended.stderr
    (told,) = json.loads(ended.stdout)
    kept = {"rerun": ["a", "b"], "find": ["a", "found"]}.get(policy, ["a"])
    assert told == {"seen": kept, "all": [*kept, "last"]}


async def test_what_a_step_in_a_tool_has_set_is_there_when_the_function_comes_back(storage: Storage) -> None:
    @step
    async def note(text: str, ctx: RunContext) -> str:
        ctx.set_state("noted", [*ctx.get_state("noted", []), text])
        return text

    @tool(approval_mode="never_require")
    async def remember(text: str) -> str:
        """Remember."""
        return await note(text)

    script = [[ToolCall("remember", text="a")], [ToolCall("remember", text="b")], "done"]
    agent = Agent(ScriptedChatClient(script), name="keeper", tools=[remember])
    seen: list[Any] = []

    @workflow
    async def office(_: str, ctx: RunContext) -> Any:
        seen.append(ctx.get_state("noted"))
        await agent.run("go")
        seen.append(ctx.get_state("noted"))
        await ctx.request_info("well?", bool)
        await note("c")
        await ctx.request_info("sure?", bool)
        return ctx.get_state("noted")

    await office.run("go", run_id="r", checkpoint_storage=storage)
    await office.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    last = await office.twin().run(run_id="r", responses={"auto::1": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [["a", "b", "c"]]
    assert seen == [None, ["a", "b"]] * 3


async def test_what_a_model_sets_is_kept_and_what_it_sets_before_it_fails_is_not(storage: Storage) -> None:
    fails = [True]

    def say(said: Sequence[Message], _: Mapping[str, Any]) -> str:
        context = get_run_context()
        assert context is not None
        context.set_state("asked", context.get_state("asked", 0) + 1)
        if fails:
            fails.clear()
            raise ConnectionError(said[-1].text)
        return "hi"

    agent = Agent(ScriptedChatClient(say), name="counter")

    @workflow
    async def talk(_: str, ctx: RunContext) -> Any:
        with pytest.raises(ConnectionError):
            await agent.run("first")
        assert ctx.get_state("asked") is None
        await agent.run("second")
        await ctx.request_info("well?", bool)
        return ctx.get_state("asked")

    await talk.run("go", run_id="r", checkpoint_storage=storage)
    last = await talk.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [1]


async def test_tools_side_by_side_that_overwrite_each_other_are_warned_of(storage: Storage) -> None:
    @tool(approval_mode="never_require")
    async def choose(text: str) -> str:
        """Choose."""
        context = get_run_context()
        assert context is not None
        context.set_state("choice", text)
        return text

    calls = [ToolCall("choose", text="tea"), ToolCall("choose", text="milk")]
    agent = Agent(ScriptedChatClient([calls, "done"]), name="chooser", tools=[choose])

    @workflow
    async def meal(_: str, ctx: RunContext) -> Any:
        await agent.run("go")
        await ctx.request_info("well?", bool)
        return ctx.get_state("choice")

    first = await meal.run("go", run_id="r", checkpoint_storage=storage)
    last = await meal.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    (text,) = [event.data for event in first if event.type == "warning"]
    assert "'tool choose'" in text
    assert "'choice'" in text
    assert last.get_outputs() == ["milk"]


async def test_a_function_in_a_tool_that_asks_in_a_branch_is_no_failure_of_the_tool(storage: Storage) -> None:
    asked: list[str] = []

    @workflow
    async def inquiry(_: str, ctx: RunContext) -> str:
        async def ask(text: str) -> str:
            asked.append(text)
            return await ctx.request_info(text, str, request_id=text)

        return " and ".join(await asyncio.gather(ask("milk"), ask("sugar")))

    @tool(approval_mode="never_require", if_interrupted="rerun")
    async def inquire() -> str:
        """Ask how the tea is wanted."""
        (found,) = (await inquiry.run("go")).get_outputs()
        return found

    agent = Agent(ScriptedChatClient([[ToolCall("inquire")], "done"]), name="waiter", tools=[inquire])

    @workflow
    async def tea(_: str) -> Any:
        messages = (await agent.run("go")).messages
        return [content.result for message in messages for content in message.contents if content.result is not None]

    first = await tea.run("go", run_id="r", checkpoint_storage=storage)
    assert {event.request_id for event in first.get_request_info_events()} == {"milk", "sugar"}
    answers = {"milk": "with milk", "sugar": "without sugar"}
    last = await tea.twin().run(run_id="r", responses=answers, checkpoint_storage=storage)
    assert last.get_outputs() == [["with milk and without sugar"]]
