"""Middleware around agent runs, model calls and tool calls, and the client layer that runs chat middleware."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

from perdure.agents.client.base import ChatLayer, OptionsT, SupportsChatGetResponse
from perdure.agents.client.streaming import ChatStream, stream_response
from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate, ChatResponse, Response
from perdure.agents.turn.recording import current_turn, use_turn
from perdure.errors import MiddlewareException, MiddlewareTermination
from perdure.streams import CleanupHook, Hook, ResponseStream

if TYPE_CHECKING:
    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.client.compaction import CompactionStrategy
    from perdure.agents.client.tokens import TokenizerProtocol
    from perdure.agents.messages.message import Message
    from perdure.agents.sessions.session import AgentSession
    from perdure.agents.tools.tool import FunctionInvocationContext

    CallNext: TypeAlias = Callable[[], Awaitable[None]]


class _Context:
    """Base of the contexts of agents and models.

    Middleware shares data in `metadata`. The hooks apply to a stream: to each update, the final response, the end.
    """

    def __init__(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        stream_transform_hooks: Sequence[Hook[Any]] | None = None,
        stream_result_hooks: Sequence[Hook[Any]] | None = None,
        stream_cleanup_hooks: Sequence[CleanupHook] | None = None,
    ) -> None:
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self.function_invocation_kwargs: dict[str, Any] = dict(function_invocation_kwargs or {})
        self.stream_transform_hooks: list[Hook[Any]] = list(stream_transform_hooks or ())
        self.stream_result_hooks: list[Hook[Any]] = list(stream_result_hooks or ())
        self.stream_cleanup_hooks: list[CleanupHook] = list(stream_cleanup_hooks or ())


class AgentContext(_Context):
    """One run of an agent: its inputs and, after `call_next()`, its `result`.

    The result is an AgentResponse, or a ResponseStream if `stream` is True. Middleware may replace it.
    """

    def __init__(
        self,
        *,
        agent: SupportsAgentRun,
        messages: list[Message],
        session: AgentSession | None = None,
        tools: Any = None,
        options: Mapping[str, Any] | None = None,
        stream: bool = False,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        result: AgentResponse[Any] | ResponseStream[AgentResponseUpdate, AgentResponse[Any]] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.agent = agent
        self.messages = messages
        self.session = session
        self.tools = tools
        self.options = options
        self.stream = stream
        self.compaction_strategy = compaction_strategy
        self.tokenizer = tokenizer
        self.result = result
        self.client_kwargs: dict[str, Any] = dict(client_kwargs or {})


class ChatContext(_Context):
    """One model call: its inputs and, after `call_next()`, its `result`.

    The result is a ChatResponse, or a ResponseStream if `stream` is True. Middleware may replace it.
    """

    def __init__(
        self,
        client: SupportsChatGetResponse,
        messages: Sequence[Message],
        options: Mapping[str, Any] | None,
        stream: bool = False,  # noqa: FBT001, FBT002 - public signature
        session: AgentSession | None = None,
        *,
        result: ChatResponse[Any] | ChatStream | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.client = client
        self.messages = messages
        self.options = options
        self.stream = stream
        self.session = session
        self.result = result


class AgentMiddleware(ABC):
    """Base of middleware around agent runs."""

    @abstractmethod
    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Run code before and after `await call_next()`, or instead of it.

        Raise MiddlewareTermination to end the run here.
        """


class FunctionMiddleware(ABC):
    """Base of middleware around tool calls. In a workflow its work is part of the recorded step."""

    @abstractmethod
    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Run code before and after `await call_next()`, or instead of it.

        Raise MiddlewareTermination to end the turn with the results so far.
        """


class ChatMiddleware(ABC):
    """Base of middleware around model calls. A resumed turn calls it again, but not the model."""

    @abstractmethod
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Run code before and after `await call_next()`, or instead of it.

        Raise MiddlewareTermination to end the call here.
        """


Kind: TypeAlias = Literal["agent", "function", "chat"]

