"""Chat client for the models of a Microsoft Foundry project, with Azure credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic

from typing_extensions import Unpack

from perdure.providers.openai import OpenAIChatClient, OpenAIChatOptions
from perdure.providers.openai.client import OpenAIOptionsT, first_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents import FunctionInvocationConfiguration
    from perdure.providers.openai.settings import OpenAIClientSettings

FoundryChatOptions = OpenAIChatOptions

_ENDPOINT_VARIABLES = ("FOUNDRY_PROJECT_ENDPOINT", "AZURE_AI_PROJECT_ENDPOINT")
_MODEL_VARIABLES = ("FOUNDRY_MODEL", "FOUNDRY_MODEL_DEPLOYMENT_NAME", "AZURE_AI_MODEL_DEPLOYMENT_NAME")
_SCOPE = "https://ai.azure.com/.default"


class FoundryChatClient(OpenAIChatClient[OpenAIOptionsT], Generic[OpenAIOptionsT]):
    """Call a model that is deployed in a Foundry project, by the chat completions API of its resource.

    Args:
        project_endpoint: The project: `https://<resource>.services.ai.azure.com/api/projects/<project>`. Default:
            FOUNDRY_PROJECT_ENDPOINT or AZURE_AI_PROJECT_ENDPOINT.
        model: The deployment. Default: FOUNDRY_MODEL, FOUNDRY_MODEL_DEPLOYMENT_NAME or AZURE_AI_MODEL_DEPLOYMENT_NAME.
        project_client: An `AIProjectClient` whose SDK client is used as it is.
        middleware: Middleware around model and tool calls.
        function_invocation_configuration: Settings of the tool loop.
        settings: `credential` is one of `azure.identity`, or any object with `get_token`, sync or async. Tokens are
            renewed before they expire. Or an `api_key` of the resource. The others are those of OpenAIChatClient.
    """

    OTEL_PROVIDER_NAME: ClassVar[str] = "azure.ai.foundry"
    _EXTRA: ClassVar[str] = "foundry"

    def __init__(
        self,
        *,
        project_endpoint: str | None = None,
        project_client: Any = None,
        model: str | None = None,
        middleware: Sequence[Any] | None = None,
        function_invocation_configuration: FunctionInvocationConfiguration | None = None,
        **settings: Unpack[OpenAIClientSettings],
    ) -> None:
        endpoint = project_endpoint or first_set(_ENDPOINT_VARIABLES)
        if project_client is not None:
            settings["async_client"] = project_client.get_openai_client()
        if settings.get("async_client") is None:
            settings["azure_endpoint"] = foundry_url(_require_endpoint(endpoint))
        settings.setdefault("credential_scope", _SCOPE)
        super().__init__(
            model or settings.get("model_id") or first_set(_MODEL_VARIABLES),
            middleware=middleware,
            function_invocation_configuration=function_invocation_configuration,
            **settings,
        )
        self.project_endpoint = endpoint

    @staticmethod
    def get_web_search_tool(
        *, user_location: dict[str, str] | None = None, search_context_size: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Return a hosted tool: a model that supports it searches the web before it answers."""
        location = None if user_location is None else {"type": "approximate", "approximate": user_location}
        options = {"user_location": location, "search_context_size": search_context_size}
        return {"type": "web_search", **{name: value for name, value in options.items() if value is not None}, **more}

    @staticmethod
    def get_code_interpreter_tool(**more: Any) -> dict[str, Any]:
        """Return a hosted tool of the provider's other API. Chat completions reject it."""
        return {"type": "code_interpreter", "container": {"type": "auto"}, **more}

    @staticmethod
    def get_file_search_tool(*, vector_store_ids: Sequence[str], **more: Any) -> dict[str, Any]:
        """Return a hosted tool of the provider's other API. Chat completions reject it."""
        return {"type": "file_search", "vector_store_ids": list(vector_store_ids), **more}


def foundry_url(project_endpoint: str) -> str:
    """Return the address for chat completions: that of the project's resource, not of the project."""
    endpoint = project_endpoint.rstrip("/")
    if endpoint.endswith("/openai/v1"):
        return endpoint
    return f"{endpoint.partition('/api/projects/')[0]}/openai/v1"


def _require_endpoint(endpoint: str | None) -> str:
    if not endpoint:
        raise ValueError(f"no project is given; use project_endpoint=, or set {_ENDPOINT_VARIABLES[0]}")
    return endpoint
