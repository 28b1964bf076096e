"""What a Magentic orchestrator keeps of its task: the counts, the plan, the ledger, and what was said."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure import Log, Message, register_type
from perdure.orchestrations.magentic_types import MagenticContext, MagenticProgressLedger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class MagenticState:
    """A task under way. `history` is what was said since the last reset, `conversation` all that was said.

    `kept` is what the manager keeps for this task; `idle_resets` are the resets since somebody has acted.
    """

    task: str
    round_count: int = 0
    stall_count: int = 0
    reset_count: int = 0
    plan: Message | None = None
    progress: MagenticProgressLedger | None = None
    history: Log[Message] = field(default_factory=Log[Message])
    conversation: Log[Message] = field(default_factory=Log[Message])
    kept: dict[str, Any] | None = None
    idle_resets: int = 0
    is_finished: bool = False

    @property
    def plan_made(self) -> Message:
        """The plan, which is there when the task has begun."""
        assert self.plan is not None, "a task begins with its plan"
        return self.plan

    def hear(self, said: Sequence[Message]) -> None:
        """Add what a participant or a person has said: somebody has acted."""
        self.history.extend(said)
        self.conversation.extend(said)
        self.idle_resets = 0

    def count_reset(self) -> None:
        """Count a reset, and no stalls. What was said is still there: another plan is made of it."""
        self.stall_count = 0
        self.reset_count += 1
        self.idle_resets += 1

    def forget(self) -> None:
        """Forget what was said: it did not lead on."""
        self.history = Log()

    def judge(self, progress: MagenticProgressLedger) -> None:
        """Take a ledger, and count whether the team is stuck: each round that gets on makes up for one that did not."""
        self.progress = progress
        is_stuck = progress.is_in_loop.answer or not progress.is_progress_being_made.answer
        self.stall_count = self.stall_count + 1 if is_stuck else max(0, self.stall_count - 1)

    def context(self, team: Mapping[str, str], *more: Message) -> MagenticContext:
        """What a manager is shown. It is a copy: what is in a log must not be changed."""
        return MagenticContext(
            task=self.task,
            chat_history=deepcopy([*self.history, *more]),
            participant_descriptions=dict(team),
            round_count=self.round_count,
            stall_count=self.stall_count,
            reset_count=self.reset_count,
        )


register_type(MagenticState, name="perdure:MagenticState")
