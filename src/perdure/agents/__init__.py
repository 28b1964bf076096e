"""Agents: messages, chat clients, tools, turns, sessions, and the executor that runs an agent in a workflow."""

from perdure.agents import plain as plain
from perdure.agents import storing as storing
from perdure.agents.agent import Agent, BaseAgent, SupportsAgentRun
from perdure.agents.client.base import (
    BaseChatClient,
    CompactionStrategy,
    OptionsT,
    SupportsChatGetResponse,
    TokenizerProtocol,
    prepend_instructions_to_messages,
)
from perdure.agents.client.middleware import (
    AgentContext,
    AgentMiddleware,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    FunctionMiddleware,
    MiddlewareTypes,
    agent_middleware,
    chat_middleware,
    function_middleware,
)
from perdure.agents.client.options import (
    ChatOptions,
    ResponseModelT,
    ToolMode,
    merge_chat_options,
    validate_chat_options,
    validate_tool_mode,
)
from perdure.agents.client.streaming import ChatStream
from perdure.agents.client.telemetry import ChatTelemetryLayer
from perdure.agents.executor.agent_executor import AgentExecutor
from perdure.agents.executor.messages import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    resolve_agent_id,
)
from perdure.agents.executor.requests import told_on
from perdure.agents.executor.turn import tokens_in
from perdure.agents.messages.content import Content, ContentType, UsageDetails, add_usage_details
from perdure.agents.messages.conversation import unheard
from perdure.agents.messages.message import (
    AgentRunInputs,
    Message,
    Role,
    RoleLiteral,
    messages_of,
    normalize_messages,
)
from perdure.agents.messages.responses import (
    AgentResponse,
    AgentResponseUpdate,
    ChatResponse,
    ChatResponseUpdate,
    ResponseFormat,
)
from perdure.agents.sessions.history import HistoryProvider, InMemoryHistoryProvider
from perdure.agents.sessions.providers import ContextProvider, SessionContext
from perdure.agents.sessions.session import AgentSession, register_state_type
from perdure.agents.tools.context import FunctionInvocationContext
from perdure.agents.tools.results import SKIP_PARSING
from perdure.agents.tools.tool import (
    ApprovalMode,
    FunctionTool,
    IfToolInterrupted,
    ToolTypes,
    normalize_tools,
    tool,
)
from perdure.agents.tools.tool_list import expanded_tools, is_function_tool
from perdure.agents.turn.layer import (
    FunctionInvocationConfiguration,
    FunctionInvocationLayer,
    normalize_function_invocation_configuration,
)
from perdure.agents.turn.recording import Turn, recorded, recorded_stream, taking, turn_of

__all__ = [
    "SKIP_PARSING",
    "Agent",
    "AgentContext",
    "AgentExecutor",
    "AgentExecutorRequest",
    "AgentExecutorResponse",
    "AgentMiddleware",
    "AgentResponse",
    "AgentResponseUpdate",
    "AgentRunInputs",
    "AgentSession",
    "ApprovalMode",
    "BaseAgent",
    "BaseChatClient",
    "ChatContext",
    "ChatMiddleware",
    "ChatMiddlewareLayer",
    "ChatOptions",
    "ChatResponse",
    "ChatResponseUpdate",
    "ChatStream",
    "ChatTelemetryLayer",
    "CompactionStrategy",
    "Content",
    "ContentType",
    "ContextProvider",
    "FunctionInvocationConfiguration",
    "FunctionInvocationContext",
    "FunctionInvocationLayer",
    "FunctionMiddleware",
    "FunctionTool",
    "HistoryProvider",
    "IfToolInterrupted",
    "InMemoryHistoryProvider",
    "Message",
    "MiddlewareTypes",
    "OptionsT",
    "ResponseFormat",
    "ResponseModelT",
    "Role",
    "RoleLiteral",
    "SessionContext",
    "SupportsAgentRun",
    "SupportsChatGetResponse",
    "TokenizerProtocol",
    "ToolMode",
    "ToolTypes",
    "Turn",
    "UsageDetails",
    "add_usage_details",
    "agent_middleware",
    "chat_middleware",
    "expanded_tools",
    "function_middleware",
    "is_function_tool",
    "merge_chat_options",
    "messages_of",
    "normalize_function_invocation_configuration",
    "normalize_messages",
    "normalize_tools",
    "prepend_instructions_to_messages",
    "recorded",
    "recorded_stream",
    "register_state_type",
    "resolve_agent_id",
    "taking",
    "tokens_in",
    "told_on",
    "tool",
    "turn_of",
    "unheard",
    "validate_chat_options",
    "validate_tool_mode",
]
