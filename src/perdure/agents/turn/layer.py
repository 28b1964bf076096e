"""The layer of a client that makes the calls which its model asks for."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, cast

from perdure.agents.client.base import ChatLayer, OptionsT
from perdure.agents.client.middleware import categorize_middleware
from perdure.agents.client.streaming import Told
from perdure.agents.messages.message import messages_of
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate
from perdure.agents.tools.tool import normalize_tools
from perdure.agents.turn.call_ids import NamesCalls
from perdure.agents.turn.loop import Exchange
from perdure.agents.turn.recording import turn_of
from perdure.agents.turn.tool_calls import Caller
from perdure.data import frozen
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from perdure.agents.client.middleware import MiddlewareTypes
    from perdure.agents.client.streaming import ChatStream
    from perdure.agents.messages.message import Message
    from perdure.agents.tools.tool import FunctionTool


class FunctionInvocationConfiguration(TypedDict, total=False):
    """Whether and how a client makes the calls that its model asks for.

    `max_iterations` limits how often the model is asked, `max_function_calls` the calls; when a limit is reached the
    model is asked once more, and may call nothing. So it is after `max_consecutive_errors_per_request` rounds in which
    a call failed. `additional_tools` can be called, though the model is not told of them.
    """

    enabled: bool
    max_iterations: int
    max_function_calls: int | None
    max_consecutive_errors_per_request: int
    terminate_on_unknown_calls: bool
    additional_tools: Sequence[FunctionTool]
    include_detailed_errors: bool


# In the order of the fields of Limits.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "enabled": True,
    "max_iterations": 40,
    "max_function_calls": None,
    "max_consecutive_errors_per_request": 3,
    "terminate_on_unknown_calls": False,
    "additional_tools": (),
    "include_detailed_errors": False,
}
_LEAST: Final = {"max_iterations": 1, "max_function_calls": 1, "max_consecutive_errors_per_request": 0}


def normalize_function_invocation_configuration(
    given: FunctionInvocationConfiguration | None,
) -> FunctionInvocationConfiguration:
    """All settings, those that were not given by their defaults. Raises ValueError."""
    found: dict[str, Any] = {**_DEFAULTS, **cast("Mapping[str, Any]", given or {})}
    unknown = sorted(set(found) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"there is no setting named {', '.join(unknown)}; there are {', '.join(_DEFAULTS)}")
    for name, least in _LEAST.items():
        if found[name] is not None and found[name] < least:
            raise ValueError(f"{name} is {least} or more, not {found[name]!r}")
    return cast("FunctionInvocationConfiguration", found)


@frozen
class Limits:
    """The settings of one turn."""

    is_enabled: bool
    rounds: int
    calls: int | None
    failures_in_a_row: int
    requires_known: bool
    hidden_tools: Sequence[FunctionTool]
    tells_details: bool

    @classmethod
    def of(cls, given: FunctionInvocationConfiguration) -> Limits:
        """As they stand now: a client's configuration may be changed. Raises ValueError."""
        found: Mapping[str, Any] = cast("Mapping[str, Any]", normalize_function_invocation_configuration(given))
        return cls(*(found[name] for name in _DEFAULTS))


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
