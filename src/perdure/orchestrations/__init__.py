"""Ready-made multi-agent patterns: sequential, concurrent, group chat, handoff and Magentic.

They use only the public API of perdure, so you can build your own in the same way.
"""

from perdure.orchestrations.concurrent import ConcurrentBuilder as ConcurrentBuilder
from perdure.orchestrations.group_chat import (
    AgentBasedGroupChatOrchestrator as AgentBasedGroupChatOrchestrator,
    AgentOrchestrationOutput as AgentOrchestrationOutput,
    GroupChatBuilder as GroupChatBuilder,
    GroupChatDecisionError as GroupChatDecisionError,
    GroupChatOrchestrator as GroupChatOrchestrator,
    GroupChatSelectionFunction as GroupChatSelectionFunction,
    GroupChatState as GroupChatState,
)
from perdure.orchestrations.handoff import (
    HandoffAgentExecutor as HandoffAgentExecutor,
    HandoffBuilder as HandoffBuilder,
)
from perdure.orchestrations.handoff_tools import (
    HandoffAgentUserRequest as HandoffAgentUserRequest,
    HandoffConfiguration as HandoffConfiguration,
    HandoffSentEvent as HandoffSentEvent,
    clean_conversation_for_handoff as clean_conversation_for_handoff,
)
from perdure.orchestrations.magentic.manager import (
    MagenticAnswerError as MagenticAnswerError,
    MagenticManagerBase as MagenticManagerBase,
    StandardMagenticManager as StandardMagenticManager,
)
from perdure.orchestrations.magentic.orchestrator import (
    MagenticAgentExecutor as MagenticAgentExecutor,
    MagenticBuilder as MagenticBuilder,
    MagenticOrchestrator as MagenticOrchestrator,
)
from perdure.orchestrations.magentic.types import (
    MAGENTIC_MANAGER_NAME as MAGENTIC_MANAGER_NAME,
    ORCH_MSG_KIND_INSTRUCTION as ORCH_MSG_KIND_INSTRUCTION,
    ORCH_MSG_KIND_NOTICE as ORCH_MSG_KIND_NOTICE,
    ORCH_MSG_KIND_TASK_LEDGER as ORCH_MSG_KIND_TASK_LEDGER,
    ORCH_MSG_KIND_USER_TASK as ORCH_MSG_KIND_USER_TASK,
    MagenticContext as MagenticContext,
    MagenticOrchestratorEvent as MagenticOrchestratorEvent,
    MagenticOrchestratorEventType as MagenticOrchestratorEventType,
    MagenticPlanReviewRequest as MagenticPlanReviewRequest,
    MagenticPlanReviewResponse as MagenticPlanReviewResponse,
    MagenticProgressLedger as MagenticProgressLedger,
    MagenticProgressLedgerItem as MagenticProgressLedgerItem,
    MagenticResetSignal as MagenticResetSignal,
    MagenticTaskLedger as MagenticTaskLedger,
)
from perdure.orchestrations.orchestrator import (
    BaseGroupChatOrchestrator as BaseGroupChatOrchestrator,
    OrchestrationState as OrchestrationState,
)
from perdure.orchestrations.participants import (
    GroupChatParticipantMessage as GroupChatParticipantMessage,
    GroupChatRequestMessage as GroupChatRequestMessage,
    GroupChatRequestSentEvent as GroupChatRequestSentEvent,
    GroupChatResponseMessage as GroupChatResponseMessage,
    GroupChatResponseReceivedEvent as GroupChatResponseReceivedEvent,
    GroupChatWorkflowContextOutT as GroupChatWorkflowContextOutT,
    ParticipantRegistry as ParticipantRegistry,
    create_completion_message as create_completion_message,
)
from perdure.orchestrations.request_info import AgentRequestInfoResponse as AgentRequestInfoResponse
from perdure.orchestrations.sequential import SequentialBuilder as SequentialBuilder
from perdure.orchestrations.termination import (
    MaxMessages as MaxMessages,
    SpeakerWas as SpeakerWas,
    Termination as Termination,
    TerminationCondition as TerminationCondition,
    TextMentioned as TextMentioned,
    When as When,
)
