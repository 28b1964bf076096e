"""Middleware at work: chains around runs of agents, calls of models and calls of tools; and the layer of a client."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, cast, get_args

from perdure.agents.client.base import ChatLayer, OptionsT
from perdure.agents.client.streaming import told_as_stream
from perdure.agents.messages.responses import ChatResponse
from perdure.agents.turn.recording import taking, turn_of
from perdure.errors import MiddlewareException, MiddlewareTermination
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.client.base import CompactionStrategy, SupportsChatGetResponse, TokenizerProtocol
    from perdure.agents.client.streaming import ChatStream
    from perdure.agents.messages.message import Message
    from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate
    from perdure.agents.sessions.session import AgentSession
    from perdure.agents.tools.tool import FunctionInvocationContext
    from perdure.streams import CleanupHook, Hook

    CallNext: TypeAlias = Callable[[], Awaitable[None]]
    from perdure.agents.turn.recording import Turn


class _Context:
    """What the contexts of agents and of models have in common.

    `metadata` is for middleware to share. The hooks are for a stream: each sees a piece, the whole, the end.
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
    """One run of an agent: what it is given and, when the next one was called, its `result`.

    The result is an AgentResponse, or a ResponseStream if `stream`. Whoever sets it decides what comes back.
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
    """One call of a model: what it is shown and, when the next one was called, its `result`.

    The result is a ChatResponse, or a ResponseStream if `stream`. Whoever sets it decides what comes back.
    """

    def __init__(
        self,
        client: SupportsChatGetResponse,
        messages: Sequence[Message],
        options: Mapping[str, Any] | None,
        stream: bool = False,  # noqa: FBT001, FBT002 - the reference's signature
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
    """Stands around runs of an agent."""

    @abstractmethod
    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Do something before and after `await call_next()`, or in its place.

        Raise MiddlewareTermination to end the run here.
        """


class FunctionMiddleware(ABC):
    """Stands around calls of tools. In a workflow it is part of what is recorded."""

    @abstractmethod
    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Do something before and after `await call_next()`, or in its place.

        Raise MiddlewareTermination to end the turn with what the tools have given.
        """


class ChatMiddleware(ABC):
    """Stands around calls of a model. When a turn is taken up again it is called again; the model is not."""

    @abstractmethod
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Do something before and after `await call_next()`, or in its place.

        Raise MiddlewareTermination to end the call here.
        """


Kind: TypeAlias = Literal["agent", "function", "chat"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MiddlewareTypes: TypeAlias = "AgentMiddleware | FunctionMiddleware | ChatMiddleware | Callable[..., Any]"
"""Middleware of any kind: an object, or an async function of a context and `call_next`."""

FnT = TypeVar("FnT", bound=Callable[..., Any])

_BASES: dict[Kind, type] = {"agent": AgentMiddleware, "function": FunctionMiddleware, "chat": ChatMiddleware}
_CONTEXTS: dict[str, Kind] = {"AgentContext": "agent", "FunctionInvocationContext": "function", "ChatContext": "chat"}
_MARK = "__perdure_middleware__"
_PARAMETERS_MIN = 2


class MiddlewareDict(TypedDict):
    """Middleware, by kind."""

    agent: list[Any]
    function: list[Any]
    chat: list[Any]


def agent_middleware(func: FnT) -> FnT:
    """Let a function be middleware around runs of an agent."""
    return _marked(func, "agent")


def function_middleware(func: FnT) -> FnT:
    """Let a function be middleware around calls of tools."""
    return _marked(func, "function")


def chat_middleware(func: FnT) -> FnT:
    """Let a function be middleware around calls of a model."""
    return _marked(func, "chat")


def _marked(func: FnT, kind: Kind) -> FnT:
    setattr(func, _MARK, kind)
    return func


def categorize_middleware(*sources: MiddlewareTypes | Sequence[MiddlewareTypes] | None) -> MiddlewareDict:
    """Middleware by kind, each kind in its order. Raises MiddlewareException."""
    found = MiddlewareDict(agent=[], function=[], chat=[])
    for source in sources:
        for each in listed_middleware(source):
            found[_kind(each)].append(each)
    return found


def listed_middleware(given: MiddlewareTypes | Sequence[MiddlewareTypes] | None) -> list[MiddlewareTypes]:
    """One middleware or several, as a list."""
    if given is None:
        return []
    return list(cast("Sequence[MiddlewareTypes]", given)) if isinstance(given, Sequence) else [given]


def _kind(middleware: object) -> Kind:
    for kind, base in _BASES.items():
        if isinstance(middleware, base):
            return kind
    if not callable(middleware):
        raise MiddlewareException(
            f"{middleware!r} is no middleware; "
            "give an AgentMiddleware, a FunctionMiddleware, a ChatMiddleware or a function"
        )
    return _kind_of_function(middleware)


def _kind_of_function(func: Callable[..., Any]) -> Kind:
    name = getattr(func, "__name__", type(func).__name__)
    marked: Kind | None = getattr(func, _MARK, None)
    annotated = _annotated(func, name)
    if marked and annotated and marked != annotated:
        raise MiddlewareException(
            f"{name!r} is decorated as {marked} middleware, and its first parameter is that of {annotated} middleware; "
            "change one of the two"
        )
    kind = marked or annotated
    if kind is None:
        raise MiddlewareException(
            f"it can't be seen what {name!r} stands around; annotate its first parameter with AgentContext, "
            "FunctionInvocationContext or ChatContext, or decorate it with @agent_middleware, @function_middleware or "
            "@chat_middleware"
        )
    return kind


def _annotated(func: Callable[..., Any], name: str) -> Kind | None:
    parameters = list(inspect.signature(func).parameters.values())
    if len(parameters) < _PARAMETERS_MIN:
        raise MiddlewareException(f"{name!r} has {len(parameters)} parameters; middleware takes (context, call_next)")
    annotation = parameters[0].annotation
    # Where annotations are texts, the class need not be visible: its name is enough.
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _CONTEXTS.get(text.strip("'\"").rpartition(".")[2])


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
