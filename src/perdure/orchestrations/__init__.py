"""Ready-made shapes of several agents, built from what everybody can build from."""

from typing import TYPE_CHECKING

from perdure.orchestrations.concurrent import ConcurrentBuilder
from perdure.orchestrations.group_chat import GroupChatBuilder
from perdure.orchestrations.group_chat_selecting import (
    GroupChatOrchestrator,
    GroupChatSelectionFunction,
    GroupChatState,
)
from perdure.orchestrations.handoff import HandoffBuilder
from perdure.orchestrations.handoff_executor import HandoffAgentExecutor
from perdure.orchestrations.handoff_messages import (
    HandoffAgentUserRequest,
    HandoffSentEvent,
    clean_conversation_for_handoff,
)
from perdure.orchestrations.handoff_tools import HandoffConfiguration
from perdure.orchestrations.magentic import MagenticBuilder
from perdure.orchestrations.magentic_agent import MagenticAgentExecutor
from perdure.orchestrations.magentic_answers import MagenticAnswerError
from perdure.orchestrations.magentic_manager import MagenticManagerBase, StandardMagenticManager
from perdure.orchestrations.magentic_orchestrator import MagenticOrchestrator
from perdure.orchestrations.magentic_types import (
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
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator
from perdure.orchestrations.orchestrator_messages import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseMessage,
    GroupChatResponseReceivedEvent,
    GroupChatWorkflowContextOutT,
    create_completion_message,
)
from perdure.orchestrations.orchestrator_registry import ParticipantRegistry
from perdure.orchestrations.orchestrator_state import OrchestrationState
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

if TYPE_CHECKING:
    from perdure.orchestrations.group_chat_agent import AgentBasedGroupChatOrchestrator
    from perdure.orchestrations.group_chat_answer import AgentOrchestrationOutput

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


def __getattr__(name: str) -> object:
    # What needs pydantic is loaded when it is asked for.
    if name == "AgentBasedGroupChatOrchestrator":
        from perdure.orchestrations.group_chat_agent import AgentBasedGroupChatOrchestrator  # noqa: PLC0415

        return AgentBasedGroupChatOrchestrator
    if name == "AgentOrchestrationOutput":
        from perdure.orchestrations.group_chat_answer import AgentOrchestrationOutput  # noqa: PLC0415

        return AgentOrchestrationOutput
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
