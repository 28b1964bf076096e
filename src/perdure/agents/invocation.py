"""The layer of a client that makes the calls which its model asks for."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

from perdure.agents.call_ids import NamesCalls
from perdure.agents.invocation_calls import Caller
from perdure.agents.invocation_loop import Exchange
from perdure.agents.invocation_settings import (
    FunctionInvocationConfiguration,
    Limits,
    normalize_function_invocation_configuration,
)
from perdure.agents.layers import ChatLayer, OptionsT
from perdure.agents.messages import messages_of
from perdure.agents.middleware_kinds import categorize_middleware
from perdure.agents.recording import turn_of
from perdure.agents.responses import ChatResponse, ChatResponseUpdate
from perdure.agents.streaming import Told
from perdure.agents.tools import normalize_tools
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from perdure.agents.messages import Message
    from perdure.agents.middleware_kinds import MiddlewareTypes
    from perdure.agents.streaming import ChatStream

__all__ = ["FunctionInvocationConfiguration", "FunctionInvocationLayer", "normalize_function_invocation_configuration"]


class FunctionInvocationLayer(ChatLayer[OptionsT], Generic[OptionsT]):
    """Lets a client make the calls that its model asks for, and ask it again with the results, until it has answered.

    It is the first of a client's bases. In a workflow each call is a step: what came back is recorded.
    """

    def __init__(
        self,
        *,
        middleware: Sequence[MiddlewareTypes] | None = None,
        function_invocation_configuration: FunctionInvocationConfiguration | None = None,
        **more: Any,
    ) -> None:
        found = categorize_middleware(middleware)
        self.function_middleware: list[MiddlewareTypes] = list(found["function"])
        self.function_invocation_configuration = normalize_function_invocation_configuration(
            function_invocation_configuration
        )
        if others := [*found["chat"], *found["agent"]]:
            more["middleware"] = others
        super().__init__(**more)

    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: Any = None,
        middleware: Sequence[MiddlewareTypes] | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """The answer to a conversation: an awaitable ChatResponse, or a stream of pieces that ends in one."""
        own_kwargs = dict(client_kwargs or {})
        found = categorize_middleware(own_kwargs.pop("middleware", None), middleware)
        names_calls = NamesCalls()
        if others := [*found["chat"], *found["agent"]]:
            own_kwargs["middleware"] = others
        given = dict(cast("Mapping[str, Any]", options or {}))
        extra: Mapping[str, Any] = given.pop("additional_function_arguments", None) or {}
        more |= {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": own_kwargs}
        limits = Limits.of(self.function_invocation_configuration)
        if not limits.is_enabled:
            return super().get_response(messages, stream=stream, options=given, **more)
        caller = Caller(
            turn=turn_of(type(self).__name__, messages_of(messages)),
            # A list of its own: tools may change it in the middle of the turn.
            tools=normalize_tools(given.get("tools")),
            hidden=limits.hidden_tools,
            middleware=[*self.function_middleware, *found["function"]],
            kwargs={**(function_invocation_kwargs or {}), **extra},
            session=own_kwargs.get("session"),
            tells_details=limits.tells_details,
        )
        if others:
            own_kwargs["middleware"] = [*others, names_calls]
        ask = partial(super().get_response, **more)
        exchange = Exchange(ask, caller, messages_of(messages), given, limits, stream)
        names_calls.ids = exchange.call_ids
        return _streamed(exchange) if stream else _whole(exchange)


async def _whole(exchange: Exchange) -> ChatResponse[Any]:
    async for _ in exchange.rounds():
        pass
    return exchange.whole()


def _streamed(exchange: Exchange) -> ChatStream:
    told: Told[ChatResponseUpdate] = Told()

    async def pieces() -> AsyncGenerator[ChatResponseUpdate]:
        async with aclosing(exchange.rounds()) as rounds:
            async for update in rounds:
                yield told.note(update)

    def whole(updates: Sequence[ChatResponseUpdate]) -> ChatResponse[Any]:
        if told.are(updates):
            return exchange.whole()
        return ChatResponse[Any].from_updates(updates, output_format_type=exchange.options.get("response_format"))

    return ResponseStream(pieces(), finalizer=whole)
