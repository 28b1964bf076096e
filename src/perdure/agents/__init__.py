"""Agents: messages, chat clients, tools, turns, sessions, and the executor that runs an agent in a workflow."""

from perdure.agents import plain as plain
from perdure.agents import storing as storing
from perdure.agents.agent import Agent, BaseAgent
from perdure.agents.agent_base import SupportsAgentRun
from perdure.agents.clients import BaseChatClient, prepend_instructions_to_messages
from perdure.agents.compaction import CompactionStrategy, TokenizerProtocol
from perdure.agents.content import Content, ContentType, UsageDetails, add_usage_details
from perdure.agents.contexts import AgentContext, AgentMiddleware, ChatContext, ChatMiddleware, FunctionMiddleware
from perdure.agents.executor import AgentExecutor
from perdure.agents.executor_messages import AgentExecutorRequest, AgentExecutorResponse, resolve_agent_id
from perdure.agents.executor_requests import told_on
from perdure.agents.executor_turn import tokens_in
from perdure.agents.history import HistoryProvider, InMemoryHistoryProvider
from perdure.agents.invocation import FunctionInvocationLayer
from perdure.agents.invocation_settings import (
    FunctionInvocationConfiguration,
    normalize_function_invocation_configuration,
)
from perdure.agents.layers import OptionsT, SupportsChatGetResponse
from perdure.agents.messages import AgentRunInputs, Message, Role, RoleLiteral, messages_of, normalize_messages
from perdure.agents.middleware import ChatMiddlewareLayer
from perdure.agents.middleware_kinds import MiddlewareTypes, agent_middleware, chat_middleware, function_middleware
from perdure.agents.options import (
    ChatOptions,
    ResponseModelT,
    ToolMode,
    merge_chat_options,
    validate_chat_options,
    validate_tool_mode,
)
from perdure.agents.providers import ContextProvider, SessionContext
from perdure.agents.recording import Turn, recorded, recorded_stream, taking, turn_of
from perdure.agents.responses import (
    AgentResponse,
    AgentResponseUpdate,
    ChatResponse,
    ChatResponseUpdate,
    ResponseFormat,
)
from perdure.agents.session_state import register_state_type
from perdure.agents.sessions import AgentSession
from perdure.agents.streaming import ChatStream
from perdure.agents.telemetry import ChatTelemetryLayer
from perdure.agents.tool_context import FunctionInvocationContext
from perdure.agents.tool_list import expanded_tools, is_function_tool
from perdure.agents.tool_results import SKIP_PARSING
from perdure.agents.tools import ApprovalMode, FunctionTool, IfToolInterrupted, ToolTypes, normalize_tools, tool
from perdure.agents.unheard_messages import unheard

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
