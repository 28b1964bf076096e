"""Agents: messages, chat clients, tools, turns, sessions, and the executor that runs an agent in a workflow."""
# pyright: reportUnusedImport=false

from perdure.agents.agent import Agent, BaseAgent, SupportsAgentRun, resolve_agent_id
from perdure.agents.client.base import (
    BaseChatClient,
    ChatTelemetryLayer,
    OptionsT,
    SupportsChatGetResponse,
    prepend_instructions_to_messages,
)
from perdure.agents.client.compaction import (
    CompactionStrategy,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    TruncationStrategy,
)
from perdure.agents.client.middleware import (
    AgentContext,
    AgentMiddleware,
    AgentMiddlewareTypes,
    ChatAndFunctionMiddlewareTypes,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    ChatMiddlewareTypes,
    FunctionMiddleware,
    FunctionMiddlewareTypes,
    MiddlewareBundle,
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
from perdure.agents.client.tokens import CharacterEstimatorTokenizer, MissingUsage, TokenizerProtocol
from perdure.agents.executor.agent_executor import (
    AgentExecutor,
    AgentExecutorCheckpointState,
    AgentExecutorRequest,
    AgentExecutorResponse,
)
from perdure.agents.executor.requests import share_conversation
from perdure.agents.messages.content import UNKNOWN_MEDIA_TYPE, Content, ContentType, UsageDetails, add_usage_details
from perdure.agents.messages.conversation import (
    drop_known_messages,
    find_renamed_tools,
    is_local_call,
    restore_names,
    sendable_messages,
    sendable_name,
    sendable_text,
)
from perdure.agents.messages.message import AgentRunInputs, Message, Role, RoleLiteral, normalize_messages
from perdure.agents.messages.responses import (
    AgentResponse,
    AgentResponseUpdate,
    ChatResponse,
    ChatResponseUpdate,
    FinishReason,
    FinishReasonLiteral,
    ResponseFormat,
    token_spending,
)
from perdure.agents.messages.structured import InvalidValueError, json_schema_faults, parse_answer, value_faults
from perdure.agents.sessions.providers import (
    ContextProvider,
    FileHistoryProvider,
    HistoryProvider,
    InMemoryHistoryProvider,
    SessionContext,
    load_context,
    store_context,
)
from perdure.agents.sessions.session import AgentSession, ServiceSessionId, register_state_type
from perdure.agents.tools.context import FunctionInvocationContext, expand_tools, is_function_tool
from perdure.agents.tools.tool import (
    SKIP_PARSING,
    ApprovalMode,
    FunctionTool,
    IfToolInterrupted,
    ToolTypes,
    normalize_tools,
    tool,
)
from perdure.agents.turn.loop import (
    FunctionInvocationConfiguration,
    FunctionInvocationLayer,
    normalize_function_invocation_configuration,
)
from perdure.agents.turn.recording import Turn, current_turn, record_stream, return_requests, use_turn
