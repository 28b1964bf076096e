"""An agent's session in a workflow: the record in the run's state, and the object that the program holds."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from perdure.agents.sessions.session import AgentSession, apply_changes, copy_state, find_changes, share_logs
from perdure.codec import register_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents.sessions.session import Change


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as the run stores it, with changes to apply to its state.

    It is a value: readers get copies, so it never needs to be copied itself.
    """

    session_id: str
    service_session_id: str | None
    state: Mapping[str, Any]
    changes: Sequence[Change] = field(default=())

    @classmethod
    def of(cls, session: AgentSession) -> SessionRecord:
        """Record a session."""
        return cls(session.session_id, session.service_session_id, copy_state(session.state))

    def session(self) -> AgentSession:
        """Return the session for one turn."""
        session = AgentSession(session_id=self.session_id, service_session_id=self.service_session_id)
        session.state.update(copy_state(self.state))
        apply_changes(self.changes, session.state)
        return session

    def __deepcopy__(self, _: object) -> SessionRecord:
        """Return the record itself, which nobody changes."""
        return self


def _record_fields(record: SessionRecord) -> dict[str, Any]:
    found = {
        "session_id": record.session_id,
        "service_session_id": record.service_session_id,
        "state": record.state,
        "changes": list(record.changes),
    }
    return {name: value for name, value in found.items() if value}


def _record_of(found: Mapping[str, Any]) -> SessionRecord:
    return SessionRecord(
        found["session_id"], found.get("service_session_id"), found.get("state", {}), found.get("changes", ())
    )


register_type(SessionRecord, name="perdure:SessionRecord", encode=_record_fields, decode=_record_of)


def session_update(session: AgentSession, *, base: SessionRecord, is_first: bool) -> SessionRecord:
    """Return a turn's changes to a session that several executors share, to be merged with those of others.

    The first update is the stored value, so it also holds the state before the turn. Later ones count by their changes.
    """
    before = base.session().state
    changed = list(find_changes(before, copy_state(session.state)))
    return SessionRecord(base.session_id, session.service_session_id, before if is_first else {}, changed)


def merge_records(record: SessionRecord, update: SessionRecord) -> SessionRecord:
    """Apply another turn's changes to a record."""
    session = record.session()
    apply_changes(update.changes, session.state)
    session.service_session_id = update.service_session_id or session.service_session_id
    return SessionRecord(session.session_id, session.service_session_id, session.state)


class LiveSession:
    """The session object that the program holds, kept up to date with what runs do to the session.

    A run continues from its own record. Changes that the program makes to the object are seen by the next turn.
    """

    def __init__(self, session: AgentSession) -> None:
        self.session = session
        self._pristine: SessionRecord | None = None
        """The session before any run. A new run starts with it."""
        self._left: SessionRecord | None = None
        """The session when the object was last updated."""
        self._kept: SessionRecord | None = None
        """The last stored record, with its decoded elements."""

    def base(self, stored: SessionRecord | None, *, is_shared: bool) -> SessionRecord:
        """Return the record that a turn starts from."""
        if self._pristine is None or self._left is None:
            self._pristine = self._left = SessionRecord.of(self.session)
        base = self._pristine if stored is None else self._with_decoded(stored)
        changed = list(find_changes(self._left.state, self.session.state))
        if not changed:
            return base
        if is_shared:
            # Of parallel turns only one takes these changes; the changes of the others are added to them.
            self._left = SessionRecord.of(self.session)
        session = base.session()
        apply_changes(changed, session.state)
        return SessionRecord.of(session)

    def renew(self, key: str) -> SessionRecord:
        """Return a session like that of a new run, under an id made unique by `key`."""
        pristine = self.base(None, is_shared=False)
        return SessionRecord(f"{pristine.session_id}-{key}", None, pristine.state)

    def session_of(self, record: SessionRecord) -> AgentSession:
        """Return the session for one turn, of the program's own class."""
        if type(self.session) is AgentSession:
            return record.session()
        session = copy(self.session)
        session.state = record.session().state
        session.service_session_id = record.service_session_id
        return session

    def _with_decoded(self, record: SessionRecord) -> SessionRecord:
        """Reuse decoded elements of the last record, so that only the new part of a long history is decoded."""
        if self._kept is not None:
            share_logs(record.state, self._kept.state)
        return record

    def update(self, session: AgentSession, kept: SessionRecord | None = None) -> None:
        """Update the object after a turn; `kept` is the stored record, if there is nothing left to merge."""
        self._kept = kept or self._kept
        self.session.state.clear()
        self.session.state.update(copy_state(session.state))
        self.session.service_session_id = session.service_session_id
        self._left = SessionRecord.of(self.session)

    def merge(self, record: SessionRecord, update: SessionRecord) -> SessionRecord:
        """Merge parallel turns of a shared session. The last one to be merged updates the object."""
        after = merge_records(self._with_decoded(record), update)
        self.update(after.session(), after)
        return after


_holders: WeakValueDictionary[int, LiveSession] = WeakValueDictionary()
"""Holders by the identity of their session."""


def live_session(session: AgentSession) -> LiveSession:
    """Return the holder of a session, one for all executors that share it."""
    found = _holders.get(id(session))
    if found is None:
        found = _holders[id(session)] = LiveSession(session)
    return found
