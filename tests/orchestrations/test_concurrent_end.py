"""Concurrent participants with a termination condition: it can prevent all turns, or further turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.chain_team import team, told

from perdure import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    FileCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    WorkflowContext,
    WorkflowRunState,
    handler,
)
from perdure.orchestrations import AgentRequestInfoResponse, ConcurrentBuilder, MaxMessages, TextMentioned

if TYPE_CHECKING:
    from pathlib import Path

    from tests.orchestrations.chain_team import Team

    from perdure import Workflow, WorkflowRunResult

APPROVED = AgentRequestInfoResponse.approve()
MORE = AgentRequestInfoResponse.from_strings(["Think again."])
STOP = TextMentioned("stop", by="user")


def board(**scripts: Any) -> Team:
    return team(**{"law": ["It is legal."], "market": ["People want it."], "cost": ["It is cheap."], **scripts})


def asked(result: WorkflowRunResult) -> dict[str, str]:
    """The ids of the open requests, by who is asked about."""
    return {event.source_executor_id or "": event.request_id for event in result.get_request_info_events()}


@pytest.mark.parametrize(
    "said", ["stop", Message("user", ["stop"]), ["stop"], AgentExecutorRequest([Message("user", ["stop"])])]
)
async def test_nobody_is_asked_if_it_is_over_with_the_input(said: Any) -> None:
    cast = board()
    result = await ConcurrentBuilder(participants=cast.agents, termination_condition=STOP).build().run(said)
    assert told(result) == [("aggregator", "The conversation has reached its termination condition.")]
    assert cast.model.calls == []
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_all_are_asked_if_it_is_not_over() -> None:
    cast = board()
    workflow = ConcurrentBuilder(participants=cast.agents).with_termination_condition(STOP).build()
    assert told(await workflow.run("Lamps?")) == [("aggregator", "It is legal.People want it.It is cheap.")]
    assert len(cast.model.calls) == 3


def count(results: list[AgentExecutorResponse]) -> str:
    return f"{len(results)} answers"


class Counter(Executor):
    """An aggregator that is an executor."""

    @handler
    async def count(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(count(results))


@pytest.mark.parametrize("aggregator", [count, Counter("counter")])
async def test_an_aggregator_of_the_programs_own_is_given_no_answers(aggregator: Any) -> None:
    builder = ConcurrentBuilder(participants=board().agents, termination_condition=STOP).with_aggregator(aggregator)
    workflow = builder.build()
    assert (await workflow.run("stop")).get_outputs() == ["0 answers"]
    assert (await workflow.run("Lamps?")).get_outputs() == ["3 answers"]


async def test_a_condition_is_asked_about_the_input_and_after_each_answer_with_all_that_was_said() -> None:
    seen: list[list[str]] = []

    async def note(conversation: list[Message]) -> bool:
        seen.append([f"{message.author_name or message.role}: {message.text}" for message in conversation])
        return False

    cast = team(law=["It is legal.", "Still."], cost=["It is cheap.", "Still."])
    workflow = ConcurrentBuilder(participants=cast.agents, termination_condition=note).build()
    await workflow.run("Lamps?")
    first = ["user: Lamps?", "law: It is legal.", "cost: It is cheap."]
    assert seen == [first[:1], first[:2], first]
    await workflow.run("Really?")
    assert seen[3:] == [
        [*first, "user: Really?"],
        [*first, "user: Really?", "law: Still."],
        [*first, "user: Really?", "law: Still.", "cost: Still."],
    ]


async def test_answers_to_former_inputs_count() -> None:
    cast = board()
    workflow = ConcurrentBuilder(participants=cast.agents, termination_condition=MaxMessages(4)).build()
    assert told(await workflow.run("Lamps?")) == [("aggregator", "It is legal.People want it.It is cheap.")]
    assert told(await workflow.run("Really?")) == [
        ("aggregator", "The conversation has reached its termination condition.")
    ]


@pytest.mark.parametrize("kind", [FileCheckpointStorage, SqliteCheckpointStorage])
async def test_one_that_is_sent_back_once_it_is_over_does_not_speak_again(kind: type, tmp_path: Path) -> None:
    cast = board(law=["It is legal. DONE"], market=["People want it.", "Many want it."])

    def build() -> Workflow:
        builder = ConcurrentBuilder(
            participants=cast.agents,
            termination_condition=TextMentioned("DONE"),
            checkpoint_storage=kind(tmp_path / "runs"),
            output_from="all",
        )
        return builder.with_request_info().build()

    requests = asked(await build().run("Lamps?", run_id="r"))
    await build().run(run_id="r", responses={requests["law"]: APPROVED})
    # What is said last does not mention it; it was over before.
    await build().run(run_id="r", responses={requests["cost"]: APPROVED})
    last = await build().run(run_id="r", responses={requests["market"]: MORE})
    assert told(last) == [("aggregator", "It is legal. DONEIt is cheap.")]
    assert last.get_final_state() is WorkflowRunState.IDLE
    assert [len(cast.told(name)) for name in ("law", "market", "cost")] == [1, 1, 1]


async def test_one_that_is_sent_back_before_it_is_over_speaks_again() -> None:
    cast = team(law=["It is legal. DONE"], market=["People want it.", "Many want it."])
    builder = ConcurrentBuilder(participants=cast.agents, termination_condition=TextMentioned("DONE"))
    workflow = builder.with_request_info().build()
    requests = asked(await workflow.run("Lamps?"))
    again = asked(await workflow.run(responses={requests["market"]: MORE}))
    await workflow.run(responses={requests["law"]: APPROVED})
    result = await workflow.run(responses={again["market"]: APPROVED})
    assert told(result) == [("aggregator", "It is legal. DONEMany want it.")]


async def test_an_answer_that_did_not_pass_has_no_messages_and_its_agent_remembers_why() -> None:
    cast = team(law=["It is legal. DONE", "Still."], market=["People want it.", "Many want it."])
    given: list[list[AgentExecutorResponse]] = []

    async def keep(results: list[AgentExecutorResponse]) -> int:
        given.append(results)
        return len(results)

    builder = ConcurrentBuilder(participants=cast.agents, termination_condition=TextMentioned("DONE"))
    workflow = builder.with_request_info().with_aggregator(keep).build()
    requests = asked(await workflow.run("Lamps?"))
    await workflow.run(responses={requests["law"]: APPROVED})
    as_from_a_form: dict[str, Any] = {requests["market"]: {"messages": MORE.messages}}
    await workflow.run(responses=as_from_a_form)
    [[law, market]] = given
    assert (law.executor_id, law.agent_response.text) == ("law", "It is legal. DONE")
    assert (market.executor_id, market.agent_response.messages) == ("market", [])
    again = asked(await workflow.run("Really?"))
    assert sorted(again) == ["law", "market"]
    assert cast.told("market")[-1] == ["Lamps?", "People want it.", "Think again.", "Really?"]


async def test_a_board_can_begin_with_what_another_agent_has_said() -> None:
    cast = team(law=["It is legal."], cost=["It is cheap."])
    workflow = ConcurrentBuilder(participants=cast.agents, termination_condition=STOP).build()
    before = AgentResponse(messages=[Message("assistant", ["Lamps?"], author_name="writer")])
    result = await workflow.run(AgentExecutorResponse("writer", before, before.messages))
    assert told(result) == [("aggregator", "It is legal.It is cheap.")]
    assert cast.told("law") == [["Lamps?"]]


def test_a_condition_is_a_function() -> None:
    wrong: Any = 7
    with pytest.raises(TypeError, match="a termination condition must be a function of the conversation, not 7"):
        ConcurrentBuilder(participants=board().agents, termination_condition=wrong)
