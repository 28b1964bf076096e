"""perdure: durable multi-agent workflows. This module is only a list of names.

Each is loaded when it is first asked for: a program pays for what it uses. Type checkers read the same list in
`__init__.pyi`.
"""

import importlib as _importlib
import sys as _sys

_NAMES = {
    "agent_errors": (
        "AdditionItemMismatch",
        "AgentException",
        "AgentInvalidRequestException",
        "AgentInvalidResponseException",
        "ChatClientException",
        "ChatClientInvalidAuthException",
        "ChatClientInvalidRequestException",
        "ChatClientInvalidResponseException",
        "ContentError",
        "MiddlewareException",
        "MiddlewareTermination",
        "OptionsError",
        "ResponseValueError",
        "ToolException",
        "ToolExecutionException",
        "UserInputRequiredException",
    ),
    "agents.agent": ("Agent", "BaseAgent", "SupportsAgentRun"),
    "agents.clients": ("BaseChatClient", "prepend_instructions_to_messages"),
    "agents.compaction": ("CompactionStrategy", "TokenizerProtocol"),
    "agents.content": ("Content", "ContentType", "UsageDetails", "add_usage_details"),
    "agents.contexts": ("AgentContext", "AgentMiddleware", "ChatContext", "ChatMiddleware", "FunctionMiddleware"),
    "agents.executor": ("AgentExecutor",),
    "agents.executor_messages": ("AgentExecutorRequest", "AgentExecutorResponse", "resolve_agent_id"),
    "agents.history": ("HistoryProvider", "InMemoryHistoryProvider"),
    "agents.invocation": ("FunctionInvocationLayer",),
    "agents.invocation_settings": ("FunctionInvocationConfiguration", "normalize_function_invocation_configuration"),
    "agents.layers": ("SupportsChatGetResponse",),
    "agents.messages": ("AgentRunInputs", "Message", "Role", "RoleLiteral", "normalize_messages"),
    "agents.middleware": ("ChatMiddlewareLayer",),
    "agents.middleware_kinds": ("MiddlewareTypes", "agent_middleware", "chat_middleware", "function_middleware"),
    "agents.options": (
        "ChatOptions",
        "ToolMode",
        "merge_chat_options",
        "validate_chat_options",
        "validate_tool_mode",
    ),
    "agents.providers": ("ContextProvider", "SessionContext"),
    "agents.responses": ("AgentResponse", "AgentResponseUpdate", "ChatResponse", "ChatResponseUpdate"),
    "agents.session_state": ("register_state_type",),
    "agents.sessions": ("AgentSession",),
    "agents.telemetry": ("ChatTelemetryLayer",),
    "agents.tool_context": ("FunctionInvocationContext",),
    "agents.tool_results": ("SKIP_PARSING",),
    "agents.tools": ("FunctionTool", "ToolTypes", "normalize_tools", "tool"),
    "checkpoint.compat": ("CompatibilityReport",),
    "checkpoint.record": ("WorkflowCheckpoint",),
    "checkpoint.size_limits": ("SizeLimits",),
    "checkpoint.steps": ("InterruptedStep", "StepDecision"),
    "checkpoint.trust": ("register_type",),
    "clock": ("Clock", "SystemClock"),
    "errors": (
        "AgentFrameworkException",
        "AlreadyAnsweredError",
        "AnswerTypeError",
        "ApprovalMismatchError",
        "BudgetExceededError",
        "CheckpointDamagedError",
        "CheckpointNotFoundError",
        "CheckpointWriteError",
        "ClaimLostError",
        "CommandWaitsError",
        "EdgeDuplicationError",
        "EncodeError",
        "EventsForgottenError",
        "ExecutorTimeoutError",
        "GraphConnectivityError",
        "IncompatibleGraphError",
        "IncompatibleTypeError",
        "MissingRunKwargsError",
        "PartDamagedError",
        "RequestError",
        "RunBusyError",
        "RunError",
        "RunExistsError",
        "RunExportedError",
        "RunFailedError",
        "RunNotFoundError",
        "RunParkedError",
        "RunUnfinishedError",
        "StaleCommandError",
        "StaleHeadError",
        "StateConflictError",
        "StepError",
        "StepMismatchError",
        "StepTimeoutError",
        "StepUnsettledError",
        "TypeCompatibilityError",
        "UndeliveredError",
        "UnknownRequestError",
        "UnknownWorkflowError",
        "UntrustedTypeError",
        "ValidationTypeEnum",
        "ValueTooLargeError",
        "WorkflowCheckpointException",
        "WorkflowConvergenceException",
        "WorkflowException",
        "WorkflowRunnerException",
        "WorkflowValidationError",
    ),
    "events": (
        "CheckpointInfo",
        "Undecoded",
        "UndeliveredMessage",
        "WorkflowErrorDetails",
        "WorkflowEvent",
        "WorkflowEventSource",
        "WorkflowEventType",
        "WorkflowRunState",
    ),
    "functional.agent": ("FunctionalWorkflowAgent",),
    "functional.context": ("RunContext", "get_run_context"),
    "functional.steps": ("StepWrapper", "step"),
    "functional.workflows": ("FunctionalWorkflow", "workflow"),
    "graph.context": ("State", "WorkflowContext"),
    "graph.definition": ("DEFAULT_MAX_ITERATIONS", "Migration"),
    "graph.edges": (
        "Case",
        "Default",
        "Edge",
        "EdgeCondition",
        "FanInEdgeGroup",
        "FanOutEdgeGroup",
        "SingleEdgeGroup",
        "SwitchCaseEdgeGroup",
        "SwitchCaseEdgeGroupCase",
        "SwitchCaseEdgeGroupDefault",
    ),
    "graph.executor": ("Executor",),
    "graph.function": ("FunctionExecutor", "executor"),
    "graph.handlers": ("handler", "response_handler"),
    "graph.messages": ("INTERNAL_SOURCE_ID", "MessageType", "WorkflowMessage"),
    "graph.policy": ("FailedMessage", "Retry"),
    "graph.validation": ("validate_workflow_graph",),
    "hosting.embedded": ("EmbeddedScheduler",),
    "hosting.handle": ("HostedRun",),
    "hosting.host": ("Host",),
    "hosting.info": ("RunInfo",),
    "hosting.scheduler": ("Dispatch", "Rest", "Scheduler"),
    "log": ("Log",),
    "mcp.servers": ("MCPStdioTool", "MCPStreamableHTTPTool"),
    "mcp.tool": ("MCPSpecificApproval", "MCPTool"),
    "records": ("FullHistory", "KeepFor", "KeepLast", "LatestOnly", "Retention", "RunStatus"),
    "runtime.steps": ("NOT_DONE", "step_key"),
    "secrets": ("Secret",),
    "storages.desk": ("PendingRequest",),
    "storages.protocol": ("CheckpointID", "CheckpointStorage"),
    "storages.shipped": (
        "FileCheckpointStorage",
        "InMemoryCheckpointStorage",
        "PostgresCheckpointStorage",
        "SqliteCheckpointStorage",
    ),
    "storages.sizes": ("PartSize", "SizeReport"),
    "storages.urls": ("open_storage",),
    "streams": ("ResponseStream",),
    "viz": ("WorkflowViz",),
    "workflows.agent": ("WorkflowAgent",),
    "workflows.blocking": ("run_sync",),
    "workflows.builder": ("WorkflowBuilder",),
    "workflows.edit": ("Edit",),
    "workflows.result": ("WorkflowRunResult",),
    "workflows.run": ("Run",),
    "workflows.sub": ("SubWorkflowRequestMessage", "SubWorkflowResponseMessage", "WorkflowExecutor"),
    "workflows.workflow": ("Workflow",),
}

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

_MODULES = frozenset({"kernel", "stores", "types", *(module.partition(".")[0] for module in _NAMES)})
"""What is there as an attribute, whether or not it was imported."""

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] - the stub spells it out


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(_load(_HOMES[name]), name)
        globals()[name] = value  # From now on it is found without this function.
        return value
    if name in _MODULES:
        return _load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=_sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})


def _load(module: str) -> object:
    # Only what is listed here; nothing that comes from outside is ever imported by its name.
    return _importlib.import_module(f"{__name__}.{module}")  # noqa: TID251
