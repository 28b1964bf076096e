"""Errors of session stores.

AgentFrameworkException
└── ThreadError
    ├── ThreadConflictError     the thread is not at the expected number
    ├── ThreadExistsError       another thread has that name (a ValueError)
    ├── ThreadNotFoundError     no such thread, or no such message in it (a ValueError)
    ├── ThreadInUseError        forks depend on the thread
    ├── ThreadNameError         invalid id of a session or thread (a ValueError)
    ├── ThreadMessageError      a message could not be decoded again (a TypeError)
    ├── ThreadWriteError        the store could not write
    └── ThreadDamagedError      the stored bytes are damaged
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import AgentFrameworkException

if TYPE_CHECKING:
    from collections.abc import Sequence


def label(session_id: str, thread_id: str) -> str:
    """Return the text by which errors name a thread."""
    return f"thread {thread_id!r} of session {session_id!r}"


class ThreadError(AgentFrameworkException):
    """Base class of all thread errors."""

    def __init__(self, session_id: str, thread_id: str, message: str) -> None:
        self.session_id = session_id
        self.thread_id = thread_id
        super().__init__(message)


class ThreadConflictError(ThreadError):
    """The thread is not at the expected number. Nothing was written."""

    def __init__(self, session_id: str, thread_id: str, *, expected: int, sequence: int) -> None:
        self.expected = expected
        self.sequence = sequence
        text = (
            f"{label(session_id, thread_id)} is at {sequence}, not at {expected}, and nothing was appended; read what "
            f"is new with read(..., after={min(expected, sequence)}), and append again with expected={sequence}"
        )
        super().__init__(session_id, thread_id, text)


class ThreadExistsError(ThreadError, ValueError):
    """A thread with that name exists, and it is not the requested fork."""

    def __init__(self, session_id: str, thread_id: str, *, what: str) -> None:
        self.what = what
        text = (
            f"{label(session_id, thread_id)} exists and is {what}; give the new fork another name, or delete that "
            "thread"
        )
        super().__init__(session_id, thread_id, text)


class ThreadNotFoundError(ThreadError, ValueError):
    """No such thread, or no such message in it."""

    def __init__(self, session_id: str, thread_id: str, *, message: str | int | None = None, last: int = 0) -> None:
        self.message_id = message
        if message is None:
            text = f"there is no {label(session_id, thread_id)}; call threads({session_id!r}) to list them"
        else:
            text = (
                f"{label(session_id, thread_id)} has no message {message!r}: its last number is {last}; give the "
                "number or message id of an event from read()"
            )
        super().__init__(session_id, thread_id, text)


class ThreadInUseError(ThreadError):
    """The thread can't be deleted because forks depend on it."""

    def __init__(self, session_id: str, thread_id: str, *, forks: Sequence[str]) -> None:
        self.forks = tuple(forks)
        names = ", ".join(map(repr, self.forks))
        text = f"{label(session_id, thread_id)} can't be deleted: {names} was forked from it; delete the forks first"
        super().__init__(session_id, thread_id, text)


class _ReasonError(ThreadError):
    """An error with a reason. Its text names the thread and the reason."""

    _text = "{reason}"

    def __init__(self, session_id: str, thread_id: str, *, reason: str) -> None:
        self.reason = reason
        text = self._text.format(thread=label(session_id, thread_id), reason=reason)
        super().__init__(session_id, thread_id, text)


class ThreadNameError(_ReasonError, ValueError):
    """Invalid id of a session or thread."""


class ThreadWriteError(_ReasonError):
    """The store could not write."""

    _text = (
        "the append to {thread} may not have been written: {reason}; fix the cause and append again, with key=... so "
        "that it is done once"
    )


class ThreadDamagedError(_ReasonError):
    """The stored bytes are damaged."""

    _text = "{thread} is damaged: {reason}; restore the store from a copy"


class ThreadMessageError(ThreadError, TypeError):
    """A message holds a value that could not be decoded again. Nothing was written."""

    def __init__(self, session_id: str, thread_id: str, *, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        text = (
            f"{path} can't be kept in {label(session_id, thread_id)}: {reason}; convert it to plain data, or "
            "register its type with perdure.register_type in all programs that read the thread"
        )
        super().__init__(session_id, thread_id, text)