AgentMiddlewareTypes: TypeAlias = AgentMiddleware | Callable[..., Any]
FunctionMiddlewareTypes: TypeAlias = FunctionMiddleware | Callable[..., Any]
ChatMiddlewareTypes: TypeAlias = ChatMiddleware | Callable[..., Any]
ChatAndFunctionMiddlewareTypes: TypeAlias = FunctionMiddleware | ChatMiddleware | Callable[..., Any]


class MiddlewareBundle:
    """Middleware that belongs together, passed as one. It is not a sequence, so that no part of it is left out."""

    def __init__(self, middleware: Sequence[Any]) -> None:
        self.members = tuple(middleware)
        categorize_middleware(self.members)


MiddlewareTypes: TypeAlias = (
    AgentMiddleware | FunctionMiddleware | ChatMiddleware | MiddlewareBundle | Callable[..., Any]
)
"""Middleware of any kind: an object, or an async function with the parameters `context` and `call_next`."""

FnT = TypeVar("FnT", bound=Callable[..., Any])

_BASES: dict[Kind, type] = {"agent": AgentMiddleware, "function": FunctionMiddleware, "chat": ChatMiddleware}
_CONTEXTS: dict[str, Kind] = {"AgentContext": "agent", "FunctionInvocationContext": "function", "ChatContext": "chat"}
_MARK = "__perdure_middleware__"
_PARAMETERS_MIN = 2


def agent_middleware(func: FnT) -> FnT:
    """Mark a function as middleware of agent runs."""
    setattr(func, _MARK, "agent")
    return func


def function_middleware(func: FnT) -> FnT:
    """Mark a function as middleware of tool calls."""
    setattr(func, _MARK, "function")
    return func


def chat_middleware(func: FnT) -> FnT:
    """Mark a function as middleware of model calls."""
    setattr(func, _MARK, "chat")
    return func


def categorize_middleware(*sources: MiddlewareTypes | Sequence[MiddlewareTypes] | None) -> dict[Kind, list[Any]]:
    """Sort middleware by kind and keep the order within each kind. Raises MiddlewareException."""
    found: dict[Kind, list[Any]] = {"agent": [], "function": [], "chat": []}
    for source in sources:
        for each in list_middleware(source):
            found[_kind(each)].append(each)
    return found


def list_middleware(given: MiddlewareTypes | Sequence[MiddlewareTypes] | None) -> list[MiddlewareTypes]:
    """Return one or several middleware as a list."""
    if given is None:
        return []
    several = list(cast("Sequence[MiddlewareTypes]", given)) if isinstance(given, Sequence) else [given]
    return [each for one in several for each in (one.members if isinstance(one, MiddlewareBundle) else (one,))]


def _kind(middleware: object) -> Kind:
    for kind, base in _BASES.items():
        if isinstance(middleware, base):
            return kind
    if not callable(middleware):
        raise MiddlewareException(
            f"{middleware!r} is not middleware; "
            "use an AgentMiddleware, a FunctionMiddleware, a ChatMiddleware or a function"
        )
    name = getattr(middleware, "__name__", type(middleware).__name__)
    parameters = list(inspect.signature(middleware).parameters.values())
    if len(parameters) < _PARAMETERS_MIN:
        raise MiddlewareException(f"{name!r} has {len(parameters)} parameters; middleware takes (context, call_next)")
    annotation = parameters[0].annotation
    # The annotation may be a string whose class is not imported, so compare names.
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    annotated = _CONTEXTS.get(text.strip("'\"").rpartition(".")[2])
    marked: Kind | None = getattr(middleware, _MARK, None)
    if marked and annotated and marked != annotated:
        raise MiddlewareException(
            f"{name!r} is decorated as {marked} middleware, but its first parameter belongs to {annotated} middleware; "
            "change one of the two"
        )
    if found := marked or annotated:
        return found
    raise MiddlewareException(
        f"the kind of middleware {name!r} is unknown; annotate its first parameter with AgentContext, "
        "FunctionInvocationContext or ChatContext, or decorate it with @agent_middleware, @function_middleware or "
        "@chat_middleware"
    )


