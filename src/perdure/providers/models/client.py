"""Chat client for all providers that pydantic-ai has a model class for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self

from perdure import agents
from perdure.providers import needs_extra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.models import Model


class ModelClient(
    agents.FunctionInvocationLayer[agents.OptionsT],
    agents.ChatMiddlewareLayer[agents.OptionsT],
    agents.ChatTelemetryLayer[agents.OptionsT],
    agents.BaseChatClient[agents.OptionsT],
    Generic[agents.OptionsT],
):
    """Call a model by a name such as "anthropic:claude-opus-4-8", or through a model object of pydantic-ai.

    Keys come from the provider's environment variable (`ANTHROPIC_API_KEY`) or from a model object:
    `ModelClient(AnthropicModel(name, provider=AnthropicProvider(api_key=..., base_url=...)))`.

    `settings` are pydantic-ai's ModelSettings. The options of a call override them, and an option without a common name
    (`anthropic_thinking`) is passed on. The provider's own library retries after 429 and 5xx:
    `settings={"max_retries": 5, "timeout": 60}`. As a context manager it closes its connections.

    Raises:
        ChatClientInvalidRequestException: there is no such model, or its key is missing.
        ImportError: pydantic-ai is not installed, or not with this provider.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        settings: Mapping[str, Any] | None = None,
        middleware: Sequence[Any] | None = None,
        function_invocation_configuration: agents.FunctionInvocationConfiguration | None = None,
        **more: Any,
    ) -> None:
        with needs_extra("ModelClient needs", "models"):
            from perdure.providers.models import calls  # noqa: PLC0415 - pydantic-ai takes a second to load
        self._library = calls
        self._model: Model = self._library.find_model(model)
        self.settings: dict[str, Any] = dict(settings or {})
        self.model = self._model.model_name
        more.setdefault("otel_provider_name", self._model.system)
        super().__init__(
            middleware=middleware, function_invocation_configuration=function_invocation_configuration, **more
        )

    def _inner_get_response(
        self, *, messages: Sequence[agents.Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        conversation = agents.prepend_instructions_to_messages(messages, options.get("instructions"))
        call = self._library.Call.of(self._model_for(options), conversation, {**options, **kwargs}, self.settings)
        return call.stream() if stream else call.respond()

    def _model_for(self, options: Mapping[str, Any]) -> Model:
        """Return the model of a call. A name without a provider means the same provider."""
        name = options.get("model") or options.get("model_id")
        if name is None or name == self.model:
            return self._model
        return self._library.find_model(name if ":" in name else f"{self._model.system}:{name}")

    def service_url(self) -> str:
        """Return the server's address."""
        return self._model.base_url or "Unknown"

    async def __aenter__(self) -> Self:
        """Keep connections open until the end of the block."""
        await self._model.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close connections."""
        await self._model.__aexit__(None, None, None)

    def __repr__(self) -> str:
        return f"ModelClient({self._model.system!r}, {self.model!r})"
