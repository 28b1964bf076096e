"""Ready-made multi-agent patterns: sequential, concurrent, group chat, handoff and Magentic.

They use only the public API of perdure, so you can build your own in the same way.
"""

from perdure.orchestrations.concurrent import ConcurrentBuilder
from perdure.orchestrations.group_chat import (
    AgentBasedGroupChatOrchestrator,
    AgentOrchestrationOutput,
    GroupChatBuilder,
    GroupChatDecisionError,
    GroupChatOrchestrator,
    GroupChatSelectionFunction,
    GroupChatState,
)
from perdure.orchestrations.handoff import HandoffAgentExecutor, HandoffBuilder
from perdure.orchestrations.handoff_tools import (
    HandoffAgentUserRequest,
    HandoffConfiguration,
    HandoffSentEvent,
    clean_conversation_for_handoff,
)
from perdure.orchestrations.magentic.manager import MagenticAnswerError, MagenticManagerBase, StandardMagenticManager
from perdure.orchestrations.magentic.orchestrator import MagenticAgentExecutor, MagenticBuilder, MagenticOrchestrator
from perdure.orchestrations.magentic.types import (
    MAGENTIC_MANAGER_NAME,
    ORCH_MSG_KIND_INSTRUCTION,
    ORCH_MSG_KIND_NOTICE,
    ORCH_MSG_KIND_TASK_LEDGER,
    ORCH_MSG_KIND_USER_TASK,
    MagenticContext,
    MagenticOrchestratorEvent,
    MagenticOrchestratorEventType,
    MagenticPlanReviewRequest,
    MagenticPlanReviewResponse,
    MagenticProgressLedger,
    MagenticProgressLedgerItem,
    MagenticResetSignal,
    MagenticTaskLedger,
)
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator, OrchestrationState
from perdure.orchestrations.participants import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseMessage,
    GroupChatResponseReceivedEvent,
    GroupChatWorkflowContextOutT,
    ParticipantRegistry,
    create_completion_message,
)
from perdure.orchestrations.request_info import AgentRequestInfoResponse
from perdure.orchestrations.sequential import SequentialBuilder
from perdure.orchestrations.termination import (
    MaxMessages,
    SpeakerWas,
    Termination,
    TerminationCondition,
    TextMentioned,
    When,
)

__all__ = [
    "MAGENTIC_MANAGER_NAME",
    "ORCH_MSG_KIND_INSTRUCTION",
    "ORCH_MSG_KIND_NOTICE",
    "ORCH_MSG_KIND_TASK_LEDGER",
    "ORCH_MSG_KIND_USER_TASK",
    "AgentBasedGroupChatOrchestrator",
    "AgentOrchestrationOutput",
    "AgentRequestInfoResponse",
    "BaseGroupChatOrchestrator",
    "ConcurrentBuilder",
    "GroupChatBuilder",
    "GroupChatDecisionError",
    "GroupChatOrchestrator",
    "GroupChatParticipantMessage",
    "GroupChatRequestMessage",
    "GroupChatRequestSentEvent",
    "GroupChatResponseMessage",
    "GroupChatResponseReceivedEvent",
    "GroupChatSelectionFunction",
    "GroupChatState",
    "GroupChatWorkflowContextOutT",
    "HandoffAgentExecutor",
    "HandoffAgentUserRequest",
    "HandoffBuilder",
    "HandoffConfiguration",
    "HandoffSentEvent",
    "MagenticAgentExecutor",
    "MagenticAnswerError",
    "MagenticBuilder",
    "MagenticContext",
    "MagenticManagerBase",
    "MagenticOrchestrator",
    "MagenticOrchestratorEvent",
    "MagenticOrchestratorEventType",
    "MagenticPlanReviewRequest",
    "MagenticPlanReviewResponse",
    "MagenticProgressLedger",
    "MagenticProgressLedgerItem",
    "MagenticResetSignal",
    "MagenticTaskLedger",
    "MaxMessages",
    "OrchestrationState",
    "ParticipantRegistry",
    "SequentialBuilder",
    "SpeakerWas",
    "StandardMagenticManager",
    "Termination",
    "TerminationCondition",
    "TextMentioned",
    "When",
    "clean_conversation_for_handoff",
    "create_completion_message",
]
