"""The runs of a memory store: who they are, where they stand, who has claimed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.records import Claim
from perdure.storage import rules
from perdure.storage.owners import this_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from perdure.records import NewRun, RunRecord, RunStatus


class MemoryRuns:
    """By id the run, in the order in which they began. Every owner is this very process."""

    def __init__(self) -> None:
        self._last_token = 0
        self._states: dict[str, rules.RunState] = {}

    def get(self, run_id: str) -> rules.RunState | None:
        """The run, also if it never began."""
        return self._states.get(run_id)

    def known(self, run_id: str) -> RunRecord | None:
        """What is known of a run."""
        state = self._states.get(run_id)
        return state.record if state and state.is_known else None

    def listed(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        """Those that began, all or some."""
        return [
            state.record
            for state in self._states.values()
            if state.is_known
            and workflow_name in {None, state.record.workflow_name}
            and status in {None, state.record.standing}
        ]

    def items(self) -> Iterator[tuple[str, rules.RunState]]:
        """All there are."""
        return iter(self._states.items())

    def put(self, state: rules.RunState) -> None:
        """The run as it is from now on."""
        self._states[state.record.run_id] = state

    def drop(self, run_id: str) -> None:
        """Remove a run."""
        self._states.pop(run_id, None)

    def claimable(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> rules.RunState:
        """The run to be claimed."""
        return rules.claimable(
            self.get(run_id), run_id, create=create, takeover=takeover, is_replaceable=lambda _: True, token=token
        )

    def claim(self, state: rules.RunState, *, token: int | None) -> Claim:
        """The run in the hands of this process, under that token or a fresh one."""
        owner, token = this_process(), self.fresh_token() if token is None else token
        self._last_token = max(self._last_token, token)
        claimed = rules.claimed(state, owner=owner, token=token)
        self.put(claimed)
        return Claim(claimed.record.run_id, token, owner, claimed.record.attempts, state.record.halt, claimed.record)

    def fresh_token(self) -> int:
        """A token larger than any that was ever given."""
        self._last_token += 1
        return self._last_token

    def unowned(self, workflow_names: Collection[str]) -> Sequence[rules.RunState]:
        """Those of these workflows that nobody advances, first the one that was not committed for longest."""
        unowned = [
            state
            for state in self._states.values()
            if state.is_known and state.record.owner is None and state.record.workflow_name in workflow_names
        ]
        return sorted(unowned, key=lambda state: (state.moment is not None, state.moment or 0.0))

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """When the next timer is due of those of these workflows that are neither halted nor cancelled."""
        wakes = (
            state.record.wake_at
            for state in self._states.values()
            if state.is_known and rules.may_wake(state.record) and state.record.workflow_name in workflow_names
        )
        return min((wake_at for wake_at in wakes if wake_at is not None and wake_at > after), default=None)

    def rested_on(self) -> set[str]:
        """The checkpoints that forks have nothing but."""
        return {rests_on for state in self._states.values() if (rests_on := state.rests_on) is not None}
