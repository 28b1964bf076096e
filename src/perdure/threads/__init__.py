"""Conversations as append-only, numbered thread events, on the same stores as runs."""

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
from perdure.threads.events import ThreadEvent
from perdure.threads.shipped import (
    FileSessionStore,
    InMemorySessionStore,
    PostgresSessionStore,
    SqliteSessionStore,
)
from perdure.threads.store import SessionStore
from perdure.threads.thread import ForkPoint, Thread

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
