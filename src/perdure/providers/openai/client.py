"""A client of OpenAI's models, and of every server that speaks the language of chat completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import Unpack

from perdure.agents import ChatMiddlewareLayer, ChatTelemetryLayer, FunctionInvocationLayer
from perdure.providers.openai.raw import OpenAIOptionsT, RawOpenAIChatClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents import FunctionInvocationConfiguration
    from perdure.providers.openai.settings import OpenAIClientSettings


class OpenAIChatClient(
    FunctionInvocationLayer[OpenAIOptionsT],
    ChatMiddlewareLayer[OpenAIOptionsT],
    ChatTelemetryLayer[OpenAIOptionsT],
    RawOpenAIChatClient[OpenAIOptionsT],
    Generic[OpenAIOptionsT],
):
    """Asks for chat completions: of OpenAI, Azure, or any server that speaks their language (Ollama, vLLM and others).

    What fails for a moment (too many requests, with the time that the server names; a server that is overloaded; a
    connection that is not made) the SDK tries again: `max_retries` says how often, 2 times if it is not given, and
    `timeout` how many seconds each try may take, 600 if it is not given. What still fails is a ChatClientException or
    one of its kinds. A failure is never recorded: a workflow that goes on makes the call again.

    Args:
        model: The model, or in Azure the deployment. Else OPENAI_CHAT_MODEL_ID or OPENAI_MODEL.
        middleware: Middleware around calls of the model and of tools.
        function_invocation_configuration: How tools are called.
        settings: How the server is reached, and more: `OpenAIClientSettings` says what.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        middleware: Sequence[Any] | None = None,
        function_invocation_configuration: FunctionInvocationConfiguration | None = None,
        **settings: Unpack[OpenAIClientSettings],
    ) -> None:
        super().__init__(
            model=model,
            middleware=middleware,
            function_invocation_configuration=function_invocation_configuration,
            **settings,
        )
