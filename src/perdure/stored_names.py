"""The names under which stored data knows the classes of perdure, whatever module they live in now.

Checkpoints, journals and signatures name classes as `module:qualname`. `STORED_NAMES` fixes these names, so that a
class can move to another module, or get another name, while data written before stays readable.

A key is the qualname that a class has now. Where several classes share a qualname, the key starts with the package:
`graph:Edge`. The value is the module under which the class was first released. For a class that was renamed since,
it is the whole former name, `module:qualname`. When a class moves, nothing changes here. When it is renamed, change
its key and write the whole former name as its value.
"""

from __future__ import annotations

import sys
import types

_ROOT = "perdure"

STORED_NAMES: dict[str, str] = {
    "AgentConfig": "perdure.agent_workflows.agents",
    "NodeApprovalRequest": "perdure.agent_workflows.approvals",
    "NodeApprovalResponse": "perdure.agent_workflows.approvals",
    "NodeOptions": "perdure.agent_workflows.builder_nodes",
    "And": "perdure.agent_workflows.conditions_base",
    "Not": "perdure.agent_workflows.conditions_base",
    "Or": "perdure.agent_workflows.conditions_base",
    "Empty": "perdure.agent_workflows.conditions_fields",
    "Equals": "perdure.agent_workflows.conditions_fields",
    "Exists": "perdure.agent_workflows.conditions_fields",
    "NotEmpty": "perdure.agent_workflows.conditions_fields",
    "NotEquals": "perdure.agent_workflows.conditions_fields",
    "NotExists": "perdure.agent_workflows.conditions_fields",
    "AtLeast": "perdure.agent_workflows.conditions_order",
    "AtMost": "perdure.agent_workflows.conditions_order",
    "GreaterThan": "perdure.agent_workflows.conditions_order",
    "LessThan": "perdure.agent_workflows.conditions_order",
    "Contains": "perdure.agent_workflows.conditions_parts",
    "ContainsAll": "perdure.agent_workflows.conditions_parts",
    "ContainsAny": "perdure.agent_workflows.conditions_parts",
    "EndsWith": "perdure.agent_workflows.conditions_parts",
    "Matches": "perdure.agent_workflows.conditions_parts",
    "StartsWith": "perdure.agent_workflows.conditions_parts",
    "Conductor": "perdure.agent_workflows.conductor",
    "ActiveTask": "perdure.agent_workflows.conductor_state:Acting",
    "ExecutionRecord": "perdure.agent_workflows.conductor_state:Record",
    "NodeOutput": "perdure.agent_workflows.conductor_state:Said",
    "TaskRecord": "perdure.agent_workflows.conductor_state:Task",
    "Exported": "perdure.agent_workflows.config",
    "GivenOptions": "perdure.agent_workflows.config_given",
    "Approval": "perdure.agent_workflows.definition",
    "Definition": "perdure.agent_workflows.definition",
    "EdgeContext": "perdure.agent_workflows.definition",
    "Iterations": "perdure.agent_workflows.definition",
    "Node": "perdure.agent_workflows.definition",
    "OnError": "perdure.agent_workflows.definition",
    "StructuredOutput": "perdure.agent_workflows.definition",
    "TextOutput": "perdure.agent_workflows.definition",
    "UnionOutput": "perdure.agent_workflows.definition",
    "agent_workflows:Conversation": "perdure.agent_workflows.definition",
    "agent_workflows:Edge": "perdure.agent_workflows.definition",
    "agent_workflows:Handoffs": "perdure.agent_workflows.definition",
    "WorkflowAgentCompletedEvent": "perdure.agent_workflows.events",
    "WorkflowAgentSkippedEvent": "perdure.agent_workflows.events",
    "WorkflowAgentStartedEvent": "perdure.agent_workflows.events",
    "WorkflowCompletedEvent": "perdure.agent_workflows.events",
    "WorkflowDiagnosticEvent": "perdure.agent_workflows.events",
    "WorkflowEdgeTraversedEvent": "perdure.agent_workflows.events",
    "WorkflowLayerCompletedEvent": "perdure.agent_workflows.events",
    "WorkflowLayerStartedEvent": "perdure.agent_workflows.events",
    "WorkflowStartedEvent": "perdure.agent_workflows.events",
    "Continue": "perdure.agent_workflows.messages:GoOn",
    "NodeResult": "perdure.agent_workflows.messages",
    "NodeTask": "perdure.agent_workflows.messages",
    "ThreadPosition": "perdure.agent_workflows.messages:Past",
    "AgentNode": "perdure.agent_workflows.node",
    "AgentWorkflowResult": "perdure.agent_workflows.result",
    "agent_workflows:RunOptions": "perdure.agent_workflows.workflow_running",
    "Content": "perdure.agents.content",
    "UsageDetails": "perdure.agents.content",
    "ChatOptions": "perdure.agents.options",
    "ToolMode": "perdure.agents.options",
    "MCPSpecificApproval": "perdure.mcp.choosing",
    "OpenAIChatOptions": "perdure.openai.options",
    "AgentExecutor": "perdure.agents.executor",
    "AgentExecutorRequest": "perdure.agents.executor_messages",
    "AgentExecutorResponse": "perdure.agents.executor_messages",
    "SessionRecord": "perdure.agents.executor_session",
    "FunctionInvocationConfiguration": "perdure.agents.invocation_settings",
    "Message": "perdure.agents.messages",
    "AgentResponse": "perdure.agents.responses",
    "AgentResponseUpdate": "perdure.agents.responses",
    "ChatResponse": "perdure.agents.responses",
    "ChatResponseUpdate": "perdure.agents.responses",
    "AgentSession": "perdure.agents.sessions",
    "Affected": "perdure.checkpoint.compat",
    "CompatibilityReport": "perdure.checkpoint.compat",
    "WorkflowCheckpoint": "perdure.checkpoint.record",
    "SizeLimits": "perdure.checkpoint.size_limits",
    "InterruptedStep": "perdure.checkpoint.steps",
    "StepDecision": "perdure.checkpoint.steps",
    "ValidationTypeEnum": "perdure.errors",
    "CheckpointInfo": "perdure.events",
    "Undecoded": "perdure.events",
    "UndeliveredMessage": "perdure.events",
    "WorkflowErrorDetails": "perdure.events",
    "WorkflowEvent": "perdure.events",
    "WorkflowEventSource": "perdure.events",
    "WorkflowRunState": "perdure.events",
    "FunctionNode": "perdure.functional.node",
    "StepOutcome": "perdure.functional.past",
    "Migration": "perdure.graph.definition",
    "Case": "perdure.graph.edges",
    "Default": "perdure.graph.edges",
    "SwitchCaseEdgeGroupCase": "perdure.graph.edges",
    "SwitchCaseEdgeGroupDefault": "perdure.graph.edges",
    "graph:Edge": "perdure.graph.edges",
    "Executor": "perdure.graph.executor",
    "FunctionExecutor": "perdure.graph.function",
    "MessageType": "perdure.graph.messages",
    "TimersDue": "perdure.graph.messages",
    "WorkflowMessage": "perdure.graph.messages",
    "FailedMessage": "perdure.graph.policy",
    "Retry": "perdure.graph.policy",
    "RunInfo": "perdure.hosting.info",
    "AdvanceResult": "perdure.hosting.scheduler:Rest",
    "hosting:Dispatch": "perdure.hosting.scheduler",
    "Log": "perdure.log",
    "ResponseAggregator": "perdure.orchestrations.aggregators:AnswersTogether",
    "DispatchToAllParticipants": "perdure.orchestrations.concurrent_dispatch",
    "TerminableAggregator": "perdure.orchestrations.concurrent_end:AnswersIfThereAreSome",
    "TerminableApprovalExecutor": "perdure.orchestrations.concurrent_end:ApprovalUnlessOver",
    "TerminableDispatcher": "perdure.orchestrations.concurrent_end:DispatchUnlessOver",
    "AgentBasedGroupChatOrchestrator": "perdure.orchestrations.group_chat_agent",
    "AgentOrchestrationOutput": "perdure.orchestrations.group_chat_answer",
    "GroupChatOrchestrator": "perdure.orchestrations.group_chat_selecting",
    "GroupChatState": "perdure.orchestrations.group_chat_selecting",
    "TurnBasedOrchestrator": "perdure.orchestrations.group_chat_selecting:SelectingOrchestrator",
    "QueuedMessage": "perdure.orchestrations.group_chat_selecting:Unheard",
    "HandoffAgentExecutor": "perdure.orchestrations.handoff_executor",
    "HandoffAgentUserRequest": "perdure.orchestrations.handoff_messages",
    "HandoffSentEvent": "perdure.orchestrations.handoff_messages",
    "ReviewedHandoffAgentExecutor": "perdure.orchestrations.handoff_review",
    "HandoffConfiguration": "perdure.orchestrations.handoff_tools",
    "MagenticAgentExecutor": "perdure.orchestrations.magentic_agent",
    "MagenticOrchestrator": "perdure.orchestrations.magentic_orchestrator",
    "MagenticState": "perdure.orchestrations.magentic_state",
    "MagenticContext": "perdure.orchestrations.magentic_types",
    "MagenticOrchestratorEvent": "perdure.orchestrations.magentic_types",
    "MagenticOrchestratorEventType": "perdure.orchestrations.magentic_types",
    "MagenticPlanReviewRequest": "perdure.orchestrations.magentic_types",
    "MagenticPlanReviewResponse": "perdure.orchestrations.magentic_types",
    "MagenticProgressLedger": "perdure.orchestrations.magentic_types",
    "MagenticProgressLedgerItem": "perdure.orchestrations.magentic_types",
    "MagenticResetSignal": "perdure.orchestrations.magentic_types",
    "MagenticTaskLedger": "perdure.orchestrations.magentic_types",
    "BaseGroupChatOrchestrator": "perdure.orchestrations.orchestrator",
    "StatefulOrchestrator": "perdure.orchestrations.orchestrator_keeping:KeepingOrchestrator",
    "GroupChatParticipantMessage": "perdure.orchestrations.orchestrator_messages",
    "GroupChatRequestMessage": "perdure.orchestrations.orchestrator_messages",
    "GroupChatRequestSentEvent": "perdure.orchestrations.orchestrator_messages",
    "GroupChatResponseMessage": "perdure.orchestrations.orchestrator_messages",
    "GroupChatResponseReceivedEvent": "perdure.orchestrations.orchestrator_messages",
    "OrchestrationState": "perdure.orchestrations.orchestrator_state",
    "AgentApprovalExecutor": "perdure.orchestrations.request_info",
    "AgentRequestInfoExecutor": "perdure.orchestrations.request_info",
    "AgentRequestInfoResponse": "perdure.orchestrations.request_info",
    "TooLateResponse": "perdure.orchestrations.request_info",
    "InputToConversation": "perdure.orchestrations.sequential",
    "MaxMessages": "perdure.orchestrations.termination",
    "SpeakerWas": "perdure.orchestrations.termination",
    "TextMentioned": "perdure.orchestrations.termination",
    "When": "perdure.orchestrations.termination",
    "FullHistory": "perdure.records",
    "KeepFor": "perdure.records",
    "KeepLast": "perdure.records",
    "LatestOnly": "perdure.records",
    "Retention": "perdure.records",
    "PendingRequest": "perdure.storages.desk",
    "PartSize": "perdure.storages.sizes",
    "SizeReport": "perdure.storages.sizes",
    "ThreadEvent": "perdure.threads.events",
    "ForkPoint": "perdure.threads.thread",
    "Thread": "perdure.threads.thread",
    "SubWorkflowRequestMessage": "perdure.workflow.sub",
    "SubWorkflowResponseMessage": "perdure.workflow.sub",
    "WorkflowExecutor": "perdure.workflow.sub",
    "Edit": "perdure.workflows.edit",
}

