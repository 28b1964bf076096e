"""What agents ask of the outside in the middle of a turn: requests of the workflow, which survive a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.talkers import Stranger
from tests.workflow.nodes import node

from perdure import (
    Executor,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.agents import (
    AgentExecutor,
    AgentExecutorRequest,
    AgentResponse,
    AgentResponseUpdate,
    Content,
    Message,
    share_conversation,
)
from perdure.errors import AnswerTypeError, ApprovalMismatchError, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from perdure import Workflow
    from perdure.agents import AgentSession, SupportsAgentRun


def paying(amount: int, call_id: str) -> Content:
    return Content.from_function_call(call_id, "pay", arguments={"amount": amount})


def approval(amount: int, call_id: str | None = None) -> Content:
    name = call_id or f"call {amount}"
    return Content.from_function_approval_request(name, paying(amount, name))


class Clerk(Stranger):
    """Asks before it pays, and tells what it was told."""

    def __init__(self, *asks: Content, name: str = "clerk") -> None:
        super().__init__(name)
        self.asks = asks
        self.heard: list[list[Content]] = []

    def run(
        self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **kwargs: Any
    ) -> Any:
        contents = [content for message in messages for content in message.contents]
        self.heard.append(contents)
        self.runs.append([f"{message.role}: {message.text}" for message in messages])
        answers = [content for content in contents if content.type in {"function_approval_response", "function_result"}]
        del session, kwargs
        said = [Content.from_text(self._done(answers))] if answers else list(self.asks)
        return _streamed(said) if stream else _whole(said)

    @staticmethod
    def _done(answers: Sequence[Content]) -> str:
        paid = [answer.function_call for answer in answers if answer.approved]
        return f"paid {[call.parse_arguments() for call in paid if call is not None]}"


async def _whole(said: list[Content]) -> AgentResponse[Any]:
    return AgentResponse(messages=[Message("assistant", said)])


async def _streamed(said: list[Content]) -> AsyncGenerator[AgentResponseUpdate]:
    for content in said:
        yield AgentResponseUpdate(contents=[content], role="assistant")


def office(clerk: SupportsAgentRun, storage: Any = None, caught: list[Any] | None = None) -> Workflow:
    async def catch(message: Any, _: Any) -> None:
        if caught is not None:
            caught.append(message)

    builder = WorkflowBuilder(name="w", start_executor=clerk, checkpoint_storage=storage)
    return builder.add_edge(clerk, node("catch", catch)).build()


async def test_what_an_agent_asks_is_a_request_and_nothing_is_sent_on(storage: Any) -> None:
    caught: list[Any] = []
    result = await office(Clerk(approval(5)), storage, caught).run("pay 5")
    (event,) = result.get_request_info_events()
    assert (event.request_id, event.source_executor_id, event.data.function_call.name) == ("call 5", "clerk", "pay")
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (result.get_outputs(), caught) == ([], [])


async def test_a_stream_is_told_a_request_once_and_no_update_of_it(storage: Any) -> None:
    stream = office(Clerk(approval(5)), storage).run("pay 5", stream=True)
    told = [event.type async for event in stream if event.type in {"output", "request_info"}]
    assert told == ["request_info"]


@pytest.mark.parametrize(("answer", "paid"), [(True, "paid [{'amount': 5}]"), (False, "paid []")])
async def test_an_approval_is_given_as_a_content(answer: bool, paid: str) -> None:  # noqa: FBT001
    workflow = office(Clerk(approval(5)))
    (event,) = (await workflow.run("pay 5")).get_request_info_events()
    result = await workflow.run(responses={event.request_id: event.data.to_function_approval_response(answer)})
    assert [output.text for output in result.get_outputs()] == [paid]


@pytest.mark.parametrize(
    "answer",
    [
        True,
        {"type": "function_approval_response", "id": "call 5", "approved": True},
        approval(5).to_function_approval_response(approved=True).to_dict(),
    ],
)
async def test_an_approval_is_given_as_plain_data_without_the_program(
    open_on_disk: Callable[..., Any], answer: Any
) -> None:
    async with open_on_disk() as storage:
        await office(Clerk(approval(5)), storage).run("pay 5", run_id="r")
    async with open_on_disk() as storage:
        (request,) = await storage.requests("r")
        assert request.approves is not None
        await storage.respond("r", {"call 5": answer}, approves={"call 5": request.approves})
    clerk = Clerk(approval(5))
    async with open_on_disk() as storage:
        result = await office(clerk, storage).run(run_id="r")
    assert [output.text for output in result.get_outputs()] == ["paid [{'amount': 5}]"]
    assert [[content.type for content in heard] for heard in clerk.heard] == [["function_approval_response"]]


async def test_what_is_neither_yes_nor_no_is_refused_where_it_is_given(storage: Any) -> None:
    await office(Clerk(approval(5)), storage).run("pay 5", run_id="r")
    with pytest.raises(AnswerTypeError):
        await storage.respond("r", {"call 5": "maybe"})
    with pytest.raises(ApprovalMismatchError):
        await storage.respond("r", {"call 5": True}, approves={"call 5": "another digest"})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Content.from_text("yes"), "says neither yes nor no"),
        (approval(500, "call 5").to_function_approval_response(approved=True), "approves another"),
    ],
)
async def test_an_answer_that_is_none_opens_the_request_again(storage: Any, answer: Content, reason: str) -> None:
    clerk = Clerk(approval(5))
    workflow = office(clerk, storage)
    await workflow.run("pay 5")
    again = await workflow.run(responses={"call 5": answer})
    assert [reason in event.data for event in again if event.type == "warning"] == [True]
    assert again.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    result = await workflow.run(responses={"call 5": True})
    assert [output.text for output in result.get_outputs()] == ["paid [{'amount': 5}]"]


async def test_what_is_approved_is_what_was_asked_and_not_what_the_answer_says() -> None:
    clerk = Clerk(approval(5))
    workflow = office(clerk)
    await workflow.run("pay 5")
    refusal = approval(500, "call 5").to_function_approval_response(approved=False)
    await workflow.run(responses={"call 5": refusal})
    (told,) = clerk.heard[-1]
    assert told.function_call is not None
    assert (told.approved, told.function_call.parse_arguments()) == (False, {"amount": 5})


async def test_several_answers_are_collected_over_restarts(open_on_disk: Callable[..., Any]) -> None:
    asked = (approval(1), approval(2), approval(3))
    async with open_on_disk() as storage:
        await office(Clerk(*asked), storage).run("pay all", run_id="r")
    for answers in ({"call 2": True}, {"call 1": False}):
        async with open_on_disk() as storage:
            clerk = Clerk(*asked)
            result = await office(clerk, storage).run(run_id="r", responses=answers)
            assert (result.get_outputs(), clerk.runs) == ([], [])
    async with open_on_disk() as storage:
        result = await office(Clerk(*asked), storage).run(run_id="r", responses={"call 3": True})
    assert [output.text for output in result.get_outputs()] == ["paid [{'amount': 2}, {'amount': 3}]"]


async def test_answers_that_come_together_are_one_turn(storage: Any) -> None:
    clerk = Clerk(approval(1), approval(2))
    workflow = office(clerk, storage)
    await workflow.run("pay all")
    await workflow.run(responses={"call 1": True, "call 2": True})
    assert len(clerk.runs) == 2


async def test_a_result_of_a_call_that_others_make_comes_from_a_tool() -> None:
    call = Content.from_function_call("c", "look_up", arguments={}, id="c", user_input_request=True)
    clerk = Clerk(call)
    workflow = office(clerk)
    (event,) = (await workflow.run("look")).get_request_info_events()
    assert event.response_type is Content
    await workflow.run(responses={"c": Content.from_function_result("c", result="found")})
    assert clerk.runs[-1] == ["tool: "]
    assert clerk.heard[-1] == [Content.from_function_result("c", result="found")]


async def test_what_others_say_while_an_agent_waits_is_told_after_the_answers(storage: Any) -> None:
    clerk = Clerk(approval(5))
    workflow = office(clerk, storage)
    await workflow.run("pay 5")
    await workflow.run(AgentExecutorRequest([Message("user", ["by the way"])], should_respond=False))
    await workflow.run(responses={"call 5": True})
    assert clerk.runs[-1] == ["user: ", "user: by the way"]


async def test_what_is_sent_on_after_an_answer_has_what_was_said_before_it(storage: Any) -> None:
    caught: list[Any] = []
    workflow = office(Clerk(approval(5)), storage, caught)
    await workflow.run("pay 5")
    await workflow.run(responses={"call 5": True})
    (response,) = caught
    assert [(m.role, m.text) for m in response.full_conversation] == [
        ("user", "pay 5"),
        ("assistant", "paid [{'amount': 5}]"),
    ]


def test_a_conversation_that_is_told_on_has_calls_with_results_and_no_questions() -> None:
    told = share_conversation(
        [
            Message("user", ["pay"]),
            Message("assistant", [Content.from_text("well"), approval(1, "a"), paying(2, "b"), approval(2, "b")]),
            Message("user", [approval(1, "a").to_function_approval_response(approved=True)]),
            Message("tool", [Content.from_function_result("a", result="paid")]),
            Message("assistant", [Content.from_function_call("c", "ask", user_input_request=True)]),
            Message("assistant", [paying(4, "d"), approval(4, "d")]),
            Message("tool", [Content.from_function_result("d", result="paid")]),
            Message("assistant", ["done"]),
        ]
    )
    kinds = [(message.role, [content.type for content in message.contents]) for message in told]
    assert kinds == [
        ("user", ["text"]),
        ("assistant", ["text", "function_call"]),
        ("tool", ["function_result"]),
        ("assistant", ["function_call"]),
        ("tool", ["function_result"]),
        ("assistant", ["text"]),
    ]


async def test_two_agents_that_ask_under_one_id_are_both_answered(storage: Any) -> None:
    clerks = [Clerk(approval(number, "call"), name=f"clerk{number}") for number in (1, 2)]

    async def pass_on(message: Any, ctx: Any) -> None:
        await ctx.send_message(message)

    start = node("start", pass_on)
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage)
    workflow = builder.add_fan_out_edges(start, clerks).build()
    events = (await workflow.run("pay")).get_request_info_events()
    assert all(event.data.id == event.request_id for event in events)
    answers = {event.request_id: event.data.to_function_approval_response(approved=True) for event in events}
    result = await workflow.run(responses=answers)
    assert [output.text for output in result.get_outputs()] == ["paid [{'amount': 1}]", "paid [{'amount': 2}]"]
    assert [clerk.heard[-1][0].id for clerk in clerks] == ["call", "call"]


async def test_what_has_no_id_is_asked_once_of_a_stream() -> None:
    clerk = Clerk(Content.from_oauth_consent_request("https://example.com/consent"))
    stream = WorkflowBuilder(start_executor=clerk).build().run("sign in", stream=True)
    assert [event.type async for event in stream if event.type == "request_info"] == ["request_info"]


async def test_what_has_no_id_is_asked_under_one_that_is_made(tmp_path: Any) -> None:
    consent = Content.from_oauth_consent_request("https://example.com/consent")
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        clerk = Clerk(consent)
        workflow = WorkflowBuilder(name="w", start_executor=AgentExecutor(clerk), checkpoint_storage=storage).build()
        (event,) = (await workflow.run("sign in")).get_request_info_events()
        assert event.data.consent_link == "https://example.com/consent"
        await workflow.run(responses={event.request_id: Content.from_text("done")})
    assert clerk.runs[-1] == ["user: done"]


async def test_a_cancelled_approval_is_a_refusal_and_the_agent_goes_on_once_nothing_is_open(storage: Any) -> None:
    clerk = Clerk(approval(1), approval(2))
    workflow = office(clerk, storage)
    await workflow.run("go")
    first = await workflow.cancel_pending_requests(["call 1"])
    assert (first.get_outputs(), len(clerk.runs)) == ([], 1)
    result = await workflow.run(responses={"call 2": True})
    assert [output.text for output in result.get_outputs()] == ["paid [{'amount': 2}]"]
    assert [content.approved for content in clerk.heard[-1]] == [False, True]


async def test_a_cancelled_call_of_the_user_is_an_error_also_inside_a_sub_workflow(storage: Any) -> None:
    call = Content.from_function_call("call", "look", user_input_request=True)
    clerk = Clerk(call)
    inner = WorkflowExecutor(office(clerk), "sub", propagate_request=True, allow_direct_output=True)
    workflow = WorkflowBuilder(start_executor=inner, checkpoint_storage=storage).build()
    (request,) = (await workflow.run("go")).get_request_info_events()
    result = await workflow.cancel_pending_requests([request.request_id])
    assert result.get_final_state() is WorkflowRunState.IDLE
    assert [output.text for output in result.get_outputs()] == ["paid []"]
    (heard,) = clerk.heard[-1]
    assert (heard.type, heard.call_id, heard.result) == ("function_result", "call", "Error: the request was cancelled.")


async def test_a_question_of_a_workflow_that_is_an_agent_can_not_be_cancelled() -> None:
    class Asker(Executor):
        @handler
        async def ask(self, messages: list[Message], ctx: WorkflowContext[str, str]) -> None:
            await ctx.request_info(messages[0].text, str, request_id="q")

        @response_handler
        async def on(self, request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output(f"{request}: {response}")

    inner = WorkflowBuilder(name="inner", start_executor=Asker("asker")).build().as_agent("desk")
    workflow = WorkflowBuilder(start_executor=inner).build()
    await workflow.run("go")
    with pytest.raises(RequestError, match="'q' can't be cancelled: it is asked by the workflow inside agent 'desk'"):
        await workflow.cancel_pending_requests(["q"])
    assert [each.text for each in (await workflow.run(responses={"q": "yes"})).get_outputs()] == ["go: yes"]
