"""Middleware at work: chains around runs of agents, calls of models and calls of tools; and the layer of a client."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, cast

from perdure.agent_errors import MiddlewareTermination
from perdure.agents.contexts import AgentContext, AgentMiddleware, ChatContext, ChatMiddleware, FunctionMiddleware
from perdure.agents.layers import ChatLayer, OptionsT
from perdure.agents.middleware_kinds import (
    KINDS,
    MiddlewareTypes,
    agent_middleware,
    categorize_middleware,
    chat_middleware,
    function_middleware,
    listed_middleware,
)
from perdure.agents.recording import taking, turn_of
from perdure.agents.responses import ChatResponse
from perdure.agents.streaming import told_as_stream
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure.agents.messages import Message
    from perdure.agents.recording import Turn
    from perdure.agents.sessions import AgentSession
    from perdure.agents.streaming import ChatStream

__all__ = [
    "KINDS",
    "AgentContext",
    "AgentMiddleware",
    "ChatContext",
    "ChatMiddleware",
    "ChatMiddlewareLayer",
    "FunctionMiddleware",
    "MiddlewareTermination",
    "MiddlewareTypes",
    "agent_middleware",
    "categorize_middleware",
    "chat_middleware",
    "function_middleware",
    "run_function_middleware",
    "run_middleware",
]


async def _chained(
    middleware: Sequence[Any], context: Any, call: Callable[[], Awaitable[Any]], *, place: int = 0
) -> None:
    """Call each middleware around the next, and the call itself innermost; the result goes into the context."""
    if place == len(middleware):
        context.result = await call()
        return
    each = middleware[place]
    process = getattr(each, "process", each)
    await process(context, lambda: _chained(middleware, context, call, place=place + 1))


async def run_middleware(
    middleware: Sequence[Any], context: AgentContext | ChatContext, call: Callable[[], Any]
) -> Any:
    """What comes back of a call with middleware around it: a whole or a stream; None if it was ended without one."""

    async def made() -> Any:
        given = call()
        if isinstance(given, ResponseStream):
            # It could be awaited, too, and would begin.
            return cast("Any", given)
        return await given if inspect.isawaitable(given) else given

    try:
        await _chained(middleware, context, made)
    except MiddlewareTermination as termination:
        if termination.result is not None:
            context.result = termination.result
    found: Any = context.result
    return _hooked(cast("ResponseStream[Any, Any]", found), context) if isinstance(found, ResponseStream) else found


def _hooked(stream: ResponseStream[Any, Any], context: AgentContext | ChatContext) -> ResponseStream[Any, Any]:
    for hook in context.stream_transform_hooks:
        stream.with_transform_hook(hook)
    for hook in context.stream_result_hooks:
        stream.with_result_hook(hook)
    for hook in context.stream_cleanup_hooks:
        stream.with_cleanup_hook(hook)
    return stream


async def run_function_middleware(middleware: Sequence[Any], context: Any, call: Callable[[], Awaitable[Any]]) -> Any:
    """What a tool gave, with middleware around its call. MiddlewareTermination is raised: it ends the turn."""
    await _chained(middleware, context, call)
    return context.result


class ChatMiddlewareLayer(ChatLayer[OptionsT], Generic[OptionsT]):
    """Lets chat middleware stand around each call of the model: that of the client, then that of the call."""

    def __init__(self, *, middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.chat_middleware: list[MiddlewareTypes] = listed_middleware(middleware)

    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: Any = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """The answer to a conversation: an awaitable ChatResponse, or a stream of pieces that ends in one."""
        kwargs = dict(client_kwargs or {})
        session: AgentSession | None = kwargs.pop("session", None)
        found = categorize_middleware(self.chat_middleware, kwargs.pop("middleware", None))
        if others := [*found["function"], *found["agent"]]:
            kwargs["middleware"] = others
        tools: Any = {"function_invocation_kwargs": function_invocation_kwargs, **more}
        if not found["chat"]:
            return super().get_response(messages, stream=stream, options=options, client_kwargs=kwargs, **tools)
        context = ChatContext(
            cast("Any", self),
            list(messages),
            options,
            stream,
            session,
            kwargs={**kwargs, **{name: value for name, value in more.items() if value is not None}},
            function_invocation_kwargs=function_invocation_kwargs,
        )
        turn = turn_of(type(self).__name__, context.messages)
        ask = super().get_response

        def answered() -> Awaitable[Any]:
            return run_middleware(found["chat"], context, lambda: _passed_on(ask, context, turn))

        return ResponseStream.from_awaitable(_as_stream(answered)) if stream else _as_whole(answered)


def _passed_on(ask: Callable[..., Any], context: ChatContext, turn: Turn) -> Any:
    """Ask what stands behind the layer, with what middleware has left in the context."""
    kwargs = dict(context.kwargs)
    for_layers: Any = {name: kwargs.pop(name, None) for name in ("compaction_strategy", "tokenizer")}
    with taking(turn):
        return ask(
            context.messages,
            stream=context.stream,
            options=context.options,
            function_invocation_kwargs=context.function_invocation_kwargs,
            client_kwargs=kwargs,
            **for_layers,
        )


async def _as_stream(answered: Callable[[], Awaitable[Any]]) -> ChatStream:
    found = await answered()
    if isinstance(found, ResponseStream):
        return cast("ChatStream", found)
    return told_as_stream(ChatResponse() if found is None else found)


async def _as_whole(answered: Callable[[], Awaitable[Any]]) -> ChatResponse[Any]:
    found = await answered()
    if isinstance(found, ResponseStream):
        return await cast("ChatStream", found).get_final_response()
    return ChatResponse() if found is None else found
