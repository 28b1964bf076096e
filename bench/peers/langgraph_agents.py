"""The agent that LangGraph is measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph

# It is the reducer that it documents for messages in such a channel, experimental as the channel is.
from langgraph.graph.message import _messages_delta_reducer

from bench.script import Model

if TYPE_CHECKING:
    from bench.peers.langgraph_graphs import Graph, Saver


class _DeltaMessages(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class _Chat(BaseChatModel):
    """A chat model, of a model that is known."""

    known: Any

    @property
    def _llm_type(self) -> str:
        return "known"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        assert isinstance(self.known, Model), "it stands in for one"
        said = self.known.reply(messages, lambda message: str(message.content))
        usage = UsageMetadata(
            input_tokens=said.input_tokens,
            output_tokens=said.output_tokens,
            total_tokens=said.input_tokens + said.output_tokens,
        )
        return ChatResult(generations=[ChatGeneration(message=AIMessage(said.text, usage_metadata=usage))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


def conversation(model: Model, saver: Saver, *, is_delta: bool) -> Graph:
    """A node that asks the model. The history is the channel of messages, which belongs to the thread."""
    chat = _Chat(known=model)

    async def assistant(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    builder = StateGraph(_DeltaMessages if is_delta else MessagesState)
    builder.add_node("assistant", assistant)
    builder.add_edge(START, "assistant")
    builder.add_edge("assistant", END)
    return builder.compile(checkpointer=saver)
