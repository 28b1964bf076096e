"""The session of an agent in a workflow: what a run keeps of it, and the object that the program has."""

from __future__ import annotations

from copy import copy
from dataclasses import field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from perdure.agents.sessions.session import AgentSession, apply, changes, copied, share
from perdure.codec import register_type
from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents.sessions.session import Change


@frozen
class SessionRecord:
    """A session as a run keeps it, and changes that are to be made to its state.

    It is a value: what is taken from it belongs to whoever took it, so that nothing in it ever needs to be copied.
    """

    session_id: str
    service_session_id: str | None
    state: Mapping[str, Any]
    changes: Sequence[Change] = field(default=())

    @classmethod
    def of(cls, session: AgentSession) -> SessionRecord:
        """A session as it is now."""
        return cls(session.session_id, session.service_session_id, copied(session.state))

    def session(self) -> AgentSession:
        """The session, for one turn."""
        session = AgentSession(session_id=self.session_id, service_session_id=self.service_session_id)
        session.state.update(copied(self.state))
        apply(self.changes, session.state)
        return session

    def __deepcopy__(self, _: object) -> SessionRecord:
        """Nobody changes it."""
        return self


def _stored(record: SessionRecord) -> dict[str, Any]:
    found = {
        "session_id": record.session_id,
        "service_session_id": record.service_session_id,
        "state": record.state,
        "changes": list(record.changes),
    }
    return {name: value for name, value in found.items() if value}


def _read(found: Mapping[str, Any]) -> SessionRecord:
    return SessionRecord(
        found["session_id"], found.get("service_session_id"), found.get("state", {}), found.get("changes", ())
    )


register_type(SessionRecord, name="perdure:SessionRecord", encode=_stored, decode=_read)


def update_of(session: AgentSession, *, base: SessionRecord, is_first: bool) -> SessionRecord:
    """What a turn has made of a session that several executors share, to be merged with what others made of it.

    The first update is the value, so it has what the session was before; of the others only the changes count.
    """
    before = base.session().state
    changed = list(changes(before, copied(session.state)))
    return SessionRecord(base.session_id, session.service_session_id, before if is_first else {}, changed)


def merged(record: SessionRecord, update: SessionRecord) -> SessionRecord:
    """A session with what another turn has made of it."""
    session = record.session()
    apply(update.changes, session.state)
    session.service_session_id = update.service_session_id or session.service_session_id
    return SessionRecord(session.session_id, session.service_session_id, session.state)


class LiveSession:
    """The object that the program has: it is brought up to date with what runs make of the session.

    What a run goes on with is its own record. What the program itself does to the object meanwhile, the next turn sees.
    """

    def __init__(self, session: AgentSession) -> None:
        self.session = session
        self._pristine: SessionRecord | None = None
        """What it was before any run: what a new run begins with."""
        self._left: SessionRecord | None = None
        """What it was when it was last brought up to date."""
        self._kept: SessionRecord | None = None
        """What a run has kept last, with all that was decoded of it."""

    def base(self, stored: SessionRecord | None, *, is_shared: bool) -> SessionRecord:
        """What a turn goes on with."""
        if self._pristine is None or self._left is None:
            self._pristine = self._left = SessionRecord.of(self.session)
        base = self._pristine if stored is None else self._known(stored)
        meanwhile = list(changes(self._left.state, self.session.state))
        if not meanwhile:
            return base
        if is_shared:
            # Of turns side by side one takes it in: what each makes of the session is added to it.
            self._left = SessionRecord.of(self.session)
        session = base.session()
        apply(meanwhile, session.state)
        return SessionRecord.of(session)

    def renewed(self, key: str) -> SessionRecord:
        """A session like the one that a new run begins with, under an id that `key` makes its own."""
        begun = self.base(None, is_shared=False)
        return SessionRecord(f"{begun.session_id}-{key}", None, begun.state)

    def session_of(self, record: SessionRecord) -> AgentSession:
        """The session for one turn: of the class that the program has chosen."""
        if type(self.session) is AgentSession:
            return record.session()
        session = copy(self.session)
        session.state = record.session().state
        session.service_session_id = record.service_session_id
        return session

    def _known(self, record: SessionRecord) -> SessionRecord:
        """A record that was read. Of a long history only what is new is decoded."""
        if self._kept is not None:
            share(record.state, self._kept.state)
        return record

    def leave(self, session: AgentSession, kept: SessionRecord | None = None) -> None:
        """A turn has ended with this, and this is kept of it; nothing, if it is still to be merged."""
        self._kept = kept or self._kept
        self.session.state.clear()
        self.session.state.update(copied(session.state))
        self.session.service_session_id = session.service_session_id
        self._left = SessionRecord.of(self.session)

    def merged(self, record: SessionRecord, update: SessionRecord) -> SessionRecord:
        """What turns that were taken side by side make of the session; the last to be merged leaves all of them."""
        after = merged(self._known(record), update)
        self.leave(after.session(), after)
        return after


_held: WeakValueDictionary[int, LiveSession] = WeakValueDictionary()
"""By identity of the session: one for all executors that were given it."""


def live(session: AgentSession) -> LiveSession:
    """The holder of a session, the same for all that have the session."""
    found = _held.get(id(session))
    if found is None:
        found = _held[id(session)] = LiveSession(session)
    return found
