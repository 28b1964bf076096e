"""Concurrent participants: their inputs, and the aggregation of their answers."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never, cast

import pytest
from tests.orchestrations.chain_team import team, told

from perdure import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    Message,
    SqliteCheckpointStorage,
    WorkflowContext,
    WorkflowConvergenceException,
    handler,
    tool,
)
from perdure.orchestrations import ConcurrentBuilder
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_all_are_told_the_same_and_the_last_words_of_each_are_the_answer() -> None:
    cast = team(law=["It is legal."], market=["People want it."], cost=["It is cheap."])
    workflow = ConcurrentBuilder(participants=cast.agents).build()
    result = await workflow.run("Lamps?")
    (output,) = [event for event in result if event.type == "output"]
    assert output.executor_id == "aggregator"
    assert [(message.author_name, message.text) for message in output.data.messages] == [
        ("law", "It is legal."),
        ("market", "People want it."),
        ("cost", "It is cheap."),
    ]
    assert [cast.told(name) for name in ("law", "market", "cost")] == [[["Lamps?"]]] * 3
    assert list(workflow.executors) == ["dispatcher", "law", "market", "cost", "aggregator"]


@pytest.mark.parametrize(
    "said",
    ["Lamps?", Message("user", ["Lamps?"]), ["Lamps?"], AgentExecutorRequest([Message("user", ["Lamps?"])])],
    ids=["text", "message", "messages", "request"],
)
async def test_it_begins_with_a_text_a_message_several_or_a_request(said: Any) -> None:
    cast = team(law=["It is legal."], cost=["It is cheap."])
    await ConcurrentBuilder(participants=cast.agents).build().run(said)
    assert cast.told("cost") == [["Lamps?"]]


@pytest.mark.parametrize("limit", [1, 2, None])
async def test_only_so_many_work_at_the_same_time(limit: int | None) -> None:
    names = [f"expert{number}" for number in range(5)]
    expected, working, most = limit or len(names), 0, 0
    is_full = asyncio.Event()

    async def work(_: Any, __: Any) -> str:
        nonlocal working, most
        working += 1
        most = max(most, working)
        if working == expected:
            is_full.set()
        await is_full.wait()
        working -= 1
        return "Done."

    cast = team(**dict.fromkeys(names, work))
    result = await ConcurrentBuilder(participants=cast.agents, max_concurrency=limit).build().run("Lamps?")
    assert [message.author_name for message in result.get_outputs()[0].messages] == names
    assert most == expected
    with pytest.raises(ValueError, match="max_concurrency must be 1 or more"):
        ConcurrentBuilder(participants=cast.agents, max_concurrency=0).build()


async def test_a_stream_has_one_answer_too() -> None:
    board = team(law=["It is legal."], cost=["It is cheap."])
    stream = ConcurrentBuilder(participants=board.agents).build().run("Lamps?", stream=True)
    (answer,) = [event.data async for event in stream if event.type == "output"]
    assert isinstance(answer, AgentResponse)
    assert [message.text for message in cast("AgentResponse[Any]", answer).messages] == ["It is legal.", "It is cheap."]


async def test_outputs_of_participants_are_told_beside_the_aggregators() -> None:
    cast = team(law=["It is legal."], cost=["It is cheap."])
    builder = ConcurrentBuilder(participants=cast.agents, output_from=["law"], intermediate_output_from=["cost"])
    result = await builder.build().run("Lamps?")
    assert told(result) == [("law", "It is legal."), ("aggregator", "It is legal.It is cheap.")]
    assert told(result, "intermediate") == [("cost", "It is cheap.")]


@dataclass
class Verdict:
    """Result of the program's own aggregator."""

    words: list[str]


def words_of(results: list[AgentExecutorResponse]) -> list[str]:
    return [result.agent_response.text for result in results]


def judge(results: list[AgentExecutorResponse]) -> Verdict:
    return Verdict([*words_of(results), threading.current_thread().name])


async def judge_later(results: list[AgentExecutorResponse]) -> Verdict:
    return Verdict(words_of(results))


async def judge_aloud(results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, Verdict]) -> None:
    await ctx.yield_output(Verdict(words_of(results)))


def judge_and_keep(results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, Verdict]) -> Verdict:
    ctx.set_state("judged", len(results))
    return Verdict(words_of(results))


FUNCTIONS: list[
    tuple[
        Callable[[list[AgentExecutorResponse]], Any]
        | Callable[[list[AgentExecutorResponse], WorkflowContext[Never, Any]], Any],
        str,
    ]
] = [
    (judge_later, "judge_later"),
    (judge_aloud, "judge_aloud"),
    (judge_and_keep, "judge_and_keep"),
    (lambda results: Verdict(words_of(results)), "_CallbackAggregator_unnamed"),
    (lambda results: judge_later([*results]), "_CallbackAggregator_unnamed"),
    (functools.partial(judge_later), "_CallbackAggregator_unnamed"),
    (lambda results, ctx: ctx.yield_output(Verdict(words_of(results))), "_CallbackAggregator_unnamed"),
]


@pytest.mark.parametrize(("function", "name"), FUNCTIONS)
async def test_a_function_makes_the_answer(function: Any, name: str, tmp_path: Any) -> None:
    cast = team(law=["It is legal."], cost=["It is cheap."])

    def build() -> Any:
        storage = SqliteCheckpointStorage(tmp_path / "runs.db")
        builder = ConcurrentBuilder(participants=cast.agents, checkpoint_storage=storage)
        return builder.with_aggregator(function).build()

    workflow = build()
    assert name in workflow.executors
    assert (await workflow.run("Lamps?", run_id="r")).get_outputs() == [Verdict(["It is legal.", "It is cheap."])]
    # The type of the answer is the program's own, and is read again by one that has only the builder.
    assert (await build().run("Lamps?", run_id="r")).get_outputs() == [Verdict(["It is legal.", "It is cheap."])]


