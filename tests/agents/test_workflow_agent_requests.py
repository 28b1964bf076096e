"""What a workflow asks, told by its agent as calls, and answered by the next message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tests.agents.desks import Asker, Question, answer, calls, desk, saved, talking

from perdure import (
    AlreadyAnsweredError,
    AnswerTypeError,
    Executor,
    InMemoryCheckpointStorage,
    UnknownRequestError,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    handler,
    response_handler,
)
from perdure.agents import Agent, AgentSession, Content, FunctionTool, Message, tool
from perdure.errors import AgentException, AgentInvalidResponseException
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.workflows import WorkflowAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workflow.nodes import Context

Args = WorkflowAgent.RequestInfoFunctionArgs


async def test_a_request_is_told_as_a_call_with_the_live_request() -> None:
    response = await desk(Asker("asker")).run("buy")
    (call,) = calls(response)
    assert call.name == WorkflowAgent.REQUEST_INFO_FUNCTION_NAME == "request_info"
    assert response.messages[0].author_name == "asker"
    args = Args.from_dict(call.arguments)  # type: ignore[arg-type]
    assert args.request_id == call.call_id
    assert args.request_event.data == Question("buy")
    assert args.request_event.response_type is bool
    assert Args.from_dict(args.to_dict()).request_event.data is args.request_event.data


async def test_a_stream_tells_a_request_in_the_name_of_the_agent() -> None:
    updates = [update async for update in desk(Asker("asker")).run("buy", stream=True)]
    assert [(update.author_name, update.contents[0].type) for update in updates] == [("desk", "function_call")]


@pytest.mark.parametrize("payload", [{}, {"request_id": "r"}, {"request_id": "", "request_event": {"type": "x"}}])
def test_arguments_that_lack_something_are_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is missing or empty"):
        Args.from_dict(payload)


def test_arguments_are_an_id_and_an_event() -> None:
    event = WorkflowEvent.request_info("r", "asker", "what?", str)
    assert Args("r", event).to_dict() == {"request_id": "r", "request_event": event.to_dict()}


def test_types_that_the_program_allows_are_found_by_their_names() -> None:
    payload = Args("r", WorkflowEvent.request_info("r", "asker", Question("what?"), Question)).to_dict()
    payload["request_event"] |= {"request_type": "shop.Question", "response_type": "shop.Question"}
    with pytest.raises(TypeError):
        Args.from_dict(payload)
    allowed = {"shop.Question": Question}
    event = Args.from_dict(payload, allowed_types=allowed).request_event
    assert event.response_type is Question
    assert WorkflowEvent.from_dict(payload["request_event"], allowed_types=allowed).data is event.data


class Poet(Executor):
    """Asks for a text with a text."""

    @handler
    async def take(self, _: list[Message], ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(Content.from_text("Which rhyme?", user_input_request=True), Content)

    @response_handler
    async def answered(self, _: Content, rhyme: Content, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{rhyme.type}: {rhyme.text}")


async def test_a_question_that_is_a_text_is_a_call_that_a_text_can_answer() -> None:
    talker = desk(Poet("poet"))
    response = await talker.run("write")
    (call,) = calls(response)
    assert call.name == "request_info"
    assert response.user_input_requests == []
    assert (await talker.run(answer(call, result="heart"))).text == "text: heart"


async def test_a_str_answers_a_request_for_a_content_with_the_store_alone() -> None:
    storage = InMemoryCheckpointStorage()
    poet = Poet("poet")
    workflow = WorkflowBuilder(start_executor=poet, checkpoint_storage=storage).build()
    result = await workflow.run([Message("user", "write")], run_id="r")
    (request,) = result.get_request_info_events()
    with pytest.raises(AnswerTypeError):
        await storage.respond("r", {request.request_id: 3})
    await storage.respond("r", {request.request_id: "heart"})
    assert (await workflow.run(run_id="r")).get_outputs() == ["text: heart"]


async def test_an_answer_is_found_by_its_request() -> None:
    talker = desk(Asker("asker"))
    buy, sell = calls(await talker.run("buy sell"))
    assert (await talker.run(answer(sell, result=False))).text == "sell: False"
    assert (await talker.run(answer(buy, result=True))).text == "buy: True"


async def test_several_answers_come_at_once_in_a_stream_too() -> None:
    talker = desk(Asker("asker"))
    asked = calls(await talker.run("buy sell"))
    stream = talker.run([answer(call, result=True) for call in asked], stream=True)
    assert [update.text async for update in stream] == ["buy: True", "sell: True"]


async def test_answers_and_a_session_go_together(storage: Any) -> None:
    talker = desk(Asker("asker"), storage=storage)
    session = talker.create_session()
    (call,) = calls(await talker.run("buy", session=session))
    assert (await talker.run(answer(call, result=True), session=session)).text == "buy: True"
    (again,) = calls(await talker.run("sell", session=session))
    assert (await talker.run(answer(again, result=False), session=session)).text == "sell: False"


async def test_a_session_that_was_saved_while_a_request_waits_is_answered_in_another_process(
    open_on_disk: Callable[..., Any],
) -> None:
    async with open_on_disk() as storage:
        talker = desk(Asker("asker"), storage=storage)
        session = talker.create_session()
        (call,) = calls(await talker.run("buy", session=session))
    async with open_on_disk() as storage:
        response = await desk(Asker("asker"), storage=storage).run(answer(call, result=True), session=saved(session))
        assert response.text == "buy: True"


async def test_what_is_no_answer_is_refused_with_the_requests_that_wait() -> None:
    talker = desk(Asker("asker"), storage=InMemoryCheckpointStorage())
    session = talker.create_session()
    (call,) = calls(await talker.run("buy", session=session))
    with pytest.raises(AgentInvalidResponseException, match=f"'{call.call_id}' of executor 'asker'"):
        await talker.run("what?", session=session)
    mixed = [answer(call, result=True), Message("user", ["and"])]
    with pytest.raises(AgentInvalidResponseException, match="one request of the session takes it, but 0 do"):
        await talker.run(mixed, session=session)
    assert (await talker.run(answer(call, result=True), session=session)).text == "buy: True"


async def test_an_answer_to_nothing_is_refused() -> None:
    talker = desk(Asker("asker"))
    await talker.run("buy")
    stray = Content.from_function_call("stray", "request_info")
    with pytest.raises(UnknownRequestError, match="'stray'"):
        await talker.run(answer(stray, result=True))


async def test_the_same_answer_again_tells_what_came_of_it_and_another_is_refused() -> None:
    storage = InMemoryCheckpointStorage()
    talker = desk(Asker("asker"), storage=storage)
    session = talker.create_session()
    (call,) = calls(await talker.run("buy", session=session))
    before = saved(session)
    await talker.run(answer(call, result=True), session=session)
    again = await desk(Asker("asker"), storage=storage).run(answer(call, result=True), session=saved(before))
    assert again.text == "buy: True"
    with pytest.raises(AlreadyAnsweredError, match=str(call.call_id)):
        await desk(Asker("asker"), storage=storage).run(answer(call, result=False), session=saved(before))


async def test_without_a_message_the_requests_are_told_again() -> None:
    storage = InMemoryCheckpointStorage()
    talker = desk(Asker("asker"), storage=storage)
    session = talker.create_session()
    asked = calls(await talker.run("buy", session=session))
    told = await desk(Asker("asker"), storage=storage).run(session=saved(session))
    assert [call.call_id for call in calls(told)] == [call.call_id for call in asked]


async def test_a_session_whose_run_waits_somewhere_else_is_refused() -> None:
    talker = desk(Asker("asker"))
    session = talker.create_session()
    (call,) = calls(await talker.run("buy", session=session))
    with pytest.raises(AgentException, match=r"waits for answers.*checkpoint_storage"):
        await desk(Asker("asker")).run(answer(call, result=True), session=saved(session))


async def test_a_request_that_is_a_content_with_an_id_of_its_own_is_answered_by_that() -> None:
    wanted = Content.from_function_approval_request("approval", Content.from_function_call("c", "pay", arguments={}))

    async def ask(_: Any, ctx: Context) -> None:
        await ctx.request_info(wanted, Content)

    talker = desk(talking("careful", ask))
    response = await talker.run("pay")
    assert response.user_input_requests == [wanted]
    with pytest.raises(ValueError, match="careful"):
        # It has no handler for answers, but the request was found.
        await talker.run(Message("user", [wanted.to_function_approval_response(approved=True)]))


class Shop:
    """An agent with a tool that somebody has to allow, and a count of what was done."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.client = ScriptedChatClient([ToolCall("pay", amount=3), "Paid.", "You are welcome."])

    def build(self, storage: Any = None) -> WorkflowAgent:
        @tool(approval_mode="always_require")
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "done"

        return desk(Agent(self.client, "You sell.", name="clerk", tools=[pay]), storage=storage)


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_is_told_as_it_is_and_survives_a_restart(approved: bool) -> None:  # noqa: FBT001 - a parameter of the test
    shop, storage, session = Shop(), InMemoryCheckpointStorage(), AgentSession()
    response = await shop.build(storage).run("pay", session=session)
    (request,) = response.user_input_requests
    assert (request.type, shop.paid) == ("function_approval_request", [])
    allowed = Message("user", [request.to_function_approval_response(approved)])
    session = saved(session)
    assert (await shop.build(storage).run(allowed, session=session)).text == "Paid."
    assert shop.paid == ([3] if approved else [])
    assert (await shop.build(storage).run("thanks", session=saved(session))).text == "You are welcome."
    assert shop.paid == ([3] if approved else [])


