"""The names under which stored data knows the classes of perdure, whatever module they live in now.

Checkpoints, journals and signatures name classes as `module:qualname`. `STORED_NAMES` fixes these names, so that a
class can move to another module, or get another name, while data written before stays readable.

`_FIRST_MODULES` lists the classes under the module in which each was first released, by their present qualname.
Where several classes share a qualname, it starts with the package: `graph:Edge`. When a class moves, nothing changes
here. When it is renamed, its former name follows: `ActiveTask=Acting`.
"""

from __future__ import annotations

import sys
import types

_ROOT = "perdure"

_FIRST_MODULES = {
    "perdure.agent_workflows.agents": "AgentConfig",
    "perdure.agent_workflows.approvals": "NodeApprovalRequest NodeApprovalResponse",
    "perdure.agent_workflows.builder_nodes": "NodeOptions",
    "perdure.agent_workflows.conditions_base": "And Not Or",
    "perdure.agent_workflows.conditions_fields": "Empty Equals Exists NotEmpty NotEquals NotExists",
    "perdure.agent_workflows.conditions_order": "AtLeast AtMost GreaterThan LessThan",
    "perdure.agent_workflows.conditions_parts": "Contains ContainsAll ContainsAny EndsWith Matches StartsWith",
    "perdure.agent_workflows.conductor": "Conductor",
    "perdure.agent_workflows.conductor_state": (
        "ActiveTask=Acting ExecutionRecord=Record NodeOutput=Said TaskRecord=Task"
    ),
    "perdure.agent_workflows.config": "Exported",
    "perdure.agent_workflows.config_given": "GivenOptions",
    "perdure.agent_workflows.definition": (
        "Approval Definition EdgeContext Iterations Node OnError StructuredOutput TextOutput UnionOutput "
        "agent_workflows:Conversation agent_workflows:Edge agent_workflows:Handoffs"
    ),
    "perdure.agent_workflows.events": (
        "WorkflowAgentCompletedEvent WorkflowAgentSkippedEvent WorkflowAgentStartedEvent WorkflowCompletedEvent "
        "WorkflowDiagnosticEvent WorkflowEdgeTraversedEvent WorkflowLayerCompletedEvent WorkflowLayerStartedEvent "
        "WorkflowStartedEvent"
    ),
    "perdure.agent_workflows.messages": "Continue=GoOn NodeResult NodeTask ThreadPosition=Past",
    "perdure.agent_workflows.node": "AgentNode",
    "perdure.agent_workflows.result": "AgentWorkflowResult",
    "perdure.agent_workflows.workflow_running": "agent_workflows:RunOptions",
    "perdure.agents.content": "Content UsageDetails",
    "perdure.agents.options": "ChatOptions ToolMode",
    "perdure.engine.call": "WorkflowInvocationKwargs",
    "perdure.mcp.choosing": "MCPSpecificApproval",
    "perdure.openai.options": "OpenAIChatOptions",
    "perdure.agents.executor": "AgentExecutor AgentExecutorCheckpointState",
    "perdure.agents.executor_messages": "AgentExecutorRequest AgentExecutorResponse",
    "perdure.agents.executor_session": "SessionRecord",
    "perdure.agents.invocation_settings": "FunctionInvocationConfiguration",
    "perdure.agents.messages": "Message",
    "perdure.agents.responses": "AgentResponse AgentResponseUpdate ChatResponse ChatResponseUpdate",
    "perdure.agents.sessions": "AgentSession",
    "perdure.checkpoint.compat": "Affected CompatibilityReport",
    "perdure.checkpoint.record": "WorkflowCheckpoint",
    "perdure.checkpoint.size_limits": "SizeLimits",
    "perdure.checkpoint.steps": "InterruptedStep StepDecision",
    "perdure.cli.views.graph": "_Stored",
    "perdure.errors": "ValidationTypeEnum",
    "perdure.events": (
        "CheckpointInfo StepInfo SuperstepInfo TakenOver Undecoded UndeliveredMessage WorkflowErrorDetails "
        "WorkflowEvent WorkflowEventSource WorkflowRunState"
    ),
    "perdure.failures": "Failure",
    "perdure.functional.node": "FunctionNode",
    "perdure.functional.past": "StepOutcome",
    "perdure.graph.definition": "Migration",
    "perdure.graph.edges": "Case Default SwitchCaseEdgeGroupCase SwitchCaseEdgeGroupDefault graph:Edge",
    "perdure.graph.executor": "Executor",
    "perdure.graph.function": "FunctionExecutor",
    "perdure.graph.messages": "MessageType TimersDue WorkflowMessage",
    "perdure.graph.policy": "FailedMessage Retry",
    "perdure.hosting.host": "HostHealth",
    "perdure.hosting.info": "RunInfo",
    "perdure.hosting.scheduler": "AdvanceResult=Rest hosting:Dispatch",
    "perdure.log": "Log",
    "perdure.orchestrations.aggregators": "ResponseAggregator=AnswersTogether",
    "perdure.orchestrations.concurrent_dispatch": "DispatchToAllParticipants",
    "perdure.orchestrations.concurrent_end": (
        "TerminableAggregator=AnswersIfThereAreSome TerminableApprovalExecutor=ApprovalUnlessOver "
        "TerminableDispatcher=DispatchUnlessOver"
    ),
    "perdure.orchestrations.group_chat_agent": "AgentBasedGroupChatOrchestrator",
    "perdure.orchestrations.group_chat_answer": "AgentOrchestrationOutput",
    "perdure.orchestrations.group_chat_selecting": (
        "GroupChatOrchestrator GroupChatState QueuedMessage=Unheard TurnBasedOrchestrator=SelectingOrchestrator"
    ),
    "perdure.orchestrations.handoff_executor": "HandoffAgentExecutor",
    "perdure.orchestrations.handoff_messages": "HandoffAgentUserRequest HandoffSentEvent",
    "perdure.orchestrations.handoff_review": "ReviewedHandoffAgentExecutor",
    "perdure.orchestrations.handoff_tools": "HandoffConfiguration",
    "perdure.orchestrations.magentic_agent": "MagenticAgentExecutor",
    "perdure.orchestrations.magentic_orchestrator": "MagenticOrchestrator",
    "perdure.orchestrations.magentic_state": "MagenticState",
    "perdure.orchestrations.magentic_types": (
        "MagenticContext MagenticOrchestratorEvent MagenticOrchestratorEventType MagenticPlanReviewRequest "
        "MagenticPlanReviewResponse MagenticProgressLedger MagenticProgressLedgerItem MagenticResetSignal "
        "MagenticTaskLedger"
    ),
    "perdure.orchestrations.orchestrator": "BaseGroupChatOrchestrator",
    "perdure.orchestrations.orchestrator_messages": (
        "GroupChatParticipantMessage GroupChatRequestMessage GroupChatRequestSentEvent GroupChatResponseMessage "
        "GroupChatResponseReceivedEvent"
    ),
    "perdure.orchestrations.orchestrator_state": "OrchestrationState",
    "perdure.orchestrations.request_info": (
        "AgentApprovalExecutor AgentRequestInfoExecutor AgentRequestInfoResponse TooLateResponse"
    ),
    "perdure.orchestrations.sequential": "InputToConversation",
    "perdure.orchestrations.termination": "MaxMessages SpeakerWas TextMentioned When",
    "perdure.records": "FullHistory KeepFor KeepLast LatestOnly Retention",
    "perdure.storage.hosts": "HostInfo",
    "perdure.storage.views": "Change CheckpointDiff RunDiff",
    "perdure.storages.desk": "PendingRequest",
    "perdure.storages.sizes": "PartSize SizeReport",
    "perdure.threads.events": "ThreadEvent",
    "perdure.threads.thread": "ForkPoint Thread",
    "perdure.workflow.sub": "SubWorkflowRequestMessage SubWorkflowResponseMessage WorkflowExecutor",
    "perdure.workflows.edit": "Edit",
}

STORED_NAMES: dict[str, str] = {
    key: f"{module}:{former}" if former else module
    for module, names in _FIRST_MODULES.items()
    for key, _, former in (name.partition("=") for name in names.split())
}
"""By the present name of a class: the module under which it is stored, or its whole former name."""

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
