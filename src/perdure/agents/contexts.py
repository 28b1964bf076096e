"""What middleware sees and changes: the context of a run of an agent and of a call of a model, and the three kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.compaction import CompactionStrategy, TokenizerProtocol
    from perdure.agents.layers import SupportsChatGetResponse
    from perdure.agents.messages import Message
    from perdure.agents.responses import AgentResponse, AgentResponseUpdate, ChatResponse
    from perdure.agents.sessions import AgentSession
    from perdure.agents.streaming import ChatStream
    from perdure.agents.tools import FunctionInvocationContext
    from perdure.streams import CleanupHook, Hook, ResponseStream

    CallNext: TypeAlias = Callable[[], Awaitable[None]]


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
