"""Reviews by a person after each turn, in any process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.chain_team import Shouter, team, told

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    AnswerTypeError,
    Content,
    FunctionInvocationContext,
    InMemoryCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    WorkflowAgent,
    WorkflowRunState,
    tool,
)
from perdure.orchestrations import (
    AgentRequestInfoResponse,
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffBuilder,
    SequentialBuilder,
    TextMentioned,
)
from perdure.testing import ToolCall
from perdure.testing.crash import sweep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.orchestrations.chain_team import Team

    from perdure import Agent, Workflow, WorkflowEvent, WorkflowRunResult
    from perdure.storage import StoreStorage

APPROVED = AgentRequestInfoResponse.approve()


def asked(result: WorkflowRunResult) -> dict[str, WorkflowEvent[Any]]:
    """The open requests, by who is asked about."""
    return {event.source_executor_id or "": event for event in result.get_request_info_events()}


def press(**scripts: Any) -> Team:
    return team(**(scripts or {"writer": ["A line.", "A longer line."], "critic": ["Too short.", "Good."]}))


async def test_a_person_is_asked_after_each_turn_and_lets_it_pass() -> None:
    cast = press()
    workflow = SequentialBuilder(participants=cast.agents).with_request_info().build()
    first = await workflow.run("Write.")
    assert first.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    (request,) = first.get_request_info_events()
    assert isinstance(request.data, AgentExecutorResponse)
    assert (request.source_executor_id, request.response_type) == ("writer", AgentRequestInfoResponse)
    assert (request.data.executor_id, request.data.agent_response.text) == ("writer", "A line.")
    assert cast.told("critic") == []
    second = await workflow.run(responses={request.request_id: APPROVED})
    assert told(second) == []
    third = await workflow.run(responses={asked(second)["critic"].request_id: APPROVED})
    assert told(third) == [("critic", "Too short.")]
    assert cast.told("critic") == [["Write.", "A line."]]


async def test_what_a_person_says_is_heard_by_the_agent_and_by_those_after_it() -> None:
    cast = press()
    workflow = SequentialBuilder(participants=cast.agents).with_request_info(agents=["writer"]).build()
    first = await workflow.run("Write.")
    more = AgentRequestInfoResponse.from_strings(["Longer.", "Please."])
    second = await workflow.run(responses={asked(first)["writer"].request_id: more})
    request = asked(second)["writer"]
    said = ["Write.", "A line.", "Longer.", "Please.", "A longer line."]
    assert [message.text for message in request.data.full_conversation] == said
    assert cast.told("writer")[-1] == said[:-1]
    third = await workflow.run(responses={request.request_id: APPROVED})
    assert cast.told("critic") == [said]
    assert told(third) == [("critic", "Too short.")]


async def test_a_second_task_begins_without_what_was_said_about_the_first() -> None:
    cast = press(writer=["A line.", "A longer line.", "Another line."])
    workflow = SequentialBuilder(participants=cast.agents).with_request_info().build()
    result = await workflow.run("Write.")
    for answer in (AgentRequestInfoResponse.from_messages([Message("user", ["Longer."])]), APPROVED):
        result = await workflow.run(responses={asked(result)["writer"].request_id: answer})
    assert told(result) == [("writer", "A longer line.")]
    again = asked(await workflow.run("Write again."))["writer"]
    assert [message.text for message in again.data.full_conversation] == ["Write again.", "Another line."]


async def test_only_the_last_answer_goes_on_after_a_person_has_let_it_pass() -> None:
    cast = press()
    builder = SequentialBuilder(participants=cast.agents, chain_only_agent_responses=True)
    workflow = builder.with_request_info(agents=[cast.agents[0]]).build()
    first = await workflow.run("Write.")
    await workflow.run(responses={asked(first)["writer"].request_id: APPROVED})
    assert cast.told("critic") == [["A line."]]


async def test_an_agent_hears_the_last_answer_alone_when_a_person_is_asked_about_it_too() -> None:
    cast = press()
    builder = SequentialBuilder(participants=cast.agents, chain_only_agent_responses=True)
    workflow = builder.with_request_info(agents=["critic"]).build()
    await workflow.run("Write.")
    assert cast.told("critic") == [["A line."]]


async def test_each_answer_may_be_given_to_another_process(tmp_path: Path) -> None:
    cast = press()

    def build() -> Workflow:
        storage = SqliteCheckpointStorage(tmp_path / "runs.db")
        return SequentialBuilder(participants=cast.agents, checkpoint_storage=storage).with_request_info().build()

    result = await build().run("Write.", run_id="r")
    answers = [AgentRequestInfoResponse.from_strings(["Longer."]), APPROVED, APPROVED]
    for answer in answers:
        (request,) = result.get_request_info_events()
        result = await build().run(run_id="r", responses={request.request_id: answer})
    assert told(result) == [("critic", "Too short.")]
    assert [len(cast.told(name)) for name in ("writer", "critic")] == [2, 1]


async def test_several_are_asked_about_at_once_and_answered_in_any_order(tmp_path: Path) -> None:
    cast = team(law=["It is legal."], market=["People want it.", "Many people want it."], cost=["It is cheap."])

    def build() -> Workflow:
        storage = SqliteCheckpointStorage(tmp_path / "runs.db")
        builder = ConcurrentBuilder(participants=cast.agents, checkpoint_storage=storage)
        return builder.with_request_info(agents=["market", "law"]).build()

    first = asked(await build().run("Lamps?", run_id="r"))
    assert sorted(first) == ["law", "market"]
    more = AgentRequestInfoResponse.from_strings(["How many?"])
    second = await build().run(run_id="r", responses={first["market"].request_id: more})
    again = second.get_request_info_events()[-1]
    assert again.data.agent_response.text == "Many people want it."
    third = await build().run(run_id="r", responses={again.request_id: APPROVED})
    assert told(third) == []
    last = await build().run(run_id="r", responses={first["law"].request_id: APPROVED})
    assert told(last) == [("aggregator", "It is legal.Many people want it.It is cheap.")]


async def test_an_answer_of_another_type_is_refused_and_the_person_may_answer_again() -> None:
    workflow = SequentialBuilder(participants=press().agents).with_request_info(agents=["writer"]).build()
    first = await workflow.run("Write.")
    request = asked(first)["writer"]
    with pytest.raises(AnswerTypeError):
        await workflow.run(responses={request.request_id: 7})
    assert told(await workflow.run(responses={request.request_id: APPROVED})) == [("critic", "Too short.")]


async def test_an_answer_may_be_a_dict_as_it_comes_from_a_form() -> None:
    workflow = SequentialBuilder(participants=press().agents).with_request_info(agents=["writer"]).build()
    first = await workflow.run("Write.")
    answers: dict[str, Any] = {asked(first)["writer"].request_id: {"messages": []}}
    assert told(await workflow.run(responses=answers)) == [("critic", "Too short.")]


@pytest.mark.parametrize("output_from", ["all", ["writer"]])
async def test_a_turn_that_has_passed_is_an_output_where_the_program_says_so(output_from: Any) -> None:
    workflow = SequentialBuilder(participants=press().agents, output_from=output_from).with_request_info().build()
    first = await workflow.run("Write.")
    assert told(first) == []
    second = await workflow.run(responses={asked(first)["writer"].request_id: APPROVED})
    assert told(second) == [("writer", "A line.")]


async def test_a_stream_shows_drafts_of_those_whose_outputs_are_intermediate() -> None:
    cast = press()
    builder = SequentialBuilder(participants=cast.agents, intermediate_output_from=["writer"]).with_request_info()
    workflow = builder.build()
    words: list[str] = []
    drafts: list[str] = []
    requests: list[str] = []
    async for event in workflow.run("Write.", stream=True):
        if event.type == "sub_workflow" and event.data.type == "intermediate":
            words.append(event.data.data.text)
        elif event.type == "intermediate":
            drafts.append(event.data.text)
        elif event.type == "request_info":
            requests.append(event.request_id)
    assert ("".join(words), drafts) == ("A line.", ["A line."])
    assert len(words) > 1
    told_after = [event async for event in workflow.run(responses={requests[0]: APPROVED}, stream=True)]
    passed = [event.data.text for event in told_after if event.type == "intermediate"]
    # The turn that has passed; and no draft of the critic, who is an output.
    assert passed == ["A line."]


def reviewed(pattern: str, cast: list[Agent[Any]]) -> Any:
    """A builder whose participants are outputs, all of them reviewed."""
    match pattern:
        case "sequential":
            return SequentialBuilder(participants=cast, output_from="all").with_request_info()
        case "concurrent":
            return ConcurrentBuilder(participants=cast, output_from="all").with_request_info()
        case "group chat":
            builder = GroupChatBuilder(participants=cast, selection_func="round_robin", max_rounds=2, output_from="all")
            return builder.with_request_info()
        case _:
            builder = HandoffBuilder(participants=cast, termination_condition=TextMentioned("Good.", by="critic"))
            return builder.with_start_agent("critic").with_request_info()


@pytest.mark.parametrize(
    ("pattern", "speakers"),
    [
        ("sequential", ["critic", "writer"]),
        ("concurrent", ["critic", "writer"]),
        ("group chat", ["critic", "writer"]),
        ("handoff", ["critic"]),
    ],
)
async def test_an_approved_turn_is_one_response_in_a_stream_and_in_the_event_log(
    pattern: str, speakers: list[str]
) -> None:
    cast, storage = press(writer=["A line."], critic=["Good."]), InMemoryCheckpointStorage()
    workflow = reviewed(pattern, cast.agents).with_checkpointing(storage).build()
    said: list[WorkflowEvent[Any]] = []
    given: dict[str, Any] = {"message": "Write.", "run_id": "r"}
    while given:
        events = [event async for event in workflow.run(stream=True, **given)]
        said += [event for event in events if event.type == "output" and event.executor_id in speakers]
        waiting = {event.request_id: APPROVED for event in events if event.type == "request_info"}
        given = {"responses": waiting} if waiting else {}
    assert sorted(event.executor_id or "" for event in said) == speakers
    assert {type(event.data) for event in said} == {AgentResponse}
    kept = [event async for event in storage.events("r") if event.type == "output" and event.executor_id in speakers]
    assert {event.executor_id: type(event.data) for event in kept} == dict.fromkeys(speakers, AgentResponse)
    assert {event.data.text for event in kept} == {event.data.text for event in said}


async def test_executors_are_not_asked_about() -> None:
    cast = press(writer=["A line."])
    workflow = SequentialBuilder(participants=[*cast.agents, Shouter("loud")]).with_request_info().build()
    first = await workflow.run("Write.")
    assert list(asked(first)) == ["writer"]
    result = await workflow.run(responses={asked(first)["writer"].request_id: APPROVED})
    assert told(result) == [("loud", "A LINE.")]


@pytest.mark.parametrize("builder", [SequentialBuilder, ConcurrentBuilder])
def test_only_agents_that_take_part_are_asked_about(builder: Any) -> None:
    for wrong in ("nobody", "loud"):
        made = builder(participants=[*press().agents, Shouter("loud")]).with_request_info(agents=[wrong])
        with pytest.raises(ValueError, match=f"with_request_info names '{wrong}', which is not a participant"):
            made.build()
    with pytest.raises(TypeError, match="agents must be a list of agents or names, not 'writer'"):
        builder(participants=press().agents).with_request_info(agents="writer")


@tool(approval_mode="always_require", if_interrupted="rerun")
def publish(text: str) -> str:
    """Publish a text."""
    return f"published {text}"


async def test_a_tool_is_approved_first_and_then_the_turn() -> None:
    cast = team([publish], writer=[ToolCall("publish", text="A line."), "It is out."])
    workflow = SequentialBuilder(participants=cast.agents).with_request_info().build()
    (call,) = (await workflow.run("Write.")).get_request_info_events()
    assert (call.source_executor_id, call.data.function_call.name) == ("writer", "publish")
    (turn,) = (await workflow.run(responses={call.request_id: True})).get_request_info_events()
    assert turn.data.agent_response.text == "It is out."
    assert told(await workflow.run(responses={turn.request_id: APPROVED})) == [("writer", "It is out.")]


@tool
def whoami(ctx: FunctionInvocationContext) -> str:
    """Name the user."""
    return f"You are {ctx.kwargs['user']}."


def say_what_was_found(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    del options
    return str(messages[-1].contents[0].result)


@pytest.mark.parametrize("kwargs", [{"user": "Ada"}, {"writer": {"user": "Ada"}}], ids=["all", "one"])
async def test_tools_of_one_who_is_asked_about_get_what_the_run_was_given(kwargs: dict[str, Any]) -> None:
    cast = team([whoami], writer=[ToolCall("whoami"), say_what_was_found])
    workflow = SequentialBuilder(participants=cast.agents).with_request_info().build()
    (request,) = (await workflow.run("Who?", function_invocation_kwargs=kwargs)).get_request_info_events()
    assert request.data.agent_response.text == "You are Ada."


def calls_in(answer: AgentResponse[Any]) -> list[Content]:
    return [each for message in answer.messages for each in message.contents if each.type == "function_call"]


async def test_people_are_asked_by_an_orchestration_that_is_an_agent() -> None:
    workflow = SequentialBuilder(participants=press().agents).with_request_info(agents=["writer"]).build()
    agent = workflow.as_agent("press")
    session = agent.create_session()
    (call,) = calls_in(await agent.run("Write.", session=session))
    asked_about = WorkflowAgent.RequestInfoFunctionArgs.from_dict(call.parse_arguments() or {})
    assert asked_about.request_event.data.agent_response.text == "A line."
    result = Content.from_function_result(call.call_id or "", result=APPROVED)
    answer = await agent.run(Message("tool", [result]), session=session)
    assert answer.text == "Too short."


def board(storage: StoreStorage) -> Workflow:
    cast = team(law=["It is legal."], cost=["It is cheap."])
    builder = ConcurrentBuilder(participants=cast.agents, name="board", checkpoint_storage=storage)
    return builder.with_request_info().build()


async def live(storage: StoreStorage) -> list[tuple[str | None, str]]:
    """The run to its end; every turn passes."""
    run = board(storage).start("Lamps?", run_id="r")
    await run.result()
    while run.requests:
        await run.respond(dict.fromkeys(run.requests, APPROVED))
        await run.result()
    events = [event async for event in storage.events("r")]
    return [(event.executor_id, event.data.text) for event in events if event.type == "output"]


async def test_people_are_heard_whatever_store_call_the_program_dies_at() -> None:
    known: dict[str, StoreStorage] = {}
    swept = await sweep(
        live,
        storage=lambda name: known.setdefault(name, InMemoryCheckpointStorage()),
        expected=[("aggregator", "It is legal.It is cheap.")],
    )
    assert swept.points > len(swept.calls)
