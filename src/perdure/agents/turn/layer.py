"""The client layer that makes the model's tool calls."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, cast

from perdure.agents.client.base import ChatLayer, OptionsT
from perdure.agents.client.middleware import categorize_middleware
from perdure.agents.client.streaming import SentUpdates
from perdure.agents.messages.message import normalize_messages
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate
from perdure.agents.tools.tool import normalize_tools
from perdure.agents.turn.call_ids import AssignCallIds
from perdure.agents.turn.loop import TurnLoop
from perdure.agents.turn.recording import current_turn
from perdure.agents.turn.tool_calls import ToolCaller
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from perdure.agents.client.middleware import MiddlewareTypes
    from perdure.agents.client.streaming import ChatStream
    from perdure.agents.messages.message import Message
    from perdure.agents.tools.tool import FunctionTool


class FunctionInvocationConfiguration(TypedDict, total=False):
    """Settings of the tool loop.

    `max_iterations` limits the model calls of a turn and `max_function_calls` its tool calls. At a limit, and after
    `max_consecutive_errors_per_request` rounds with a failed call, the model is called once more and may call no tools.
    `additional_tools` can be called, although the model is not told of them.
    """

    enabled: bool
    max_iterations: int
    max_function_calls: int | None
    max_consecutive_errors_per_request: int
    terminate_on_unknown_calls: bool
    additional_tools: Sequence[FunctionTool]
    include_detailed_errors: bool


_DEFAULTS: Final[Mapping[str, Any]] = {
    "enabled": True,
    "max_iterations": 40,
    "max_function_calls": None,
    "max_consecutive_errors_per_request": 3,
    "terminate_on_unknown_calls": False,
    "additional_tools": (),
    "include_detailed_errors": False,
}
_MINIMUM: Final = {"max_iterations": 1, "max_function_calls": 1, "max_consecutive_errors_per_request": 0}


def normalize_function_invocation_configuration(
    given: FunctionInvocationConfiguration | None,
) -> FunctionInvocationConfiguration:
    """Add the defaults of missing settings. Raises ValueError."""
    found: dict[str, Any] = {**_DEFAULTS, **cast("Mapping[str, Any]", given or {})}
    unknown = sorted(set(found) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"unknown settings {', '.join(unknown)}; the settings are {', '.join(_DEFAULTS)}")
    for name, least in _MINIMUM.items():
        if found[name] is not None and found[name] < least:
            raise ValueError(f"{name} must be {least} or more, not {found[name]!r}")
    return cast("FunctionInvocationConfiguration", found)


class FunctionInvocationLayer(ChatLayer[OptionsT], Generic[OptionsT]):
    """Make the calls that the model asks for, and give it the results, until it has answered.

    It is the first of a client's bases. In a workflow each tool call is a recorded step.
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
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """Return an awaitable ChatResponse, or a stream of updates that ends in one."""
        own_kwargs = dict(client_kwargs or {})
        found = categorize_middleware(own_kwargs.pop("middleware", None), more.pop("middleware", None))
        others = [*found["chat"], *found["agent"]]
        assign_ids = AssignCallIds()
        if others:
            own_kwargs["middleware"] = others
        given = dict(cast("Mapping[str, Any]", options or {}))
        arguments: Mapping[str, Any] = given.pop("additional_function_arguments", None) or {}
        more |= {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": own_kwargs}
        # Read at each call: a client's configuration may be changed.
        limits = normalize_function_invocation_configuration(self.function_invocation_configuration)
        if not limits.get("enabled"):
            return super().get_response(messages, stream=stream, options=given, **more)
        conversation = normalize_messages(messages)
        caller = ToolCaller(
            turn=current_turn(type(self).__name__, conversation),
            # A new list: tools may change it during the turn.
            tools=normalize_tools(given.get("tools")),
            hidden=limits.get("additional_tools", ()),
            middleware=[*self.function_middleware, *found["function"]],
            kwargs={**(function_invocation_kwargs or {}), **arguments},
            session=own_kwargs.get("session"),
            include_detailed_errors=limits.get("include_detailed_errors", False),
        )
        if others:
            own_kwargs["middleware"] = [*others, assign_ids]
        loop = TurnLoop(partial(super().get_response, **more), caller, conversation, given, limits, stream)
        assign_ids.ids = loop.call_ids
        return _stream(loop) if stream else _run(loop)


async def _run(loop: TurnLoop) -> ChatResponse[Any]:
    async for _ in loop.run():
        pass
    return loop.final_response()


def _stream(loop: TurnLoop) -> ChatStream:
    sent: SentUpdates[ChatResponseUpdate] = SentUpdates()

    async def updates() -> AsyncGenerator[ChatResponseUpdate]:
        async with aclosing(loop.run()) as found:
            async for update in found:
                yield sent.add(update)

    def finalize(found: Sequence[ChatResponseUpdate]) -> ChatResponse[Any]:
        if sent.equal(found):
            return loop.final_response()
        return ChatResponse[Any].from_updates(found, output_format_type=loop.options.get("response_format"))

    return ResponseStream(updates(), finalizer=finalize)
