"""Every error that session stores raise on purpose.

AgentFrameworkException
└── ThreadError
    ├── ThreadConflictError     the thread is not where the append expects it
    ├── ThreadExistsError       a thread of that name is there and is another one (a ValueError)
    ├── ThreadNotFoundError     no such thread, or no such message in it (a ValueError)
    ├── ThreadInUseError        forks rest on the thread
    ├── ThreadNameError         what can't be the id of a session or thread (a ValueError)
    ├── ThreadMessageError      a message that could not be read back (a TypeError)
    ├── ThreadWriteError        the store could not write
    └── ThreadDamagedError      stored bytes are not what was written
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import AgentFrameworkException

if TYPE_CHECKING:
    from collections.abc import Sequence


def shown(session_id: str, thread_id: str) -> str:
    """A thread as errors name it."""
    return f"thread {thread_id!r} of session {session_id!r}"


class ThreadError(AgentFrameworkException):
    """Anything that goes wrong with a thread."""

    def __init__(self, session_id: str, thread_id: str, message: str) -> None:
        self.session_id = session_id
        self.thread_id = thread_id
        super().__init__(message)


class ThreadConflictError(ThreadError):
    """The thread is not at the number that the append expects. Nothing was written."""

    def __init__(self, session_id: str, thread_id: str, *, expected: int, sequence: int) -> None:
        self.expected = expected
        self.sequence = sequence
        super().__init__(
            session_id,
            thread_id,
            f"{shown(session_id, thread_id)} is at {sequence}, not at {expected}, and nothing was appended; read what "
            f"is new with read(..., after={min(expected, sequence)}), and append again with expected={sequence}",
        )


class ThreadExistsError(ThreadError, ValueError):
    """A thread of that name is there, and it is not the fork that was asked for."""

    def __init__(self, session_id: str, thread_id: str, *, what: str) -> None:
        self.what = what
        super().__init__(
            session_id,
            thread_id,
            f"{shown(session_id, thread_id)} exists and is {what}; give the new fork another name, or delete that "
            "thread",
        )


class ThreadNotFoundError(ThreadError, ValueError):
    """There is no such thread, or it has no such message."""

    def __init__(self, session_id: str, thread_id: str, *, message: str | int | None = None, last: int = 0) -> None:
        self.message_id = message
        if message is None:
            text = f"there is no {shown(session_id, thread_id)}; threads({session_id!r}) tells what there is"
        else:
            text = (
                f"{shown(session_id, thread_id)} has no message {message!r}: it is at {last}; give the sequence number "
                "or message id of an event that read() tells"
            )
        super().__init__(session_id, thread_id, text)


class ThreadInUseError(ThreadError):
    """Forks begin with what the thread has."""

    def __init__(self, session_id: str, thread_id: str, *, forks: Sequence[str]) -> None:
        self.forks = tuple(forks)
        names = ", ".join(map(repr, self.forks))
        super().__init__(
            session_id,
            thread_id,
            f"{shown(session_id, thread_id)} can't be deleted: {names} was forked from it; delete the forks first",
        )


class ThreadNameError(ThreadError, ValueError):
    """What can't be the id of a session or of a thread."""

    def __init__(self, session_id: str, thread_id: str, *, reason: str) -> None:
        self.reason = reason
        super().__init__(session_id, thread_id, reason)


class ThreadMessageError(ThreadError, TypeError):
    """A message holds what could not be read back. Nothing was written."""

    def __init__(self, session_id: str, thread_id: str, *, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            session_id,
            thread_id,
            f"{path} can't be kept in {shown(session_id, thread_id)}: {reason}; make plain data of it, or register its "
            "type with perdure.register_type in all programs that read the thread",
        )


class ThreadWriteError(ThreadError):
    """The store could not write."""

    def __init__(self, session_id: str, thread_id: str, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            session_id,
            thread_id,
            f"nothing is known to be written to {shown(session_id, thread_id)}: {reason}; mend the cause, and append "
            "again: with a key=... it is done once",
        )


class ThreadDamagedError(ThreadError):
    """What the store returned is not what was written."""

    def __init__(self, session_id: str, thread_id: str, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            session_id,
            thread_id,
            f"{shown(session_id, thread_id)} is damaged: {reason}; restore the store from a copy",
        )
