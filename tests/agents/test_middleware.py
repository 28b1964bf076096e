"""Middleware: which kind something is, what it sees, and what it can change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.stub_model import Model

from perdure.agents import (
    Agent,
    AgentContext,
    AgentMiddleware,
    AgentResponse,
    AgentResponseUpdate,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    FunctionMiddleware,
    Message,
    MiddlewareBundle,
    agent_middleware,
    chat_middleware,
    function_middleware,
)
from perdure.agents.client.middleware import call_chain, categorize_middleware
from perdure.errors import MiddlewareException, MiddlewareTermination

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.agents import FunctionInvocationContext

    CallNext = Callable[[], Awaitable[None]]


class Around(AgentMiddleware):
    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        context.messages.append(Message("user", ["and be kind"]))
        await call_next()


class Watching(FunctionMiddleware):
    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        del context
        await call_next()


class Asking(ChatMiddleware):
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        del context
        await call_next()


async def by_annotation_agent(context: AgentContext, call_next: CallNext) -> None: ...
async def by_annotation_function(context: FunctionInvocationContext, call_next: CallNext) -> None: ...
async def by_annotation_chat(context: ChatContext, call_next: CallNext) -> None: ...
@agent_middleware
async def by_mark_agent(context: Any, call_next: Any) -> None: ...
@function_middleware
async def by_mark_function(context: Any, call_next: Any) -> None: ...
@chat_middleware
async def by_mark_chat(context: Any, call_next: Any) -> None: ...


def test_middleware_is_told_apart_by_class_annotation_and_mark() -> None:
    around, watching, asking = Around(), Watching(), Asking()
    found = categorize_middleware(
        [around, watching, asking],
        [by_annotation_agent, by_annotation_function, by_annotation_chat],
        [by_mark_agent, by_mark_function, by_mark_chat],
    )
    assert found == {
        "agent": [around, by_annotation_agent, by_mark_agent],
        "function": [watching, by_annotation_function, by_mark_function],
        "chat": [asking, by_annotation_chat, by_mark_chat],
    }


async def no_kind(context: Any, call_next: Any) -> None: ...
async def too_short(context: AgentContext) -> None: ...
@chat_middleware
async def of_two_minds(context: AgentContext, call_next: Any) -> None: ...


@pytest.mark.parametrize(
    ("middleware", "message"),
    [
        (no_kind, "the kind of middleware 'no_kind' is unknown"),
        (too_short, "'too_short' has 1 parameters"),
        (of_two_minds, "decorated as chat middleware"),
        (3, "3 is not middleware"),
    ],
)
def test_what_can_not_be_told_apart_is_refused(middleware: Any, message: str) -> None:
    with pytest.raises(MiddlewareException, match=message):
        categorize_middleware([middleware])


async def text_of(agent: Agent[Any], *, stream: bool, **more: Any) -> str:
    answer: Any = agent.run("hi", stream=stream, **more)
    response = await (answer.get_final_response() if stream else answer)
    return response.text.strip()


@pytest.mark.parametrize("stream", [False, True])
async def test_each_kind_stands_around_its_own_outermost_first(stream: bool) -> None:  # noqa: FBT001
    order: list[str] = []

    def noting(name: str) -> Any:
        async def note(context: Any, call_next: CallNext) -> None:
            del context
            order.append(f"{name} in")
            await call_next()
            order.append(f"{name} out")

        return note

    agent = Agent(
        Model(middleware=[chat_middleware(noting("client"))]),
        middleware=[agent_middleware(noting("agent")), chat_middleware(noting("chat"))],
    )
    await text_of(agent, stream=stream, middleware=[agent_middleware(noting("run"))])
    entered = ["agent in", "run in", "client in", "chat in"]
    assert [name for name in order if name.endswith("in")] == entered
    if not stream:
        assert order == [*entered, "chat out", "client out", "run out", "agent out"]


async def test_middleware_changes_what_the_agent_is_told() -> None:
    assert await text_of(Agent(Model(), middleware=[Around()]), stream=False) == "user: hi | user: and be kind"


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_middleware_changes_what_the_model_is_shown(stream: bool) -> None:  # noqa: FBT001
    async def hide(context: ChatContext, call_next: CallNext) -> None:
        context.messages = [Message("user", ["nothing"])]
        context.options = {**(context.options or {}), "temperature": 0.0}
        await call_next()

    model = Model()
    assert await text_of(Agent(model, middleware=[hide]), stream=stream) == "user: nothing"
    assert model.calls[0][1]["temperature"] == 0.0


@pytest.mark.parametrize("stream", [False, True])
async def test_middleware_can_answer_in_place_of_the_model(stream: bool) -> None:  # noqa: FBT001
    async def cached(context: ChatContext, call_next: CallNext) -> None:
        del call_next
        context.result = ChatResponse(messages=Message("assistant", ["from the cache"]))

    async def polite(context: AgentContext, call_next: CallNext) -> None:
        del call_next
        context.result = AgentResponse(messages=Message("assistant", ["no, thank you"]))

    model = Model()
    assert await text_of(Agent(model, middleware=[cached]), stream=stream) == "from the cache"
    assert await text_of(Agent(model, middleware=[polite]), stream=stream) == "no, thank you"
    assert model.calls == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mark", [agent_middleware, chat_middleware])
async def test_a_termination_ends_the_run_with_its_result_or_with_nothing(mark: Any, stream: bool) -> None:  # noqa: FBT001
    kind = AgentResponse if mark is agent_middleware else ChatResponse

    async def enough(context: Any, call_next: Any) -> None:
        del context, call_next
        raise MiddlewareTermination(result=kind(messages=Message("assistant", ["enough"])))

    async def silent(context: Any, call_next: Any) -> None:
        del context, call_next
        raise MiddlewareTermination

    assert await text_of(Agent(Model(), middleware=[mark(enough)]), stream=stream) == "enough"
    assert await text_of(Agent(Model(), middleware=[mark(silent)]), stream=stream) == ""


async def test_a_result_can_be_looked_at_and_replaced() -> None:
    async def shout(context: AgentContext, call_next: CallNext) -> None:
        await call_next()
        assert isinstance(context.result, AgentResponse)
        context.result = AgentResponse(messages=Message("assistant", [context.result.text.upper()]))

    assert await text_of(Agent(Model(), middleware=[shout]), stream=False) == "USER: HI"


async def test_a_middleware_may_call_the_next_one_again() -> None:
    async def twice(context: ChatContext, call_next: CallNext) -> None:
        del context
        await call_next()
        await call_next()

    model = Model()
    await text_of(Agent(model, middleware=[twice]), stream=False)
    assert len(model.calls) == 2


async def test_hooks_of_an_agent_change_its_pieces_its_whole_and_hear_its_end() -> None:
    heard: list[str] = []

    def shout(update: AgentResponseUpdate) -> AgentResponseUpdate:
        return AgentResponseUpdate(contents=[update.text.upper()], role="assistant")

    async def hook(context: AgentContext, call_next: CallNext) -> None:
        context.stream_transform_hooks.append(shout)
        context.stream_result_hooks.append(lambda whole: heard.append(whole.text))
        context.stream_cleanup_hooks.append(lambda: heard.append("over"))
        await call_next()

    stream = Agent(Model(), middleware=[hook]).run("hi", stream=True)
    assert [update.text async for update in stream] == ["USER: ", "HI ", ""]
    assert (await stream.get_final_response()).text == "USER: HI "
    assert heard == ["over", "USER: HI "]


async def test_hooks_of_a_model_change_what_the_session_remembers() -> None:
    def shout(update: ChatResponseUpdate) -> ChatResponseUpdate:
        return ChatResponseUpdate(contents=[update.text.upper()], role="assistant")

    async def hook(context: ChatContext, call_next: CallNext) -> None:
        context.stream_transform_hooks.append(shout)
        await call_next()

    agent = Agent(Model(), middleware=[hook])
    session = agent.create_session()
    await text_of(agent, stream=True, session=session)
    assert [message.text for message in session.state["in_memory"]["messages"]] == ["hi", "USER: HI "]


async def test_middleware_of_tools_sees_the_result_and_a_termination_reaches_the_loop() -> None:
    class Context:
        result: Any = None

    async def call() -> int:
        return 3

    async def double(context: Any, call_next: CallNext) -> None:
        await call_next()
        context.result *= 2

    async def end(context: Any, call_next: CallNext) -> None:
        del context, call_next
        raise MiddlewareTermination

    for middleware, result in (([double, double], 12), ([], 3)):
        context: Any = Context()
        await call_chain(middleware, context, call)
        assert context.result == result
    with pytest.raises(MiddlewareTermination):
        await call_chain([double, end], Context(), call)


async def test_a_bundle_is_installed_as_a_whole() -> None:
    bundle = MiddlewareBundle([Around(), Watching(), Asking()])
    found = categorize_middleware([by_mark_agent, bundle])
    assert [type(each).__name__ for each in found["agent"]] == ["function", "Around"]
    assert (len(found["function"]), len(found["chat"])) == (1, 1)
    model = Model()
    await Agent(model, middleware=bundle).run("hi")
    assert [message.text for message in model.calls[0][0]] == ["hi", "and be kind"]
    with pytest.raises(MiddlewareException, match="is not middleware"):
        MiddlewareBundle([Around(), 3])
