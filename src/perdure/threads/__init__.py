"""Conversations as append-only, numbered messages, kept on the same stores as runs."""

from perdure.threads.errors import (
    ThreadConflictError as ThreadConflictError,
    ThreadDamagedError as ThreadDamagedError,
    ThreadError as ThreadError,
    ThreadExistsError as ThreadExistsError,
    ThreadInUseError as ThreadInUseError,
    ThreadMessageError as ThreadMessageError,
    ThreadNameError as ThreadNameError,
    ThreadNotFoundError as ThreadNotFoundError,
    ThreadWriteError as ThreadWriteError,
)
from perdure.threads.store import (
    FileSessionStore as FileSessionStore,
    InMemorySessionStore as InMemorySessionStore,
    PostgresSessionStore as PostgresSessionStore,
    SessionStore as SessionStore,
    SqliteSessionStore as SqliteSessionStore,
)
from perdure.threads.thread import ForkPoint as ForkPoint, Thread as Thread, ThreadEvent as ThreadEvent