async def call_chain(
    middleware: Sequence[Any], context: Any, call: Callable[[], Awaitable[Any]], *, place: int = 0
) -> None:
    """Call each middleware around the next one and `call` innermost, and put the result into the context."""
    if place == len(middleware):
        context.result = await call()
        return
    each = middleware[place]
    process = getattr(each, "process", each)
    await process(context, lambda: call_chain(middleware, context, call, place=place + 1))


def call_through(
    middleware: Sequence[Any], context: AgentContext | ChatContext, call: Callable[[], Any], empty: type[Response[Any]]
) -> Any:
    """Make a call inside its middleware. Returns an awaitable response, or a stream if the context says so.

    Without a result the response is an `empty` one.
    """
    if not middleware:
        return ResponseStream.from_awaitable(call()) if context.stream else call()

    async def resolve() -> Any:
        given: Any = call()
        # A stream is awaitable too; awaiting it here would start it.
        return (
            await given
            if inspect.isawaitable(given) and not isinstance(cast("object", given), ResponseStream)
            else given
        )

    async def run() -> Any:
        try:
            await call_chain(middleware, context, resolve)
        except MiddlewareTermination as termination:
            if termination.result is not None:
                context.result = termination.result
        found: Any = empty() if context.result is None else context.result
        if not isinstance(cast("object", found), ResponseStream):
            return stream_response(found) if context.stream else found
        stream = _with_hooks(found, context)
        return stream if context.stream else await stream.get_final_response()

    return ResponseStream.from_awaitable(run()) if context.stream else run()


def _with_hooks(stream: ResponseStream[Any, Any], context: AgentContext | ChatContext) -> ResponseStream[Any, Any]:
    for hook in context.stream_transform_hooks:
        stream.with_transform_hook(hook)
    for hook in context.stream_result_hooks:
        stream.with_result_hook(hook)
    for hook in context.stream_cleanup_hooks:
        stream.with_cleanup_hook(hook)
    return stream


class ChatMiddlewareLayer(ChatLayer[OptionsT], Generic[OptionsT]):
    """Run chat middleware around each model call: first the client's own, then that of the call."""

    def __init__(self, *, middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.chat_middleware: list[MiddlewareTypes] = list_middleware(middleware)

    def get_response(
        self, messages: Sequence[Message], *, stream: bool = False, options: Any = None, **more: Any
    ) -> Any:
        """Return an awaitable ChatResponse, or a stream of updates that ends in one."""
        kwargs = dict(more.pop("client_kwargs", None) or {})
        session: AgentSession | None = kwargs.pop("session", None)
        found = categorize_middleware(self.chat_middleware, kwargs.pop("middleware", None))
        if others := [*found["function"], *found["agent"]]:
            kwargs["middleware"] = others
        if not found["chat"]:
            return super().get_response(messages, stream=stream, options=options, client_kwargs=kwargs, **more)
        tool_kwargs: Mapping[str, Any] | None = more.pop("function_invocation_kwargs", None)
        context = ChatContext(
            cast("Any", self),
            list(messages),
            options,
            stream,
            session,
            kwargs={**kwargs, **{name: value for name, value in more.items() if value is not None}},
            function_invocation_kwargs=tool_kwargs,
        )
        turn = current_turn(type(self).__name__, context.messages)
        ask = super().get_response

        def call_model() -> Any:
            """Call the next layer with the context as the middleware left it."""
            left = dict(context.kwargs)
            for_layers: Any = {name: left.pop(name, None) for name in ("compaction_strategy", "tokenizer")}
            with use_turn(turn):
                return ask(
                    context.messages,
                    stream=context.stream,
                    options=context.options,
                    function_invocation_kwargs=context.function_invocation_kwargs,
                    client_kwargs=left,
                    **for_layers,
                )

        return call_through(found["chat"], context, call_model, ChatResponse)
