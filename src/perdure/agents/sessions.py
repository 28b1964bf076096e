"""Sessions: conversations with an agent that go on, and what providers keep in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from perdure.agents.history import HistoryProvider, InMemoryHistoryProvider
from perdure.agents.providers import ContextProvider, SessionContext
from perdure.agents.session_state import plain_state, register_state_type, revived_state
from perdure.clock import SystemClock

__all__ = [
    "AgentSession",
    "ContextProvider",
    "HistoryProvider",
    "InMemoryHistoryProvider",
    "SessionContext",
    "register_state_type",
]


class AgentSession:
    """A conversation with an agent: an id, the id that the provider has for it if it keeps it, and a state.

    The state is plain data, a part for each provider: the history stands in `state["in_memory"]["messages"]`. Whoever
    keeps a session, with `to_dict` or in the state of a workflow, can go on with it in any process.
    """

    def __init__(self, *, session_id: str | None = None, service_session_id: Any = None) -> None:
        self._session_id = session_id or SystemClock().new_id()
        self.service_session_id = service_session_id
        self.state: dict[str, Any] = {}

    @property
    def session_id(self) -> str:
        """What the session is known by."""
        return self._session_id

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON. Raises TypeError for what is none, with its path."""
        return {
            "type": "session",
            "session_id": self._session_id,
            "service_session_id": self.service_session_id,
            "state": plain_state(self.state),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentSession:
        """The session of what `to_dict` gave. Raises TypeError, ValueError."""
        given = cast("object", data)
        if not isinstance(given, Mapping):
            raise TypeError(f"a session is made of what to_dict() gave, not of {given!r}; read JSON with json.loads()")
        if "session_id" not in data:
            raise ValueError(f"a session has a session_id; this has only {list(data)}")
        session_id: Any = data["session_id"]
        state: Any = data.get("state") or {}
        if not isinstance(session_id, str) or not isinstance(state, Mapping):
            raise TypeError(
                f"the session_id of a session is a text and its state a dict, not {session_id!r} and {state!r}"
            )
        session = cls(session_id=session_id, service_session_id=data.get("service_session_id"))
        session.state.update(revived_state(cast("Mapping[str, Any]", state)))
        return session

    def __repr__(self) -> str:
        return f"AgentSession(session_id={self._session_id!r})"
