"""A thread: what users see of it, and how it stands in the store."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from perdure.codec import dumps, loads
from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.records import RunRecord
    from perdure.threads.names import ThreadName

FORMAT = 1


@frozen
class ForkPoint:
    """Where a thread was forked: it begins with what that thread of its session had up to this number."""

    thread_id: str
    sequence: int


@frozen
class Thread:
    """A thread as of now. `sequence` is the number of its last event, with those that a fork began with counted."""

    session_id: str
    thread_id: str
    sequence: int
    forked_from: ForkPoint | None
    created_at: str
    """In UTC as ISO 8601."""
    tags: Mapping[str, str]
    """Of each name the newest that an append to this thread has given."""


@frozen
class Header:
    """What the newest checkpoint of a thread says of it."""

    append: str
    """An id of the append that wrote it, so that no two checkpoints are alike."""
    forked_from: ForkPoint | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_bytes(self) -> bytes:
        """As JSON."""
        point = self.forked_from
        forked_from = None if point is None else {"thread": point.thread_id, "sequence": point.sequence}
        return dumps({"format": FORMAT, "append": self.append, "forked_from": forked_from, "tags": dict(self.tags)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Header:
        """The header of what `to_bytes` gave. Raises DamagedPartError, ValueError, KeyError, TypeError."""
        found: dict[str, Any] = loads(data)
        require_format(found["format"])
        point = found["forked_from"]
        forked_from = None if point is None else ForkPoint(point["thread"], point["sequence"])
        return cls(found["append"], forked_from, found["tags"])


@frozen
class Place:
    """Where a thread stands."""

    name: ThreadName
    record: RunRecord
    header: Header

    @property
    def base(self) -> int:
        """How many events it has from where it was forked."""
        return self.header.forked_from.sequence if self.header.forked_from else 0

    @property
    def sequence(self) -> int:
        """The number of its last event."""
        return self.base + self.record.events

    @property
    def parent(self) -> ThreadName | None:
        """The thread that it was forked from."""
        point = self.header.forked_from
        return None if point is None else self.name.sibling(point.thread_id)

    def thread(self) -> Thread:
        """What users see of it."""
        return Thread(
            self.name.session_id,
            self.name.thread_id,
            self.sequence,
            self.header.forked_from,
            self.record.created_at,
            dict(self.header.tags),
        )


def require_format(found: object) -> None:
    """Refuse what a later version has written."""
    if found != FORMAT:
        raise ValueError(f"it has format {found!r}, and this version of perdure reads {FORMAT}")
