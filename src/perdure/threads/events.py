"""What was said in a thread: events, and how those of one append stand in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perdure.agents import Message
from perdure.codec import Codec, DamagedPartError, Needs, Trust, dumps, loads
from perdure.data import frozen
from perdure.errors import EncodeError
from perdure.records import NewEvents
from perdure.threads.errors import ThreadDamagedError, ThreadMessageError
from perdure.threads.thread import FORMAT, require_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.clock import Clock
    from perdure.records import EventBatch
    from perdure.threads.names import ThreadName


@frozen
class ThreadEvent:
    """A message of a thread, and its number there. The first of a thread is 1."""

    sequence: int
    message: Message
    message_id: str
    """The message's own id, or one that it was given when it was appended."""
    at: str
    """When it was appended, in UTC as ISO 8601."""
    key: str | None
    """The key of its append."""
    tags: Mapping[str, str]


@frozen
class Appended:
    """What one append is to write. It is fixed: what becomes of the messages later changes nothing."""

    id: str
    at: str
    key: str | None
    tags: Mapping[str, str]
    events: NewEvents


@frozen
class Batch:
    """What one append has written, as it was read."""

    append: str
    key: str | None
    last: int
    """The number of its last event, as the store counts them."""
    events: tuple[ThreadEvent, ...]
    """Numbered as in the thread."""


def appended(
    name: ThreadName, messages: Sequence[Message], clock: Clock, *, key: str | None, tags: Mapping[str, str]
) -> Appended:
    """The events of an append. Raises ThreadMessageError."""
    append_id, at = clock.new_id(), clock.now().isoformat()
    codec, needs = Codec(Trust.of()), Needs()
    texts: list[bytes] = []
    for number, message in enumerate(messages):
        message_id = message.message_id or clock.new_id()
        texts.append(b"[%b,%b]" % (dumps(message_id), needs.take(_encoded(codec, name, message, number))))
    text = b'{"format":%d,"append":%b,"at":%b,"key":%b,"tags":%b,"messages":[%b]}' % (
        FORMAT,
        dumps(append_id),
        dumps(at),
        dumps(key),
        codec.encode(dict(tags), path="tags").text,
        b",".join(texts),
    )
    whole = needs.whole(text)
    return Appended(append_id, at, key, tags, NewEvents(len(messages), whole.text, whole.refs, whole.parts))


def _encoded(codec: Codec, name: ThreadName, message: Message, number: int) -> Any:
    try:
        return codec.encode(message, path=f"message {number}")
    except EncodeError as error:
        raise ThreadMessageError(name.session_id, name.thread_id, path=error.path, reason=error.reason) from error


def batch_of(name: ThreadName, batch: EventBatch, parts: Mapping[str, bytes], *, base: int) -> Batch:
    """What an append has written. `base` is how many events the thread has from where it was forked.

    Raises ThreadDamagedError, UntrustedTypeError, IncompatibleTypeError.
    """
    where = f"events {base + batch.first} to {base + batch.last}"
    try:
        require_format(cast("dict[str, Any]", loads(batch.data))["format"])
        found = Codec(Trust.of()).decode(batch.data, parts, path=where)
        events = tuple(
            ThreadEvent(base + number, _message(message), message_id, found["at"], found["key"], dict(found["tags"]))
            for number, (message_id, message) in enumerate(found["messages"], start=batch.first)
        )
        return Batch(found["append"], found["key"], batch.last, events)
    except (DamagedPartError, KeyError, TypeError, ValueError) as error:
        reason = f"{where} can't be read: {error or repr(error)}"
        raise ThreadDamagedError(name.session_id, name.thread_id, reason=reason) from error


def _message(found: object) -> Message:
    if isinstance(found, Message):
        return found
    raise TypeError(f"there is no message but a {type(found).__name__}")
