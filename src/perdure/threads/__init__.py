"""Conversations as append-only, numbered messages, kept on the same stores as runs."""

from perdure.threads.errors import (
    ThreadConflictError,
    ThreadDamagedError,
    ThreadError,
    ThreadExistsError,
    ThreadInUseError,
    ThreadMessageError,
    ThreadNameError,
    ThreadNotFoundError,
    ThreadWriteError,
)
from perdure.threads.store import (
    FileSessionStore,
    InMemorySessionStore,
    PostgresSessionStore,
    SessionStore,
    SqliteSessionStore,
)
from perdure.threads.thread import ForkPoint, Thread, ThreadEvent

__all__ = [
    "FileSessionStore",
    "ForkPoint",
    "InMemorySessionStore",
    "PostgresSessionStore",
    "SessionStore",
    "SqliteSessionStore",
    "Thread",
    "ThreadConflictError",
    "ThreadDamagedError",
    "ThreadError",
    "ThreadEvent",
    "ThreadExistsError",
    "ThreadInUseError",
    "ThreadMessageError",
    "ThreadNameError",
    "ThreadNotFoundError",
    "ThreadWriteError",
]
