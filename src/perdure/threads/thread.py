"""Threads and their events: the public objects, and their stored form."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from perdure.agents import Message
from perdure.codec import Codec, DamagedPartError, Trust, document, dumps, loads
from perdure.errors import EncodeError, WorkflowCheckpointException
from perdure.records import EventBatch, NewEvents, RunRecord
from perdure.storage import RUN_ID_LENGTH_MAX, require_run_id
from perdure.threads.errors import ThreadDamagedError, ThreadMessageError, ThreadNameError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.clock import Clock

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The point at which a thread was forked: it shares that thread's messages up to this number."""

    thread_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Thread:
    """The state of a thread.

    Attributes:
        sequence: The number of its last event, shared ones included.
        created_at: UTC, ISO 8601.
        tags: The newest value of each tag that an append has given.
    """

    session_id: str
    thread_id: str
    sequence: int
    forked_from: ForkPoint | None
    created_at: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Header:
    """The state of a thread as its newest checkpoint stores it.

    `append` is an id of the append that wrote it, so that no two checkpoints are equal.
    """

    append: str
    forked_from: ForkPoint | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_bytes(self) -> bytes:
        """Encode it as JSON."""
        point = self.forked_from
        forked_from = None if point is None else {"thread": point.thread_id, "sequence": point.sequence}
        return dumps({"format": FORMAT, "append": self.append, "forked_from": forked_from, "tags": dict(self.tags)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Header:
        """Decode the result of `to_bytes`. Raises DamagedPartError, ValueError, KeyError, TypeError."""
        found: dict[str, Any] = loads(data)
        require_format(found["format"])
        point = found["forked_from"]
        forked_from = None if point is None else ForkPoint(point["thread"], point["sequence"])
        return cls(found["append"], forked_from, found["tags"])


@dataclass(frozen=True, slots=True)
class StoredThread:
    """A thread with its header and position in the store."""

    name: ThreadName
    record: RunRecord
    header: Header

    @property
    def base(self) -> int:
        """The number of events it shares with its parent."""
        return self.header.forked_from.sequence if self.header.forked_from else 0

    @property
    def sequence(self) -> int:
        """The number of its last event."""
        return self.base + self.record.events

    @property
    def parent(self) -> ThreadName | None:
        """The thread from which it was forked."""
        point = self.header.forked_from
        return None if point is None else self.name.sibling(point.thread_id)

    def thread(self) -> Thread:
        """The public view."""
        return Thread(
            self.name.session_id,
            self.name.thread_id,
            self.sequence,
            self.header.forked_from,
            self.record.created_at,
            dict(self.header.tags),
        )


def require_format(found: object) -> None:
    """Raise if a later version has written it."""
    if found != FORMAT:
        raise ValueError(f"it has format {found!r}, and this version of perdure reads {FORMAT}")


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """A message of a thread with its number. The first of a thread is 1.

    Attributes:
        message_id: The message's own id, or one assigned when it was appended.
        at: The time of the append: UTC, ISO 8601.
        key: The key of its append.
    """

    sequence: int
    message: Message
    message_id: str
    at: str
    key: str | None
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Appended:
    """One append, encoded: later changes of the message objects do not reach it."""

    id: str
    at: str
    key: str | None
    tags: Mapping[str, str]
    events: NewEvents


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one append, read back, numbered as in the thread."""

    append: str
    key: str | None
    events: tuple[ThreadEvent, ...]


def appended(
    name: ThreadName, messages: Sequence[Message], clock: Clock, *, key: str | None, tags: Mapping[str, str]
) -> Appended:
    """Encode the events of an append. Raises ThreadMessageError."""
    append_id, at = clock.new_id(), clock.now().isoformat()
    codec = Codec(Trust.of())
    whole = document(
        {
            "format": FORMAT,
            "append": append_id,
            "at": at,
            "key": key,
            "tags": codec.encode(dict(tags), path="tags"),
            "messages": [
                [message.message_id or clock.new_id(), _encoded(codec, name, message, number)]
                for number, message in enumerate(messages)
            ],
        }
    )
    return Appended(append_id, at, key, tags, NewEvents(len(messages), whole.text, whole.refs, whole.blobs))


def _encoded(codec: Codec, name: ThreadName, message: Message, number: int) -> Any:
    try:
        return codec.encode(message, path=f"message {number}")
    except EncodeError as error:
        raise ThreadMessageError(name.session_id, name.thread_id, path=error.path, reason=error.reason) from error


def batch_of(name: ThreadName, batch: EventBatch, blobs: Mapping[str, bytes], *, base: int) -> Batch:
    """Decode one append. `base` is the number of events shared with the parent.

    Raises ThreadDamagedError, UntrustedTypeError, IncompatibleTypeError.
    """
    where = f"events {base + batch.first} to {base + batch.last}"
    try:
        require_format(cast("dict[str, Any]", loads(batch.data))["format"])
        found = Codec(Trust.of()).decode(batch.data, blobs, path=where)
        events = tuple(
            ThreadEvent(base + number, _message(message), message_id, found["at"], found["key"], dict(found["tags"]))
            for number, (message_id, message) in enumerate(found["messages"], start=batch.first)
        )
        return Batch(found["append"], found["key"], events)
    except (DamagedPartError, KeyError, TypeError, ValueError) as error:
        reason = f"{where} can't be read: {error or repr(error)}"
        raise ThreadDamagedError(name.session_id, name.thread_id, reason=reason) from error


def _message(found: object) -> Message:
    if isinstance(found, Message):
        return found
    raise TypeError(f"there is no message but a {type(found).__name__}")


_SESSION = "session "
# Separators must not occur in ids, and an id must never be a path.
_ESCAPES = str.maketrans({"%": "%25", ":": "%3A", "/": "%2F", "\\": "%5C"})

# Session stores use a tenant of their own, so that they never touch runs at the same location.
TENANT = "perdure:sessions"


def session_of(workflow_name: str) -> str:
    """Return the session whose threads are runs of that workflow name."""
    return workflow_name.removeprefix(_SESSION)


def session_name(session_id: str) -> str:
    """Return the workflow name of all threads of a session."""
    if not session_id:
        raise ThreadNameError(session_id, "", reason="a session id can't be empty; give one")
    return f"{_SESSION}{session_id}"


@dataclass(frozen=True)
class ThreadName:
    """The name of a thread: session and thread id."""

    session_id: str
    thread_id: str

    def __post_init__(self) -> None:
        for kind, value in (("session", self.session_id), ("thread", self.thread_id)):
            if not value:
                raise self._refused(f"a {kind} id can't be empty; give one")
        if len(self.run_id) > RUN_ID_LENGTH_MAX:
            raise self._refused(
                f"session id {self.session_id[:40]!r}... and thread id {self.thread_id[:40]!r}... have together "
                f"{len(self.run_id)} characters, where %, :, / and \\ count as three, more than {RUN_ID_LENGTH_MAX}; "
                "shorten them"
            )
        try:
            require_run_id(self.run_id)
        except WorkflowCheckpointException as error:
            reason = f"session id {self.session_id!r} or thread id {self.thread_id!r} has control characters in it"
            raise self._refused(f"{reason}; leave them out") from error

    @cached_property
    def run_id(self) -> str:
        """The id of the run that stores the thread, unique for each pair of ids."""
        return f"{self.session_id.translate(_ESCAPES)}:{self.thread_id.translate(_ESCAPES)}"

    @property
    def workflow_name(self) -> str:
        """The workflow name that the threads of a session share."""
        return session_name(self.session_id)

    @classmethod
    def of_run(cls, run_id: str, *, workflow_name: str) -> ThreadName:
        """Return the name of the thread that a run stores."""
        return cls(session_of(workflow_name), unquote(run_id.partition(":")[2]))

    def sibling(self, thread_id: str) -> ThreadName:
        """Return another thread of the session."""
        return ThreadName(self.session_id, thread_id)

    def _refused(self, reason: str) -> ThreadNameError:
        return ThreadNameError(self.session_id, self.thread_id, reason=reason)
