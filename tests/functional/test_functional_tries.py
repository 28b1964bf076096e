"""State that steps and tools set which are tried again, fail, or are left beside others that have built on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, Retry, RunContext, get_run_context, step, tool, workflow
from perdure.functional.state import StepOutcome
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import WorkflowRunResult
    from perdure.storage import StoreStorage as Storage


def warnings(result: WorkflowRunResult) -> list[str]:
    """What was warned of."""
    return [event.data for event in result if event.type == "warning"]


def count() -> None:
    """Count in the state."""
    context = get_run_context()
    assert context is not None
    context.set_state("n", context.get_state("n", 0) + 1)


class Pair:
    """Two that count, the second upon the first, which fails after that as often as it is said."""

    def __init__(self, failures: int) -> None:
        self.failures_left = failures
        self.first_has_counted, self.second_has_counted = asyncio.Event(), asyncio.Event()

    async def first(self) -> str:
        count()
        self.first_has_counted.set()
        await self.second_has_counted.wait()
        if self.failures_left:
            self.failures_left -= 1
            raise ConnectionError("down")
        return "first"

    async def second(self) -> str:
        await self.first_has_counted.wait()
        count()
        self.second_has_counted.set()
        return "second"


async def test_a_step_that_others_have_built_on_is_tried_again_beneath_them(storage: Storage) -> None:
    pair = Pair(failures=1)
    first, second = step(retry=Retry(2, 0))(pair.first), step(pair.second)

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(first(), second())
        await ctx.request_info("well?", bool)
        return ctx.get_state("n")

    await counts.run("go", run_id="r", checkpoint_storage=storage)
    last = await counts.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [2]


async def test_a_tool_that_others_have_built_on_is_tried_again_beneath_them(storage: Storage) -> None:
    pair = Pair(failures=1)
    first = tool(pair.first, name="first", approval_mode="never_require", retry=Retry(2, 0))
    second = tool(pair.second, name="second", approval_mode="never_require")
    agent = Agent(
        ScriptedChatClient([[ToolCall("first"), ToolCall("second")], "done"]), name="counter", tools=[first, second]
    )

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await agent.run("go")
        return ctx.get_state("n")

    assert (await counts.run("go", checkpoint_storage=storage)).get_outputs() == [2]


async def test_who_has_built_on_a_step_that_fails_for_good_is_warned_of(storage: Storage) -> None:
    pair = Pair(failures=1)
    first, second = step(pair.first), step(pair.second)

    @workflow
    async def counts(_: str) -> Any:
        ended = await asyncio.gather(first(), second(), return_exceptions=True)
        return str(ended[0])

    result = await counts.run("go", checkpoint_storage=storage)
    assert result.get_outputs() == ["down"]
    (text,) = warnings(result)
    assert "step 'second' has used the state 'n' that step 'first' had set before it failed" in text


async def test_what_is_on_record_inside_of_a_failed_try_is_seen_until_the_next(storage: Storage) -> None:
    has_failed, has_added = asyncio.Event(), asyncio.Event()

    @step
    async def add(text: str, ctx: RunContext) -> None:
        ctx.set_state("all", [*ctx.get_state("all", []), text])

    @step(retry=Retry(2, 0))
    async def shaky() -> None:
        if has_failed.is_set():
            await has_added.wait()
        await add("inside")
        if not has_failed.is_set():
            has_failed.set()
            raise ConnectionError("once")

    @step
    async def beside() -> None:
        await has_failed.wait()
        await add("beside")
        has_added.set()

    @workflow
    async def lists(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(shaky(), beside())
        seen = ctx.get_state("all")
        await ctx.request_info("well?", bool)
        return seen == ctx.get_state("all"), sorted(seen)

    await lists.run("go", run_id="r", checkpoint_storage=storage)
    last = await lists.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [(True, ["beside", "inside"])]


async def test_a_fork_counts_once_what_was_left_in_a_question(storage: Storage) -> None:
    has_counted = asyncio.Event()

    @step
    async def asking(ctx: RunContext) -> None:
        count()
        has_counted.set()
        await ctx.request_info("well?", str, request_id="well")

    @step
    async def beside() -> None:
        await has_counted.wait()
        count()

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(asking(), beside())
        return ctx.get_state("n")

    await counts.run("go", run_id="r", checkpoint_storage=storage)
    fork = await (await counts.twin().start(run_id="r", checkpoint_storage=storage)).fork()
    await fork.result()
    for run_id in ("r", fork.run_id):
        ended = await counts.twin().run(run_id=run_id, responses={"well": "yes"}, checkpoint_storage=storage)
        assert ended.get_outputs() == [2]


@pytest.mark.parametrize("options", [{}, {"retry": Retry(2, 0)}, {"timeout": 600}], ids=["plain", "retry", "timeout"])
async def test_what_a_tool_has_set_that_fails_is_gone(storage: Storage, options: dict[str, Any]) -> None:
    counted = step(count)

    @tool(approval_mode="never_require", **options)
    async def fail() -> str:
        """Count, and fail."""
        await counted()
        count()
        raise ValueError("no")

    agent = Agent(ScriptedChatClient([[ToolCall("fail")], "done"]), name="clumsy", tools=[fail])

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await agent.run("go")
        seen = ctx.get_state("n")
        await ctx.request_info("well?", bool)
        return seen, ctx.get_state("n")

    await counts.run("go", run_id="r", checkpoint_storage=storage)
    last = await counts.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [(None, None)]


def test_a_rank_that_was_recorded_with_a_number_is_read_and_compared() -> None:
    old, older = StepOutcome(None, {}, {"n": (1, 12, "b")}), StepOutcome(None, {}, {"n": [1, 2, "a"]})
    assert old.rank("n") > older.rank("n")
    assert StepOutcome(None).rank("n") < older.rank("n")


def many_steps() -> Callable[[], Any]:
    """A step with steps in it."""

    @step
    async def small(number: int) -> int:
        return number

    @step
    async def large() -> int:
        return sum([await small(number) for number in range(5)])

    return large


def an_agent() -> Callable[[], Any]:
    """An agent whose tool has steps in it."""
    large = many_steps()

    @tool(approval_mode="never_require")
    async def work() -> str:
        """Work."""
        return str(await large())

    agent = Agent(ScriptedChatClient([[ToolCall("work")], "done"]), name="worker", tools=[work])
    return lambda: agent.run("go")


@pytest.mark.parametrize("begun", [many_steps, an_agent])
async def test_who_has_the_last_word_does_not_depend_on_what_was_recorded_before(
    storage: Storage, begun: Callable[[], Callable[[], Any]]
) -> None:
    before = begun()

    @step
    async def put(text: str, ctx: RunContext) -> None:
        ctx.set_state("word", text)

    @workflow
    async def words(_: str, ctx: RunContext) -> Any:
        async def later() -> None:
            await ctx.request_info("a day later?", bool)
            await put("later")

        await before()
        await asyncio.gather(later(), put("now"))
        return ctx.get_state("word")

    first = await words.run("go", run_id="r", checkpoint_storage=storage)
    assert first.get_request_info_events()
    last = await words.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == ["later"]