# Modules under which programs may have written the name of a class, beside the one in `STORED_NAMES`.
_OTHER_MODULES = {"perdure.workflows.sub": "perdure.workflow.sub"}


def pinned_name(cls: type) -> str | None:
    """Return the stored name of a class of perdure, `module:qualname`; None for every other class."""
    package, _, rest = cls.__module__.partition(".")
    if package != _ROOT:
        return None
    qualname = cls.__qualname__
    pin = STORED_NAMES.get(qualname) or STORED_NAMES.get(f"{rest.partition('.')[0]}:{qualname}")
    if pin is None or ":" in pin:
        return pin
    return f"{pin}:{qualname}"


def find_pinned(name: str) -> type | None:
    """Return the loaded class of perdure that has a stored name. Imports nothing and runs no code of a module."""
    module, _, qualname = name.partition(":")
    if module.partition(".")[0] != _ROOT:
        return None
    name = f"{_OTHER_MODULES.get(module, module)}:{qualname}"
    present = _present_qualnames().get(name)
    if present is None:
        return None
    steps = present.split(".")
    for loaded_name, loaded in list(sys.modules.items()):
        if loaded_name.partition(".")[0] == _ROOT:
            found = _find_in(loaded, steps)
            if found is not None and pinned_name(found) == name:
                return found
    return None


def _present_qualnames() -> dict[str, str]:
    """Map each stored name to the qualname that its class has now."""
    names: dict[str, str] = {}
    for key, pin in STORED_NAMES.items():
        qualname = key.rpartition(":")[2]
        names[pin if ":" in pin else f"{pin}:{qualname}"] = qualname
    return names


def _find_in(module: object, steps: list[str]) -> type | None:
    found: object = module
    for step in steps:
        if not isinstance(found, types.ModuleType | type):
            return None
        found = vars(found).get(step)
    return found if isinstance(found, type) else None