async def test_an_answer_for_a_tool_that_is_done_elsewhere_is_its_result() -> None:
    client = ScriptedChatClient([ToolCall("weigh"), lambda messages, _: str(messages[-1].contents[0].result)])
    scales = FunctionTool(name="weigh", description="Weigh it.", func=None)
    talker = desk(Agent(client, "You weigh.", name="clerk", tools=[scales]), storage=InMemoryCheckpointStorage())
    session = talker.create_session()
    (request,) = (await talker.run("how much?", session=session)).user_input_requests
    assert (request.type, request.name) == ("function_call", "weigh")
    assert (await talker.run(answer(request, result="3 kg"), session=session)).text == "3 kg"


class Clerk(Executor):
    """Asks for each word: `text`, `message` and `messages` by that type, `pay` for an approval, others for a bool."""

    TYPES: ClassVar[dict[str, Any]] = {"text": str, "message": Message, "messages": list[Message], "any": Any}

    @handler
    async def take(self, messages: list[Message], ctx: WorkflowContext[str, str]) -> None:
        for word in messages[-1].text.split():
            if word == "pay":
                call = Content.from_function_call("c", "pay", arguments={})
                await ctx.request_info(Content.from_function_approval_request("approval", call), Content)
            else:
                await ctx.request_info(Question(word), self.TYPES.get(word, bool))

    @response_handler
    async def on_text(self, question: Question, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{question.text}: {text}")
        if text == "more":
            await ctx.request_info(Question("again"), str)

    @response_handler
    async def on_message(self, question: Question, message: Message, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{question.text}: {message.text}")

    @response_handler
    async def on_messages(self, question: Question, messages: list[Message], ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{question.text}: {' '.join(message.text for message in messages)}")

    @response_handler
    async def on_bool(self, question: Question, answer: bool, ctx: WorkflowContext[str, str]) -> None:  # noqa: FBT001 - its type is what is asked for
        await ctx.yield_output(f"{question.text}: {answer}")

    @response_handler
    async def on_approval(self, request: Content, response: Content, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{request.id}: {response.approved}")


@pytest.mark.parametrize("kind", ["text", "message", "messages", "any"])
async def test_plain_text_answers_the_one_open_request_that_takes_text(storage: Any, kind: str) -> None:
    talker, session = desk(Clerk("clerk"), storage=storage), AgentSession()
    await talker.run(kind, session=session)
    assert (await talker.run("Hello.", session=session)).text == f"{kind}: Hello."
    assert (await talker.run("good", session=session)).text == ""  # the next turn


async def test_plain_text_leaves_an_approval_open(storage: Any) -> None:
    talker, session = desk(Clerk("clerk"), storage=storage), AgentSession()
    await talker.run("pay text good", session=session)
    response = await talker.run("Hello.", session=session)
    assert "text: Hello." in response.text
    [approval] = response.user_input_requests
    [good] = [call for call in calls(response) if call.name == "request_info"]
    both = Message("user", [approval.to_function_approval_response(approved=True), *answer(good, result=True).contents])
    assert "approval: True" in (await talker.run(both, session=session)).text


async def test_text_beside_an_answer_is_the_other_answer() -> None:
    talker, session = desk(Clerk("clerk")), AgentSession()
    [approval] = (await talker.run("pay text", session=session)).user_input_requests
    both = Message("user", [approval.to_function_approval_response(approved=False), Content.from_text("Hello.")])
    response = await talker.run(both, session=session)
    assert [message.text for message in response.messages] == ["approval: False", "text: Hello."]


@pytest.mark.parametrize(
    ("asked", "reason"), [("text messages good", "takes it, but 2 do"), ("pay good", "takes it, but 0 do")]
)
async def test_text_that_could_answer_none_or_several_requests_is_refused(asked: str, reason: str) -> None:
    talker, session = desk(Clerk("clerk")), AgentSession()
    response = await talker.run(asked, session=session)
    with pytest.raises(AgentInvalidResponseException, match=reason) as caught:
        await talker.run("Hello.", session=session)
    for call in calls(response):
        assert f"{call.call_id!r} of executor 'clerk'" in str(caught.value)
    assert len((await talker.run(session=session)).messages) == len(asked.split())


async def test_an_image_is_no_text_but_part_of_a_message() -> None:
    image = Content.from_uri("https://example.org/a.png", media_type="image/png")
    talker, session = desk(Clerk("clerk")), AgentSession()
    await talker.run("text messages", session=session)
    said = Message("user", ["See", image])
    assert "messages: See" in (await talker.run(said, session=session)).text


@pytest.mark.parametrize("text", ["Hello.", "more"])
async def test_text_that_is_sent_again_after_a_lost_session_answers_nothing_twice(text: str) -> None:
    storage = InMemoryCheckpointStorage()
    session = AgentSession()
    await desk(Clerk("clerk"), storage=storage).run("text", session=session)
    before = saved(session)
    first = await desk(Clerk("clerk"), storage=storage).run(text, session=session)
    again = await desk(Clerk("clerk"), storage=storage).run(text, session=before)
    assert again.text == first.text == f"text: {text}"
    assert [call.call_id for call in calls(again)] == [call.call_id for call in calls(first)]


async def test_text_does_not_answer_a_request_that_the_session_has_not_seen() -> None:
    storage, session = InMemoryCheckpointStorage(), AgentSession()
    talker = desk(Clerk("clerk"), storage=storage)
    [call] = calls(await talker.run("text", session=session))
    await desk(Clerk("clerk"), storage=storage).run(answer(call, result="more"), session=saved(session))
    with pytest.raises(AgentInvalidResponseException, match="takes it, but 0 do"):
        await talker.run("Hello.", session=session)
    assert "text: more" in (await talker.run(session=session)).text
    assert (await talker.run("Hello.", session=session)).text == "again: Hello."