async def test_a_plain_function_does_not_hold_up_the_others() -> None:
    cast = team(law=["It is legal."], cost=["It is cheap."])
    builder = ConcurrentBuilder(participants=cast.agents).with_aggregator(judge)
    (verdict,) = (await builder.build().run("Lamps?")).get_outputs()
    assert verdict.words[-1] != threading.main_thread().name


async def test_a_function_that_makes_nothing_tells_nothing() -> None:
    heard: list[str] = []
    cast = team(law=["It is legal."], cost=["It is cheap."])
    builder = ConcurrentBuilder(participants=cast.agents)
    builder.with_aggregator(lambda results: heard.extend(words_of(results)))
    assert (await builder.build().run("Lamps?")).get_outputs() == []
    assert heard == ["It is legal.", "It is cheap."]


class Chair(Executor):
    """An aggregator that is an executor."""

    @handler
    async def close(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(" ".join(words_of(results)))


async def test_an_executor_makes_the_answer() -> None:
    cast = team(law=["It is legal."], cost=["It is cheap."])
    builder = ConcurrentBuilder(participants=cast.agents).with_aggregator(Chair("chair"))
    result = await builder.build().run("Lamps?")
    assert [(event.executor_id, event.data) for event in result if event.type == "output"] == [
        ("chair", "It is legal. It is cheap.")
    ]


def test_there_is_one_aggregator() -> None:
    builder = ConcurrentBuilder(participants=team(law=["x"], cost=["y"]).agents)
    wrong: Any = "chair"
    with pytest.raises(TypeError, match="an executor or a function of the results, not 'chair'"):
        builder.with_aggregator(wrong)
    builder.with_aggregator(Chair("chair"))
    with pytest.raises(ValueError, match="the aggregator 'chair' is already set"):
        builder.with_aggregator(judge)


def test_one_alone_is_not_side_by_side() -> None:
    with pytest.raises(ValueError, match="at least two participants"):
        ConcurrentBuilder(participants=team(law=["x"]).agents)


class Oracle(Executor):
    """A participant that is no agent."""

    @handler
    async def answer(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorResponse]) -> None:
        said = [] if self.id == "mute" else [Message("assistant", ["Perhaps."])]
        await ctx.send_message(AgentExecutorResponse(self.id, AgentResponse(messages=said), request.messages))


async def test_executors_take_part_beside_agents() -> None:
    cast = team(law=["It is legal."])
    workflow = ConcurrentBuilder(participants=[Oracle("oracle"), *cast.agents, Oracle("mute")]).build()
    assert told(await workflow.run("Lamps?")) == [("aggregator", "Perhaps.It is legal.")]


class AllMute(Oracle):
    """Says nothing under any name."""

    @handler
    async def answer(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorResponse]) -> None:
        await ctx.send_message(AgentExecutorResponse(self.id, AgentResponse(messages=[]), request.messages))


async def test_nothing_can_not_be_put_together() -> None:
    workflow = ConcurrentBuilder(participants=[AllMute("one"), AllMute("two")]).build()
    with pytest.raises(RuntimeError, match="participants 'one', 'two' answered without any message"):
        await workflow.run("Lamps?")


def test_its_name_is_the_same_in_every_process_unless_it_is_given_one() -> None:
    def build(**more: Any) -> str:
        return ConcurrentBuilder(participants=team(law=["x"], cost=["y"]).agents, **more).build().name

    assert build() == build()
    assert build(name="board") == "board"


@tool(approval_mode="always_require", if_interrupted="rerun")
def pay(amount: int) -> str:
    """Pay so much."""
    return f"paid {amount}"


async def test_tools_of_several_are_approved_at_different_times(tmp_path: Any) -> None:
    script = {name: [ToolCall("pay", amount=place), "Done."] for place, name in enumerate(("law", "cost"), start=1)}
    cast = team([pay], **script)
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")

    def build() -> Any:
        return ConcurrentBuilder(participants=cast.agents, checkpoint_storage=storage).build()

    asked = (await build().run("Lamps?", run_id="r")).get_request_info_events()
    assert {event.source_executor_id for event in asked} == {"law", "cost"}
    first, second = sorted(asked, key=lambda event: event.source_executor_id or "")
    result = await build().run(run_id="r", responses={first.request_id: True})
    assert told(result) == []
    result = await build().run(run_id="r", responses={second.request_id: False})
    assert told(result) == [("aggregator", "Done.Done.")]


async def test_an_answer_that_a_function_has_made_is_not_made_again(tmp_path: Any) -> None:
    made: list[int] = []

    def count(results: list[AgentExecutorResponse]) -> int:
        made.append(len(results))
        return len(results)

    def build() -> Any:
        model = ScriptedChatClient(["Yes."])
        agents = [model.as_agent(name=name) for name in ("law", "cost")]
        storage = SqliteCheckpointStorage(tmp_path / "runs.db")
        return ConcurrentBuilder(participants=agents, checkpoint_storage=storage).with_aggregator(count).build()

    for _ in range(2):
        assert (await build().run("Lamps?", run_id="r")).get_outputs() == [2]
    assert made == [2]


async def test_participants_side_by_side_are_asked_something() -> None:
    builder = ConcurrentBuilder(participants=team(ada=["Hi."], bob=["Ho."]).agents, max_iterations=2)
    with pytest.raises(ValueError, match="the list of messages is empty"):
        await builder.build().run([])
    with pytest.raises(WorkflowConvergenceException, match="within 2 supersteps"):
        await builder.build().run("Talk.")
