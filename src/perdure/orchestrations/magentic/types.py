"""What is said and kept in a Magentic orchestration: the context of a task, the progress ledger, reviews, events."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final, TypeAlias, cast

from perdure import Message, register_type

MAGENTIC_MANAGER_NAME: Final = "magentic_manager"
"""Who says what the manager and the orchestrator say."""

ORCH_MSG_KIND_USER_TASK: Final = "user_task"
ORCH_MSG_KIND_TASK_LEDGER: Final = "task_ledger"
ORCH_MSG_KIND_INSTRUCTION: Final = "instruction"
ORCH_MSG_KIND_NOTICE: Final = "notice"

Feedback: TypeAlias = str | Message | Sequence[str | Message]
"""What a person says about a plan."""


@dataclass
class MagenticProgressLedgerItem:
    """One answer of the progress ledger, and the reason for it."""

    reason: str
    answer: str | bool

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"reason": self.reason, "answer": self.answer}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticProgressLedgerItem:
        """The item of what `to_dict` gave. An answer that is not there is empty; one that is no text becomes one."""
        answer = data.get("answer")
        if not isinstance(answer, str | bool):
            answer = "" if answer is None else repr(answer)
        return cls(str(data.get("reason") or ""), answer)


@dataclass
class MagenticProgressLedger:
    """Where a team stands: whether it is done, whether it gets on, who speaks next, and what that one is told."""

    is_request_satisfied: MagenticProgressLedgerItem
    is_in_loop: MagenticProgressLedgerItem
    is_progress_being_made: MagenticProgressLedgerItem
    next_speaker: MagenticProgressLedgerItem
    instruction_or_question: MagenticProgressLedgerItem

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {each.name: getattr(self, each.name).to_dict() for each in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticProgressLedger:
        """The ledger of what `to_dict` gave. What is missing has an empty answer. Raises ValueError for what is none.

        Whether it makes sense is not looked at here: who is done need not say who speaks next.
        """
        items: dict[str, MagenticProgressLedgerItem] = {}
        for name in (each.name for each in fields(cls)):
            item: object = data.get(name)
            if item is None:
                item = {"answer": None}
            if not isinstance(item, Mapping):
                raise ValueError(f"{name!r} is an object with 'reason' and 'answer', not {item!r}")
            items[name] = MagenticProgressLedgerItem.from_dict(cast("Mapping[str, Any]", item))
        return cls(**items)


@dataclass
class MagenticContext:
    """What a manager is shown: the task, what was said since the last reset, the team, and the counts."""

    task: str
    chat_history: list[Message] = field(default_factory=list[Message])
    participant_descriptions: dict[str, str] = field(default_factory=dict[str, str])
    round_count: int = 0
    stall_count: int = 0
    reset_count: int = 0

    def clone(self, *, deep: bool = True) -> MagenticContext:
        """A copy."""
        return copy.deepcopy(self) if deep else copy.copy(self)

    def reset(self) -> None:
        """Forget what was said, and count the reset. The task, the team and the count of rounds stay."""
        self.chat_history.clear()
        self.stall_count = 0
        self.reset_count += 1

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "task": self.task,
            "chat_history": [message.to_dict() for message in self.chat_history],
            "participant_descriptions": dict(self.participant_descriptions),
            "round_count": self.round_count,
            "stall_count": self.stall_count,
            "reset_count": self.reset_count,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticContext:
        """The context of what `to_dict` gave. Raises ValueError if it has no task."""
        task = data.get("task")
        if not isinstance(task, str):
            raise ValueError(f"a MagenticContext has a task that is a text, not {task!r}")
        said = [each if isinstance(each, Message) else Message.from_dict(each) for each in data.get("chat_history", ())]
        counts = {name: int(data.get(name, 0)) for name in ("round_count", "stall_count", "reset_count")}
        return cls(task, said, dict(data.get("participant_descriptions", {})), **counts)


@dataclass
class MagenticTaskLedger:
    """What a manager knows of a task, and how it means to go about it."""

    facts: Message
    plan: Message

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"facts": self.facts.to_dict(), "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticTaskLedger:
        """The ledger of what `to_dict` gave."""
        return cls(Message.from_dict(data["facts"]), Message.from_dict(data["plan"]))


@dataclass(frozen=True)
class MagenticResetSignal:
    """Tells participants to forget what was said: the team begins anew."""


class MagenticOrchestratorEventType(str, Enum):
    """What a `magentic_orchestrator` event tells."""

    PLAN_CREATED = "plan_created"
    REPLANNED = "replanned"
    PROGRESS_LEDGER_UPDATED = "progress_ledger_updated"


@dataclass
class MagenticOrchestratorEvent:
    """The data of a `magentic_orchestrator` event: the plan, or the progress ledger."""

    event_type: MagenticOrchestratorEventType
    content: Message | MagenticProgressLedger


@dataclass
class MagenticPlanReviewResponse:
    """What a person says about a plan. A `review` of no messages is the approval."""

    review: list[Message]

    @staticmethod
    def approve() -> MagenticPlanReviewResponse:
        """Let the team follow the plan."""
        return MagenticPlanReviewResponse([])

    @staticmethod
    def revise(feedback: Feedback) -> MagenticPlanReviewResponse:
        """Ask for another plan. Raises ValueError if nothing is said about it, which would be an approval."""
        given = [feedback] if isinstance(feedback, str | Message) else list(feedback)
        said = [Message("user", [each]) if isinstance(each, str) else each for each in given]
        if not any(message.contents and message.text.strip() for message in said):
            raise ValueError("a revision says what is to change: give revise() a text, or approve() the plan")
        return MagenticPlanReviewResponse(said)


@dataclass
class MagenticPlanReviewRequest:
    """Asks a person about a plan. `request_id` is what the answer is given for.

    `current_progress` is the ledger that led to a new plan; `is_stalled` says that the old one did not get on.
    """

    plan: Message
    current_progress: MagenticProgressLedger | None
    is_stalled: bool
    request_id: str = ""

    def approve(self) -> MagenticPlanReviewResponse:
        """The answer that lets the team follow the plan."""
        return MagenticPlanReviewResponse.approve()

    def revise(self, feedback: Feedback) -> MagenticPlanReviewResponse:
        """The answer that asks for another plan."""
        return MagenticPlanReviewResponse.revise(feedback)


# Under names of their own, so that what was stored stays readable wherever the classes stand.
for _stored in (
    MagenticProgressLedgerItem,
    MagenticProgressLedger,
    MagenticContext,
    MagenticTaskLedger,
    MagenticResetSignal,
    MagenticOrchestratorEventType,
    MagenticOrchestratorEvent,
    MagenticPlanReviewResponse,
    MagenticPlanReviewRequest,
):
    register_type(_stored, name=f"perdure:{_stored.__name__}")
