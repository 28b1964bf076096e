"""Sequential participants: their inputs, the outputs, and an early end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.orchestrations.chain_team import Shouter, team, told

from perdure import (
    DEFAULT_MAX_ITERATIONS,
    Agent,
    AgentExecutorResponse,
    AgentResponse,
    AgentResponseUpdate,
    Executor,
    Message,
    SqliteCheckpointStorage,
    TypeCompatibilityError,
    WorkflowContext,
    WorkflowConvergenceException,
    WorkflowRunState,
    handler,
    tool,
)
from perdure.orchestrations import SequentialBuilder, TextMentioned
from perdure.testing import ScriptedChatClient, ToolCall


async def test_each_agent_is_told_all_that_was_said_and_the_last_one_answers() -> None:
    cast = team(writer=["A line."], critic=["Too short."], editor=["A longer line."])
    workflow = SequentialBuilder(participants=cast.agents).build()
    result = await workflow.run("Write.")
    assert told(result) == [("editor", "A longer line.")]
    assert cast.told("editor") == [["Write.", "A line.", "Too short."]]
    assert list(workflow.executors) == ["input-conversation", "writer", "critic", "editor"]


async def test_only_the_last_answer_goes_on_where_that_is_wanted() -> None:
    cast = team(writer=["A line."], critic=["Too short."], editor=["A longer line."])
    await SequentialBuilder(participants=cast.agents, chain_only_agent_responses=True).build().run("Write.")
    assert cast.told("critic") == [["A line."]]
    assert cast.told("editor") == [["Too short."]]


@pytest.mark.parametrize("is_reviewed", [False, True])
@pytest.mark.parametrize("chained", [False, True])
async def test_a_user_message_follows_the_words_of_the_agent_before_where_that_is_wanted(
    *, chained: bool, is_reviewed: bool
) -> None:
    cast = team(writer=["A line."], critic=["Too short."])
    builder = SequentialBuilder(
        participants=cast.agents, ensure_trailing_user_turn=True, chain_only_agent_responses=chained
    )
    workflow = (builder.with_request_info(agents=["critic"]) if is_reviewed else builder).build()
    result = await workflow.run("Write.")
    earlier = [] if chained else ["Write."]
    assert cast.told("writer") == [["Write."]]
    assert cast.told("critic") == [[*earlier, "A line.", "please continue."]]
    for request in result.get_request_info_events():
        assert "please continue." not in [message.text for message in request.data.full_conversation]


@pytest.mark.parametrize("said", ["Write.", Message("user", ["Write."]), ["Write.", Message("user", ["Now."])]])
async def test_it_begins_with_a_text_a_message_or_several(said: Any) -> None:
    cast = team(writer=["A line."])
    result = await SequentialBuilder(participants=cast.agents).build().run(said)
    assert told(result) == [("writer", "A line.")]
    assert cast.told("writer")[0][0] == "Write."


@pytest.mark.parametrize("stream", [False, True])
async def test_words_equal_to_ones_own_are_heard_in_the_next_turn(*, stream: bool) -> None:
    cast = team(writer=["Yes.", "Yes."], critic=["Yes.", "No."])
    agent = SequentialBuilder(participants=cast.agents).build().as_agent(name="press")
    session = agent.create_session()
    for message in ("Good?", "Really?"):
        response = agent.run(message, session=session, stream=stream)
        await (response.get_final_response() if stream else response)
    assert cast.told("writer") == [["Good?"], ["Good?", "Yes.", "Yes.", "Really?"]]
    assert cast.told("critic") == [["Good?", "Yes."], ["Good?", "Yes.", "Yes.", "Really?", "Yes."]]


async def test_a_stream_has_the_words_of_the_last_one_as_they_come() -> None:
    cast = team(writer=["A line."], critic=["Too short for me."])
    stream = SequentialBuilder(participants=cast.agents).build().run("Write.", stream=True)
    outputs = [event async for event in stream if event.type == "output"]
    assert {event.executor_id for event in outputs} == {"critic"}
    assert all(isinstance(event.data, AgentResponseUpdate) for event in outputs)
    assert len(outputs) > 1
    assert "".join(event.data.text for event in outputs) == "Too short for me."


async def test_others_outputs_are_told_where_the_program_names_them() -> None:
    cast = team(writer=["A line."], critic=["Too short."])
    every = await SequentialBuilder(participants=cast.agents, output_from="all").build().run("Write.")
    assert told(every) == [("writer", "A line."), ("critic", "Too short.")]
    cast = team(writer=["A line."], critic=["Too short."])
    builder = SequentialBuilder(participants=cast.agents, output_from=["critic"], intermediate_output_from="all_other")
    parted = await builder.build().run("Write.")
    assert told(parted) == [("critic", "Too short.")]
    assert told(parted, "intermediate") == [("writer", "A line.")]


async def test_executors_take_part_beside_agents() -> None:
    cast = team(writer=["A line."], critic=["Too loud."])
    writer, critic = cast.agents
    result = await SequentialBuilder(participants=[writer, Shouter("loud"), critic]).build().run("Write.")
    assert told(result) == [("critic", "Too loud.")]
    assert cast.told("critic") == [["Write.", "A line.", "A LINE."]]
    result = await SequentialBuilder(participants=[writer, Shouter("loud")]).build().run("Write.")
    assert told(result) == [("loud", "A LINE.")]


@dataclass
class Number:
    """Nothing that an agent could be told."""

    value: int


class Counter(Executor):
    """A participant whose answer nobody can take."""

    @handler
    async def count(self, said: list[Message], ctx: WorkflowContext[Number]) -> None:
        await ctx.send_message(Number(len(said)))


@pytest.mark.parametrize("condition", [None, TextMentioned("STOP")])
def test_a_participant_that_can_not_take_what_comes_is_refused_when_it_is_built(condition: Any) -> None:
    builder = SequentialBuilder(
        participants=[Counter("counter"), *team(writer=["x"]).agents], termination_condition=condition
    )
    with pytest.raises(TypeCompatibilityError):
        builder.build()


def test_its_name_is_the_same_in_every_process_unless_it_is_given_one() -> None:
    def build(**more: Any) -> str:
        return SequentialBuilder(participants=team(writer=["x"], critic=["y"]).agents, **more).build().name

    assert build() == build()
    assert build(name="press") == "press"


def test_a_builder_can_build_more_than_once() -> None:
    builder = SequentialBuilder(participants=team(writer=["x"], critic=["y"]).agents)
    assert builder.build() is not builder.build()


async def test_the_others_have_no_turn_when_the_conversation_is_over() -> None:
    cast = team(writer=["A line. STOP"], critic=["Too short."], editor=["A longer line."])
    builder = SequentialBuilder(participants=cast.agents, termination_condition=TextMentioned("STOP"))
    result = await builder.build().run("Write.")
    assert told(result) == [("after-writer", "A line. STOP")]
    assert cast.told("critic") == []
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_stream_is_told_updates_when_the_conversation_is_over() -> None:
    cast = team(writer=["A line. STOP"], critic=["Too short."])
    builder = SequentialBuilder(participants=cast.agents, termination_condition=TextMentioned("STOP"))
    outputs = [event async for event in builder.build().run("Write.", stream=True) if event.type == "output"]
    assert [(event.executor_id, type(event.data)) for event in outputs] == [("after-writer", AgentResponseUpdate)]
    assert outputs[0].data.text == "A line. STOP"


async def test_a_conversation_that_is_not_over_goes_to_its_end() -> None:
    cast = team(writer=["A line."], critic=["Too short. STOP"])
    builder = SequentialBuilder(participants=cast.agents).with_termination_condition(TextMentioned("STOP"))
    result = await builder.build().run("Write.")
    assert told(result) == [("critic", "Too short. STOP")]
    assert cast.told("critic") == [["Write.", "A line."]]


async def test_an_output_that_was_told_is_not_told_again_as_the_end() -> None:
    cast = team(writer=["A line. STOP"], critic=["Too short."])
    builder = SequentialBuilder(
        participants=cast.agents, termination_condition=TextMentioned("STOP"), output_from="all"
    )
    assert told(await builder.build().run("Write.")) == [("writer", "A line. STOP")]


async def test_a_judge_that_decides_about_the_end_may_be_asked_in_the_condition() -> None:
    judge = Agent(ScriptedChatClient(["no", "yes"]), name="judge")

    async def is_good(conversation: list[Message]) -> bool:
        verdict = await judge.run(conversation[-1].text)
        return verdict.text == "yes" or len(conversation) > 2

    cast = team(writer=["A line."], critic=["Fine."], editor=["A longer line."])
    builder = SequentialBuilder(participants=cast.agents, termination_condition=is_good)
    assert told(await builder.build().run("Write.")) == [("after-critic", "Fine.")]


class Summary(Executor):
    """A participant that sends a conversation, and no response."""

    @handler
    async def sum_up(self, said: AgentExecutorResponse, ctx: WorkflowContext[list[Message]]) -> None:
        await ctx.send_message([Message("assistant", [f"{len(said.full_conversation)} messages, STOP"])])


async def test_what_an_executor_says_last_is_the_output_of_an_early_end() -> None:
    cast = team(writer=["A line."], critic=["Too short."])
    writer, critic = cast.agents
    builder = SequentialBuilder(
        participants=[writer, Summary("summary"), critic], termination_condition=TextMentioned("STOP")
    )
    assert told(await builder.build().run("Write.")) == [("after-summary", "2 messages, STOP")]


def test_a_condition_is_a_function() -> None:
    wrong: Any = "STOP"
    with pytest.raises(TypeError, match="a termination condition must be a function"):
        SequentialBuilder(participants=team(writer=["x"]).agents, termination_condition=wrong)


@tool(approval_mode="always_require", if_interrupted="rerun")
def publish(text: str) -> str:
    """Publish a text."""
    return f"published {text}"


async def test_a_tool_of_the_first_is_approved_before_the_second_has_its_turn(tmp_path: Any) -> None:
    cast = team([publish], writer=[ToolCall("publish", text="A line."), "It is out."], critic=["Good."])

    def build() -> Any:
        storage = SqliteCheckpointStorage(tmp_path / "runs.db")
        return SequentialBuilder(participants=cast.agents, checkpoint_storage=storage).build()

    asked = await build().run("Write.", run_id="r")
    (request,) = asked.get_request_info_events()
    assert (request.source_executor_id, request.data.function_call.name) == ("writer", "publish")
    assert cast.told("critic") == []
    answers = {request.request_id: request.data.to_function_approval_response(approved=True)}
    result = await build().run(run_id="r", responses=answers)
    assert told(result) == [("critic", "Good.")]
    assert len(cast.told("writer")) == 2


async def test_a_sequence_is_an_agent_for_others() -> None:
    cast = team(writer=["A line."], critic=["Too short."])
    answer = await SequentialBuilder(participants=cast.agents).build().as_agent("press").run("Write.")
    assert isinstance(answer, AgentResponse)
    assert answer.text == "Too short."


async def test_a_sequence_begins_with_a_message() -> None:
    with pytest.raises(ValueError, match="the list of messages is empty"):
        await SequentialBuilder(participants=team(ada=["Hi."]).agents).build().run([])


async def test_all_of_a_long_sequence_have_their_turn_unless_its_supersteps_are_limited() -> None:
    shouters = [Shouter(f"shouter-{number}") for number in range(DEFAULT_MAX_ITERATIONS)]
    participants = [*team(ada=["hi"]).agents, *shouters]
    result = await SequentialBuilder(participants=participants).build().run("Talk.")
    assert told(result) == [(shouters[-1].id, "HI")]
    with pytest.raises(WorkflowConvergenceException, match="within 2 supersteps"):
        await SequentialBuilder(participants=participants, max_iterations=2).build().run("Talk.")
