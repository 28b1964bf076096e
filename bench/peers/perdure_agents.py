"""The agent that perdure is measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatTelemetryLayer,
    FunctionInvocationLayer,
    Message,
    UsageDetails,
    Workflow,
    WorkflowBuilder,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from bench.script import Model
    from perdure.storage import StoreStorage


class _Client(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    """A client with all the layers of a real one, of a model that is known."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._known = model

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse]:
        assert not stream, "nobody asks for pieces here"
        del options, kwargs
        return self._answer(messages)

    async def _answer(self, messages: Sequence[Message]) -> ChatResponse:
        said = self._known.reply(messages, lambda message: message.text)
        return ChatResponse(
            messages=Message("assistant", [said.text]),
            finish_reason="stop",
            usage_details=UsageDetails(
                input_token_count=said.input_tokens,
                output_token_count=said.output_tokens,
                total_token_count=said.input_tokens + said.output_tokens,
            ),
        )


def conversation(model: Model, storage: StoreStorage | None) -> Workflow:
    """An agent alone in a workflow. It has a session of its own, which keeps the history."""
    agent = Agent(_Client(model), name="assistant")
    builder = WorkflowBuilder(
        name="conversation", start_executor=agent, checkpoint_storage=storage, output_from=[agent]
    )
    return builder.build()
