"""The loop of a turn: the model is asked, its calls are made side by side, and it is asked again with the results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure.agents import (
    Agent,
    AgentSession,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    Message,
    tool,
)
from perdure.errors import MiddlewareFailure, MiddlewareTermination, UserInputRequiredException
from perdure.graph import Retry
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.agents import ChatResponse

HELLO = [Message("user", ["hello"])]
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@tool
def weather(city: str) -> str:
    """How the weather is."""
    return f"snow in {city}"


@tool
def broken(city: str) -> str:
    """How the weather is, from a station that is down."""
    raise ConnectionError(f"the password of {city} is secret")


declared = FunctionTool(name="ask_user", description="Ask the user.", input_model={"type": "object", "properties": {}})


async def answer(client: ScriptedChatClient, *, stream: bool, **more: Any) -> ChatResponse[Any]:
    found = client.get_response(HELLO, stream=stream, **more)
    return await (found.get_final_response() if stream else found)


def shape(response: ChatResponse[Any]) -> list[tuple[str, list[str]]]:
    return [(message.role, [content.type for content in message.contents]) for message in response.messages]


def results(response: Any) -> list[Content]:
    contents = [content for message in response.messages for content in message.contents]
    return [content for content in contents if content.type == "function_result"]


@both_modes
async def test_a_model_is_told_the_results_of_its_calls_and_asked_again(stream: bool) -> None:  # noqa: FBT001
    client = ScriptedChatClient(
        [["I look.", ToolCall("weather", city="Oslo")], "Snow."], usage={"total_token_count": 5}
    )
    response = await answer(client, stream=stream, options={"tools": [weather]})
    assert shape(response) == [
        ("assistant", ["text", "function_call"]),
        ("tool", ["function_result"]),
        ("assistant", ["text"]),
    ]
    assert results(response)[0].result == "snow in Oslo"
    assert response.usage_details == {"total_token_count": 10}
    assert [message.role for message in client.calls[1].messages] == ["user", "assistant", "tool"]


async def test_a_stream_tells_calls_and_results_as_they_come() -> None:
    client = ScriptedChatClient([ToolCall("weather", city="Oslo"), "Snow."])
    stream = client.get_response(HELLO, stream=True, options={"tools": [weather]})
    kinds = [(update.role, content.type) async for update in stream for content in update.contents]
    assert ("tool", "function_result") in kinds
    assert kinds.index(("assistant", "function_call")) < kinds.index(("tool", "function_result"))
    assert kinds.index(("tool", "function_result")) < kinds.index(("assistant", "text"))


async def test_calls_of_one_answer_are_made_side_by_side_and_told_in_their_order() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def meet(name: str) -> str:
        await both.wait()
        return name

    client = ScriptedChatClient([[ToolCall("meet", name="first"), ToolCall("meet", name="second")], "done"])
    response = await answer(client, stream=False, options={"tools": [meet]})
    assert [result.result for result in results(response)] == ["first", "second"]


@both_modes
async def test_calls_are_made_one_after_another_where_that_is_demanded(stream: bool) -> None:  # noqa: FBT001
    seen: list[str] = []

    @tool
    async def work(name: str) -> str:
        seen.append(f"{name} starts")
        await asyncio.sleep(0)
        seen.append(f"{name} ends")
        return name

    client = ScriptedChatClient(
        [[ToolCall("work", name="first"), ToolCall("work", name="second")], "done"],
        function_invocation_configuration={"allow_concurrent_invocation": False},
    )
    response = await answer(client, stream=stream, options={"tools": [work]})
    assert seen == ["first starts", "first ends", "second starts", "second ends"]
    assert [result.result for result in results(response)] == ["first", "second"]


async def test_a_turn_within_its_time_may_go_on_calling() -> None:
    client = ScriptedChatClient(
        [ToolCall("weather", city="Oslo"), ToolCall("weather", city="Bergen"), "Snow."],
        function_invocation_configuration={"max_duration_seconds": 3600},
    )
    response = await answer(client, stream=False, options={"tools": [weather]})
    assert response.messages[-1].text == "Snow."
    assert [call.options.get("tool_choice") for call in client.calls] == [None] * 3


@both_modes
async def test_failures_unknown_tools_and_bad_arguments_are_told_to_the_model(stream: bool) -> None:  # noqa: FBT001
    malformed = Content.from_function_call("bad", "weather", arguments='{"city": ')
    calls = [ToolCall("broken", city="Oslo"), ToolCall("missing"), ToolCall("weather", town="Oslo"), malformed]
    client = ScriptedChatClient([calls, "sorry"])
    response = await answer(client, stream=stream, options={"tools": [weather, broken]})
    told = [str(result.result) for result in results(response)]
    assert told[0] == "Error: the tool failed"
    assert told[1] == "there is no tool named 'missing'"
    assert "city: Field required" in told[2]
    assert "the arguments are not JSON" in told[3]
    assert all(result.exception for result in results(response))
    assert response.messages[-1].text == "sorry"


async def test_the_text_of_an_error_is_told_to_the_model_only_if_that_is_wished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = [ToolCall("broken", city="Oslo"), "sorry"]
    client = ScriptedChatClient(script, function_invocation_configuration={"include_detailed_errors": True})
    response = await answer(client, stream=False, options={"tools": [broken]})
    assert results(response)[0].result == "Error: the tool failed: the password of Oslo is secret"
    assert "'broken' failed with ConnectionError" in caplog.text
    assert "password" not in caplog.text


async def test_a_model_that_calls_an_unknown_tool_can_be_an_error() -> None:
    client = ScriptedChatClient(
        [ToolCall("missing"), "sorry"], function_invocation_configuration={"terminate_on_unknown_calls": True}
    )
    with pytest.raises(KeyError, match="an unknown tool 'missing'"):
        await answer(client, stream=False, options={"tools": [weather]})


@both_modes
@pytest.mark.parametrize(
    ("settings", "name", "asked"),
    [
        ({"max_iterations": 2}, "weather", 3),
        ({"max_function_calls": 2}, "weather", 3),
        ({"max_duration_seconds": 1e-9}, "weather", 2),
        ({"max_consecutive_errors_per_request": 3}, "broken", 4),
    ],
    ids=["rounds", "calls", "time", "failures"],
)
async def test_a_model_that_never_stops_calling_is_asked_once_more_without_tools(
    settings: Any,
    name: str,
    asked: int,
    stream: bool,  # noqa: FBT001
) -> None:
    client = ScriptedChatClient(lambda _, __: ToolCall(name, city="Oslo"), function_invocation_configuration=settings)
    response = await answer(client, stream=stream, options={"tools": [weather, broken]})
    assert len(client.calls) == asked
    assert [call.options.get("tool_choice") for call in client.calls] == [*[None] * (asked - 1), "none"]
    assert response.text == "No more tools may be called in this turn, and there is no answer without them."
    assert len(results(response)) == asked - 1


async def test_what_a_model_says_when_it_may_call_no_more_is_its_answer() -> None:
    def say(_: object, options: Any) -> Any:
        return ["at last", *([] if options.get("tool_choice") == "none" else [ToolCall("weather", city="Oslo")])]

    client = ScriptedChatClient(say, function_invocation_configuration={"max_iterations": 1})
    response = await answer(client, stream=False, options={"tools": [weather]})
    assert response.messages[-1].text == "at last"


@pytest.mark.parametrize(
    "settings", [{"max_iterations": 0}, {"max_function_calls": 0}, {"max_duration_seconds": 0}, {"max_iteration": 3}]
)
def test_settings_that_make_no_sense_are_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match="max_"):
        ScriptedChatClient([], function_invocation_configuration=settings)


async def test_a_client_may_leave_calls_to_others() -> None:
    client = ScriptedChatClient(
        [ToolCall("weather", city="Oslo")], function_invocation_configuration={"enabled": False}
    )
    response = await answer(client, stream=False, options={"tools": [weather]})
    assert shape(response) == [("assistant", ["function_call"])]


async def test_tools_that_the_model_is_not_told_of_can_be_called() -> None:
    client = ScriptedChatClient(
        [ToolCall("weather", city="Oslo"), "Snow."], function_invocation_configuration={"additional_tools": [weather]}
    )
    response = await answer(client, stream=False)
    assert results(response)[0].result == "snow in Oslo"
    assert "tools" not in client.calls[0].options


async def test_a_call_that_was_required_is_required_once() -> None:
    client = ScriptedChatClient([ToolCall("weather", city="Oslo"), "Snow."])
    await answer(client, stream=False, options={"tools": [weather], "tool_choice": "required"})
    assert [call.options.get("tool_choice") for call in client.calls] == ["required", None]


@both_modes
async def test_calls_of_a_tool_without_a_function_are_for_the_user(stream: bool) -> None:  # noqa: FBT001
    client = ScriptedChatClient([[ToolCall("ask_user"), ToolCall("weather", city="Oslo")], "thanks"])
    agent = Agent(client, name="a", tools=[declared, weather])
    session = AgentSession()
    found: Any = agent.run("hello", stream=stream, session=session)
    first = await (found.get_final_response() if stream else found)
    (request,) = first.user_input_requests
    assert (request.type, request.name, request.id) == ("function_call", "ask_user", request.call_id)
    assert request.parse_arguments() == {}
    assert [result.result for result in results(first)] == ["snow in Oslo"]
    reply = Message("tool", [Content.from_function_result(request.call_id, result="the user says yes")])
    second = await agent.run(reply, session=session)
    assert second.text == "thanks"
    told = client.calls[1].messages[2]
    assert [content.result for content in told.contents] == ["the user says yes", "snow in Oslo"]


async def test_what_is_for_the_user_is_told_in_a_stream() -> None:
    stream = ScriptedChatClient([ToolCall("ask_user")]).get_response(HELLO, stream=True, options={"tools": [declared]})
    updates = [update async for update in stream]
    assert [content.name for update in updates for content in update.user_input_requests] == ["ask_user"]


async def test_tools_are_given_what_the_run_was_given_for_them() -> None:
    seen: list[Any] = []

    @tool
    def look(ctx: FunctionInvocationContext, **kwargs: Any) -> None:
        seen.append((ctx.kwargs["user"], kwargs["user"], ctx.session, ctx.metadata["call_id"]))

    session = AgentSession()
    agent = Agent(ScriptedChatClient([ToolCall("look"), "done"]), name="a", tools=[look])
    await agent.run("hello", session=session, function_invocation_kwargs={"user": "me"})
    ((in_context, in_kwargs, its_session, call_id),) = seen
    assert (in_context, in_kwargs, its_session) == ("me", "me", session)
    assert call_id


async def test_a_tool_may_change_the_tools_of_the_turn() -> None:
    @tool
    def learn(ctx: FunctionInvocationContext) -> str:
        ctx.add_tools(weather)
        ctx.remove_tools("learn")
        return "learned"

    given = [learn]
    client = ScriptedChatClient([ToolCall("learn"), ToolCall("weather", city="Oslo"), "Snow."])
    response = await answer(client, stream=False, options={"tools": given})
    assert [result.result for result in results(response)] == ["learned", "snow in Oslo"]
    assert [[each.name for each in call.options["tools"]] for call in client.calls] == [
        ["learn"],
        ["weather"],
        ["weather"],
    ]
    assert given == [learn]


class Watching(FunctionMiddleware):
    """Notes calls, and may put something in the place of what they give."""

    def __init__(self, *, instead: Any = None) -> None:
        self.seen: list[Any] = []
        self.instead = instead

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        self.seen.append((context.function.name, context.arguments))
        await call_next()
        self.seen.append(context.result[0].text)
        if self.instead is not None:
            context.result = self.instead


async def test_function_middleware_stands_around_each_call() -> None:
    watching = Watching(instead={"weather": "sun"})
    client = ScriptedChatClient([ToolCall("weather", city="Oslo"), "Sun."], middleware=[watching])
    response = await answer(client, stream=False, options={"tools": [weather]})
    assert watching.seen == [("weather", {"city": "Oslo"}), "snow in Oslo"]
    assert results(response)[0].result == '{"weather": "sun"}'


@both_modes
async def test_a_middleware_may_end_the_turn(stream: bool) -> None:  # noqa: FBT001
    async def enough(_: FunctionInvocationContext, __: Callable[[], Awaitable[None]]) -> None:
        raise MiddlewareTermination(result="not in this house")

    client = ScriptedChatClient([ToolCall("weather", city="Oslo"), "never said"])
    response = await answer(client, stream=stream, options={"tools": [weather]}, middleware=[enough])
    assert shape(response) == [("assistant", ["function_call"]), ("tool", ["function_result"])]
    assert results(response)[0].result == "not in this house"
    assert len(client.calls) == 1


@both_modes
async def test_a_middleware_may_fail_the_run_instead_of_telling_the_model(stream: bool) -> None:  # noqa: FBT001
    async def guard(_: FunctionInvocationContext, __: Callable[[], Awaitable[None]]) -> None:
        raise MiddlewareFailure("the tool is forbidden")

    client = ScriptedChatClient([ToolCall("weather", city="Oslo"), "never said"])
    with pytest.raises(MiddlewareFailure, match="forbidden"):
        await answer(client, stream=stream, options={"tools": [weather]}, middleware=[guard])
    assert len(client.calls) == 1


async def test_a_tool_that_is_slow_or_fails_is_tried_as_its_options_say() -> None:
    tries: list[int] = []

    @tool(retry=Retry(attempts=3, backoff=0))
    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "at last"

    @tool(timeout=0.001)
    async def slow() -> None:
        await asyncio.Event().wait()

    client = ScriptedChatClient([[ToolCall("flaky"), ToolCall("slow")], "done"])
    response = await answer(client, stream=False, options={"tools": [flaky, slow]})
    first, second = results(response)
    assert first.result == "at last"
    assert "StepTimeoutError" in (second.exception or "")


async def test_a_tool_that_asks_is_called_again_with_the_answers() -> None:
    inner = Content.from_function_call("inner", "pay", arguments={"amount": 3})
    calls: list[tuple[bool | None, ...]] = []

    @tool(retry=Retry(attempts=3, backoff=0))
    def delegate(ctx: FunctionInvocationContext) -> str:
        calls.append(tuple(each.approved for each in ctx.answers))
        if not ctx.answers:
            raise UserInputRequiredException([Content.from_function_approval_request("inner", inner)])
        return "paid"

    agent = Agent(ScriptedChatClient([ToolCall("delegate"), "done"]), name="a", tools=[delegate])
    session = AgentSession()
    first = await agent.run("hello", session=session)
    (request,) = first.user_input_requests
    assert calls == [()]
    second = await agent.run(Message("user", [request.to_function_approval_response(approved=True)]), session=session)
    assert calls == [(), (True,)]
    assert (results(second)[0].result, second.text) == ("paid", "done")
    assert "tool_approval" not in session.state


async def test_a_provider_that_keeps_the_conversation_is_told_only_what_is_new() -> None:
    call = Content.from_function_call("c", "weather", arguments={"city": "Oslo"})

    class Keeping(ScriptedChatClient):
        async def _perdure_ask(self, request: Any) -> ChatResponse[Any]:
            response = await super()._perdure_ask(request)
            response.conversation_id = "kept"
            return response

    client = Keeping(lambda messages, _: "Snow." if messages[-1].role == "tool" else call)
    response = await answer(client, stream=False, options={"tools": [weather]})
    assert [message.role for message in client.calls[1].messages] == ["tool"]
    assert client.calls[1].options["conversation_id"] == "kept"
    assert response.conversation_id == "kept"
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]


async def test_a_stream_that_is_dropped_leaves_nothing_running() -> None:
    client = ScriptedChatClient([ToolCall("weather", city="Oslo"), "Snow, and a lot of it."])
    stream = client.get_response(HELLO, stream=True, options={"tools": [weather]})
    async for update in stream:
        if update.role == "tool":
            break
    await stream.aclose()
    assert len(client.calls) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}
