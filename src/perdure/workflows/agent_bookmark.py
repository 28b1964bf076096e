"""What a session knows of the run that it talks to, as plain data in its state."""

from __future__ import annotations

from dataclasses import asdict, field, fields
from typing import TYPE_CHECKING, Any, cast

from perdure.data import mutable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from perdure.kernel import Snapshot

STATE_KEY = "workflow"


@mutable
class Bookmark:
    """Where the last turn that ended well has left a run. Behind it the run may have begun another one."""

    agent: str = ""
    run_id: str | None = None
    turn: int = 0
    checkpoint_id: str | None = None
    told: int = 0
    """How many outputs of the turn the session has."""
    is_open: bool = False
    """Whether requests wait for answers."""
    heard: dict[str, int] = field(default_factory=dict[str, int])
    """By history: how many messages there were when the last turn began, all of which the run was told."""

    @classmethod
    def of(cls, state: MutableMapping[str, Any], agent: str) -> Bookmark:
        """The bookmark of an agent in the state of a session; an empty one if there is none."""
        found: Any = state.get(_place(state, agent))
        known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        names = {each.name for each in fields(cls)}
        stored: dict[str, Any] = {name: value for name, value in known.items() if name in names}
        stored["agent"] = agent
        return cls(**stored)

    def put(self, state: MutableMapping[str, Any]) -> None:
        """Keep it in the state of a session."""
        state[_place(state, self.agent)] = asdict(self)

    def move(self, run_id: str, checkpoint_id: str | None, snapshot: Snapshot) -> None:
        """The run rests here, and the session knows all that it has told."""
        self.run_id, self.checkpoint_id, self.turn = run_id, checkpoint_id, snapshot.turn
        self.told, self.is_open = len(snapshot.outputs), bool(snapshot.requests)


def _place(state: MutableMapping[str, Any], agent: str) -> str:
    """Where it stands. Of several agents that share a session, each has a place of its own."""
    first: Any = state.get(STATE_KEY)
    is_mine = not isinstance(first, dict) or cast("dict[str, Any]", first).get("agent", agent) == agent
    return STATE_KEY if is_mine else f"{STATE_KEY}:{agent}"
