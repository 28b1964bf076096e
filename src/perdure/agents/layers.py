"""What stands between an agent and a model: the protocol of a client, and the base of the layers around one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, overload, runtime_checkable

from typing_extensions import TypeVar

from perdure.agents.options import ChatOptions
from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from perdure.agents.compaction import CompactionStrategy, TokenizerProtocol
    from perdure.agents.messages import Message
    from perdure.agents.responses import ChatResponse
    from perdure.agents.streaming import ChatStream

OptionsT = TypeVar("OptionsT", default=ChatOptions[Any])


@runtime_checkable
class SupportsChatGetResponse(Protocol):
    """Anything that answers a conversation: a client of a model."""

    additional_properties: dict[str, Any]

    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: Any = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """An awaitable ChatResponse, or a ResponseStream of ChatResponseUpdates that ends in one."""
        ...


@frozen
class ModelRequest:
    """What a model is asked: the conversation as it will see it, options, and what is for this client alone."""

    messages: Sequence[Message]
    options: Mapping[str, Any]
    kwargs: Mapping[str, Any]


class ChatLayer(Generic[OptionsT]):
    """The base of clients and of the layers around them: `super()` is what stands behind."""

    @overload
    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: Literal[False] = ...,
        options: OptionsT | ChatOptions[Any] | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Awaitable[ChatResponse[Any]]: ...
    @overload
    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: Literal[True],
        options: OptionsT | ChatOptions[Any] | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ChatStream: ...
    @overload
    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: OptionsT | ChatOptions[Any] | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...
    def get_response(self, messages: Sequence[Message], *, stream: bool = False, **more: Any) -> Any:
        """The answer to a conversation: an awaitable ChatResponse, or a stream of pieces that ends in one."""
        del messages, stream, more
        raise TypeError(
            f"{type(self).__name__} has layers and no client behind them; let BaseChatClient be the last of its bases"
        )

    def _perdure_ask(self, request: ModelRequest) -> Awaitable[ChatResponse[Any]]:
        """Ask the model. What is done here is done when it is really asked, and not when its answer was recorded."""
        raise NotImplementedError

    def _perdure_ask_stream(self, request: ModelRequest) -> ChatStream:
        """Ask the model for an answer in pieces."""
        raise NotImplementedError
