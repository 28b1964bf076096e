"""What a function asks is answered whenever, from anywhere, once; then it goes on where it was."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never

import pytest

from perdure import (
    AlreadyAnsweredError,
    ApprovalMismatchError,
    Executor,
    InMemoryCheckpointStorage,
    RunContext,
    StepMismatchError,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    handler,
    step,
    workflow,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure import WorkflowRunResult
    from perdure.storage import StoreStorage as Storage

made: list[str] = []


@step
async def draft(topic: str) -> str:
    """Work before the question."""
    made.append("draft")
    return f"a draft on {topic}"


@step
async def review(text: str, ctx: RunContext) -> str:
    """A step that asks."""
    made.append("review")
    return f"{text}, {await ctx.request_info({'text': text}, str)}"


@workflow
async def article(topic: str, ctx: RunContext) -> str:
    """Two questions, one after the other."""
    text = await draft(topic)
    verdict = await ctx.request_info({"draft": text}, str)
    title = await ctx.request_info("and its title?", str)
    return f"{title}: {text}, {verdict}"


@workflow
async def reviewed(topic: str) -> str:
    """A question inside of a step."""
    return await review(await draft(topic))


@workflow
async def panel(topic: str, ctx: RunContext) -> str:
    """Two questions at once; behind the second there is work to do."""

    async def second() -> str:
        return await draft(await ctx.request_info(f"and on {topic}?", str))

    return ", ".join(await asyncio.gather(ctx.request_info(f"on {topic}?", str), second()))


@pytest.fixture(autouse=True)
def forget() -> None:
    """Nothing was made."""
    made.clear()


def ids(result: WorkflowRunResult) -> list[str]:
    """What was asked."""
    return [event.request_id for event in result.get_request_info_events()]


async def test_without_a_storage_the_instance_goes_on_with_the_answer() -> None:
    first = await article.run("owls")
    assert first.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert ids(first) == ["auto::0"]
    assert ids(await article.run(responses={"auto::0": "good"})) == ["auto::1"]
    last = await article.run(responses={"auto::1": "Night"})
    assert last.get_outputs() == ["Night: a draft on owls, good"]
    assert made == ["draft"]


async def test_answers_may_be_given_again_but_not_otherwise() -> None:
    await article.run("owls")
    await article.run(responses={"auto::0": "good"})
    with pytest.raises(AlreadyAnsweredError):
        await article.run(responses={"auto::0": "bad", "auto::1": "Night"})
    last = await article.run(responses={"auto::0": "good", "auto::1": "Night"})
    assert last.get_outputs() == ["Night: a draft on owls, good"]


async def test_another_instance_goes_on_from_the_store(storage: Storage) -> None:
    await article.run("owls", run_id="r", checkpoint_storage=storage)
    second = await article.twin().run(run_id="r", responses={"auto::0": "good"}, checkpoint_storage=storage)
    assert ids(second) == ["auto::1"]
    newest = await storage.get_latest(workflow_name="article")
    assert newest is not None
    third = await article.twin().run(
        checkpoint_id=newest.checkpoint_id, responses={"auto::1": "Night"}, checkpoint_storage=storage
    )
    assert third.get_outputs() == ["Night: a draft on owls, good"]
    assert made == ["draft"]


async def test_who_has_only_the_store_can_answer(storage: Storage) -> None:
    await article.run("owls", run_id="r", checkpoint_storage=storage)
    (asked,) = await storage.requests("r")
    assert asked.data == {"draft": "a draft on owls"}
    await storage.respond("r", {asked.request_id: "good"}, by="Ada")
    assert ids(await article.twin().run(run_id="r", checkpoint_storage=storage))[-1] == "auto::1"


async def test_a_step_that_asks_is_begun_again(storage: Storage) -> None:
    first = await reviewed.run("owls", run_id="r", checkpoint_storage=storage)
    assert ids(first) == ["auto::0"]
    last = await reviewed.twin().run(run_id="r", responses={"auto::0": "good"}, checkpoint_storage=storage)
    assert last.get_outputs() == ["a draft on owls, good"]
    assert made == ["draft", "review", "review"]


async def test_a_step_that_must_not_be_begun_again_can_not_ask(storage: Storage) -> None:
    @step(if_interrupted="ask")
    async def charge(ctx: RunContext) -> None:
        await ctx.request_info("may I?", bool)

    @workflow
    async def till(_: str) -> None:
        await charge()

    with pytest.raises(RuntimeError, match="must not be started again"):
        await till.run("go", checkpoint_storage=storage)


async def test_work_behind_one_question_does_not_wait_for_another(storage: Storage) -> None:
    first = await panel.run("owls", run_id="r", checkpoint_storage=storage)
    assert ids(first) == ["auto::0", "auto::1"]
    second = await panel.twin().run(run_id="r", responses={"auto::1": "mice"}, checkpoint_storage=storage)
    assert second.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert made == ["draft"]
    last = await panel.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert last.get_outputs() == ["yes, a draft on mice"]
    assert made == ["draft"]


async def test_a_loop_over_the_questions_of_each_result_answers_all() -> None:
    @workflow
    async def both(_: str, ctx: RunContext) -> list[str]:
        return list(await asyncio.gather(ctx.request_info("one", str), ctx.request_info("other", str)))

    result, asked = await both.run("go"), list[list[str]]()
    while requests := result.get_request_info_events():
        asked.append([event.request_id for event in requests])
        result = await both.run(responses={asked[-1][-1]: "yes"})
    assert asked == [["auto::0", "auto::1"], ["auto::0"]]
    assert result.get_outputs() == [["yes", "yes"]]


async def test_a_request_id_of_ones_own_is_used() -> None:
    @workflow
    async def named(_: str, ctx: RunContext) -> str:
        return await ctx.request_info("well?", str, request_id="the-one")

    assert ids(await named.run("go")) == ["the-one"]
    assert (await named.run(responses={"the-one": "yes"})).get_outputs() == ["yes"]


async def test_the_default_stands_when_the_deadline_has_passed() -> None:
    clock, storage = ManualClock(), InMemoryCheckpointStorage()

    @workflow(clock=clock)
    async def patient(_: str, ctx: RunContext) -> str:
        return await ctx.request_info("well?", str, deadline=timedelta(hours=1), default="nobody said")

    await patient.run("go", run_id="r", checkpoint_storage=storage)
    clock.advance(timedelta(hours=2))
    result = await patient.run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == ["nobody said"]


async def test_an_approval_covers_what_was_shown_and_nothing_else(storage: Storage) -> None:
    amount = [100]

    @workflow
    async def payment(_: str, ctx: RunContext) -> str:
        await ctx.request_info("pay?", bool, approves={"amount": amount[0]})
        return f"paid {amount[0]}"

    await payment.run("go", run_id="r", checkpoint_storage=storage)
    amount[0] = 200
    with pytest.raises(ApprovalMismatchError):
        await payment.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    amount[0] = 100
    result = await payment.twin().run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == ["paid 100"]


async def test_an_answer_is_not_used_for_a_question_that_has_changed_since(storage: Storage) -> None:
    wording = ["good?"]

    @workflow
    async def editor(_: str, ctx: RunContext) -> str:
        return await ctx.request_info(wording[0], str)

    await editor.run("go", run_id="r", checkpoint_storage=storage)
    wording[0] = "is it good?"
    with pytest.raises(StepMismatchError, match="was recorded with another question"):
        await editor.run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    wording[0] = "good?"
    result = await editor.run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == ["yes"]


async def test_a_question_with_an_id_may_be_worded_otherwise(storage: Storage) -> None:
    wording = ["good?"]

    @workflow
    async def editor(_: str, ctx: RunContext) -> str:
        return await ctx.request_info(wording[0], str, request_id="verdict")

    await editor.run("go", run_id="r", checkpoint_storage=storage)
    wording[0] = "is it good?"
    result = await editor.run(run_id="r", responses={"verdict": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == ["yes"]


async def test_equal_questions_that_are_open_in_two_subtasks_are_refused(storage: Storage) -> None:
    @workflow
    async def panel(_: str, ctx: RunContext) -> list[str]:
        async def ask() -> str:
            return await ctx.request_info("good?", str)

        return list(await asyncio.gather(ask(), ask()))

    with pytest.raises(StepMismatchError, match="give each its own request_id"):
        await panel.run("go", run_id="r", checkpoint_storage=storage)


async def test_equal_questions_in_the_order_of_the_code_are_told_apart(storage: Storage) -> None:
    @workflow
    async def panel(_: str, ctx: RunContext) -> list[str]:
        both = await asyncio.gather(ctx.request_info("good?", str), ctx.request_info("good?", str))
        return [*both, await ctx.request_info("good?", str)]

    answers = {"auto::0": "first", "auto::1": "second"}
    await panel.run("go", run_id="r", checkpoint_storage=storage)
    await panel.twin().run(run_id="r", responses=answers, checkpoint_storage=storage)
    result = await panel.twin().run(run_id="r", responses={"auto::2": "third"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["first", "second", "third"]]


async def test_the_questions_of_a_workflow_inside_of_another_reach_the_outside() -> None:
    class Boss(Executor):
        @handler
        async def hear(self, text: str, ctx: WorkflowContext[str, str]) -> None:
            if text.startswith("a draft"):
                await ctx.yield_output(text)
            else:
                await ctx.send_message(text)

    boss = Boss("boss")
    child = WorkflowExecutor(reviewed.twin(), id="child", propagate_request=True)
    builder = WorkflowBuilder(start_executor=boss, checkpoint_storage=InMemoryCheckpointStorage())
    team = builder.add_edge(boss, child).add_edge(child, boss).build()
    (request_id,) = ids(await team.run("owls"))
    assert (await team.run(responses={request_id: "good"})).get_outputs() == ["a draft on owls, good"]
    assert made == ["draft", "review", "review"]


async def test_a_handler_of_any_graph_can_ask_and_go_on(storage: Storage) -> None:
    class Clerk(Executor):
        @handler
        async def file(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            written = await ctx.step("write", draft, text)
            await ctx.yield_output(f"{written}: {await ctx.ask('well?', str)}, {await ctx.ask('well?', str)}")

    def build() -> Any:
        return WorkflowBuilder(name="office", start_executor=Clerk("clerk"), checkpoint_storage=storage).build()

    (first,) = ids(await build().run("owls", run_id="r"))
    (second,) = ids(await build().run(run_id="r", responses={first: "yes"}))
    assert first != second
    result = await build().run(run_id="r", responses={second: "no"})
    assert result.get_outputs() == ["a draft on owls: yes, no"]
    assert made == ["draft"]
