"""Data of a Magentic team: context, ledgers, plan reviews and events."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any, Final, cast

from perdure import Message, register_type
from perdure.orchestrations.participants import ChatInput, to_messages

MAGENTIC_MANAGER_NAME: Final = "magentic_manager"
"""Author of the manager's and the orchestrator's messages."""

ORCH_MSG_KIND_USER_TASK: Final = "user_task"
ORCH_MSG_KIND_TASK_LEDGER: Final = "task_ledger"
ORCH_MSG_KIND_INSTRUCTION: Final = "instruction"
ORCH_MSG_KIND_NOTICE: Final = "notice"


@dataclass
class MagenticProgressLedgerItem:
    """One answer of the progress ledger, with its reason."""

    reason: str
    answer: str | bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticProgressLedgerItem:
        """Return the item from the result of `to_dict`. A missing answer is empty; other types become text."""
        answer = data.get("answer")
        if not isinstance(answer, str | bool):
            answer = "" if answer is None else repr(answer)
        return cls(str(data.get("reason") or ""), answer)


@dataclass
class MagenticProgressLedger:
    """Progress of a team: is it done, is it stuck, the next speaker, and the instruction."""

    is_request_satisfied: MagenticProgressLedgerItem
    is_in_loop: MagenticProgressLedgerItem
    is_progress_being_made: MagenticProgressLedgerItem
    next_speaker: MagenticProgressLedgerItem
    instruction_or_question: MagenticProgressLedgerItem

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticProgressLedger:
        """Return the ledger from the result of `to_dict`. Missing items get an empty answer. Raises ValueError.

        The answers are not checked here, because a finished task needs no next speaker.
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
    """Input of a manager: the task, the messages since the last reset, the team, and the counts."""

    task: str
    chat_history: list[Message] = field(default_factory=list[Message])
    participant_descriptions: dict[str, str] = field(default_factory=dict[str, str])
    round_count: int = 0
    stall_count: int = 0
    reset_count: int = 0

    def clone(self, *, deep: bool = True) -> MagenticContext:
        """Return a copy."""
        return copy.deepcopy(self) if deep else copy.copy(self)

    def reset(self) -> None:
        """Clear the messages and count the reset. The task, the team and the round count stay."""
        self.chat_history.clear()
        self.stall_count = 0
        self.reset_count += 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        messages = [message.to_dict() for message in self.chat_history]
        team = dict(self.participant_descriptions)
        return {**vars(self), "chat_history": messages, "participant_descriptions": team}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticContext:
        """Return the context from the result of `to_dict`. Raises ValueError if it has no task."""
        task = data.get("task")
        if not isinstance(task, str):
            raise ValueError(f"the task of a MagenticContext must be a str, not {task!r}")
        messages = [
            each if isinstance(each, Message) else Message.from_dict(each) for each in data.get("chat_history", ())
        ]
        counts = {name: int(data.get(name, 0)) for name in ("round_count", "stall_count", "reset_count")}
        return cls(task, messages, dict(data.get("participant_descriptions", {})), **counts)


@dataclass
class MagenticTaskLedger:
    """A manager's facts and plan for a task."""

    facts: Message
    plan: Message

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"facts": self.facts.to_dict(), "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MagenticTaskLedger:
        """Return the ledger from the result of `to_dict`."""
        return cls(Message.from_dict(data["facts"]), Message.from_dict(data["plan"]))


@dataclass(frozen=True)
class MagenticResetSignal:
    """Tells participants to clear their conversation, because the team starts again."""


class MagenticOrchestratorEventType(str, Enum):
    """Kinds of `magentic_orchestrator` events."""

    PLAN_CREATED = "plan_created"
    REPLANNED = "replanned"
    PROGRESS_LEDGER_UPDATED = "progress_ledger_updated"


@dataclass
class MagenticOrchestratorEvent:
    """Data of a `magentic_orchestrator` event: the plan or the progress ledger."""

    event_type: MagenticOrchestratorEventType
    content: Message | MagenticProgressLedger


@dataclass
class MagenticPlanReviewResponse:
    """A person's review of a plan. An empty `review` approves it."""

    review: list[Message]

    @staticmethod
    def approve() -> MagenticPlanReviewResponse:
        """Approve the plan."""
        return MagenticPlanReviewResponse([])

    @staticmethod
    def revise(feedback: ChatInput) -> MagenticPlanReviewResponse:
        """Request another plan. Raises ValueError if the feedback is empty, because that would approve the plan."""
        messages = to_messages(feedback)
        if not any(message.contents and message.text.strip() for message in messages):
            raise ValueError("the feedback is empty: give revise() a text, or approve() the plan")
        return MagenticPlanReviewResponse(messages)


@dataclass
class MagenticPlanReviewRequest:
    """Asks a person to review a plan. Answer it under `request_id`.

    `current_progress` is the ledger that led to a new plan. `is_stalled` is True if the old plan made no progress.
    """

    plan: Message
    current_progress: MagenticProgressLedger | None
    is_stalled: bool
    request_id: str = ""

    def approve(self) -> MagenticPlanReviewResponse:
        """Return the answer that approves the plan."""
        return MagenticPlanReviewResponse.approve()

    def revise(self, feedback: ChatInput) -> MagenticPlanReviewResponse:
        """Return the answer that requests another plan."""
        return MagenticPlanReviewResponse.revise(feedback)


# Explicit names keep stored data readable when the classes move.
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
