"""Session stores: the threads of sessions, on each kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypedDict, cast

from typing_extensions import Unpack

from perdure.agents import Message
from perdure.clock import Clock, SystemClock
from perdure.storage import Durability, FileStore, MemoryStore, PostgresStore, SqliteStore, TenantStore
from perdure.threads.log import ThreadLog
from perdure.threads.thread import TENANT, Thread, ThreadEvent, ThreadName, appended

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class SessionStore:
    """Keep conversations: each session has threads, each thread is a growing list of numbered messages.

    A session store may share its location with a checkpoint storage; neither sees the other's data. With `tenant` it
    has the sessions of that tenant alone.
    """

    def __init__(self, store: TenantStore, *, tenant: str | None = None, clock: Clock | None = None) -> None:
        self._base = store
        self._clock = clock or SystemClock()
        # Tenants of perdure's own keep only the newest checkpoint, which holds the state of a thread. The messages are
        # its events, which are all kept.
        self._store = store.tenant(TENANT if tenant is None else f"{TENANT}:{tenant}")
        self._log = ThreadLog(self._store, self._clock)

    @property
    def place(self) -> str:
        """The location of the sessions. Two objects with one location have the same sessions."""
        return self._store.place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place}>"

    async def append(
        self,
        session_id: str,
        thread_id: str,
        messages: Message | Sequence[Message],
        *,
        expected: int | None = None,
        key: str | None = None,
        since: int = 0,
        tags: Mapping[str, str] | None = None,
    ) -> int:
        """Append messages to a thread, all or none. Return the number of the last. They are durable when this returns.

        Args:
            session_id: The session. It starts with its first thread.
            thread_id: The thread. It starts with its first message.
            messages: The messages. Later changes of the objects do not reach the thread.
            expected: The number the thread must be at; 0 for a new or empty one. Without it the messages are appended
                to whatever is there.
            key: An idempotency key. If an event after `since` has the key, nothing is written and the number of the
                last such event is returned.
            since: The number after which the key is looked up. A higher number costs less.
            tags: Kept with each event and with the thread.

        Raises:
            ThreadConflictError: The thread is not at `expected`. Nothing was written.
            ThreadMessageError: A message could not be decoded again. Nothing was written.
            ThreadNameError: The id of the session or thread is invalid.
        """
        name = ThreadName(session_id, thread_id)
        new = appended(name, _messages(messages), self._clock, key=key, tags=_tags(tags))
        return await self._log.append(name, new, expected=expected, since=since)

    async def read(
        self, session_id: str, thread_id: str, *, after: int = 0, until: int | None = None
    ) -> list[ThreadEvent]:
        """Return the events after one number and up to another, in order; an empty list if there is no such thread.

        The events of a fork start with those of its parent. Raises ThreadDamagedError.
        """
        stored = await self._log.find(ThreadName(session_id, thread_id))
        return [] if stored is None else await self._log.events(stored, after=max(0, after), until=until)

    async def messages(self, session_id: str, thread_id: str, *, until: int | None = None) -> list[Message]:
        """Return the messages of a thread up to a number. Raises ThreadDamagedError."""
        return [event.message for event in await self.read(session_id, thread_id, until=until)]

    async def thread(self, session_id: str, thread_id: str) -> Thread | None:
        """Return the state of a thread, or None."""
        stored = await self._log.find(ThreadName(session_id, thread_id))
        return None if stored is None else stored.thread()

    async def threads(self, session_id: str) -> list[Thread]:
        """List the threads of a session in the order they started."""
        return [stored.thread() for stored in await self._log.threads(session_id)]

    async def sessions(self) -> list[str]:
        """List the sessions that have threads in the order they started. This reads all threads."""
        return await self._log.sessions()

    async def fork(
        self, session_id: str, thread_id: str, new_thread_id: str, *, from_message: str | int | None = None
    ) -> Thread:
        """Start a thread with the messages of another, up to one of them, without copying. Numbers continue from there.

        `from_message` is a message id or a number; None is the last message, 0 is none. The same fork of the same point
        again returns the existing one.

        Raises:
            ThreadNotFoundError: No such thread, or no such message in it.
            ThreadExistsError: A thread with the new name exists and is not this fork.
            TypeError: `from_message` is neither a string nor a number.
        """
        parent = ThreadName(session_id, thread_id)
        return await self._log.fork(parent, parent.sibling(new_thread_id), from_message=from_message)

    async def delete(self, session_id: str, thread_id: str) -> bool:
        """Delete a thread. Return False if there is none. Raises ThreadInUseError while forks depend on it.

        The bytes of large contents are freed by the next `collect`, which also runs by itself.
        """
        return await self._log.delete(ThreadName(session_id, thread_id))

    async def collect(self) -> int:
        """Delete blobs that no thread refers to. Return their number."""
        return await self._store.collect()

    def tenant(self, name: str) -> SessionStore:
        """Return the sessions of one tenant at the same location. Those of other tenants are invisible there."""
        return SessionStore(self._base, tenant=name, clock=self._clock)

    async def close(self) -> None:
        """Close files and threads. A closed store reopens when it is used."""
        await self._base.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _messages(given: object) -> list[Message]:
    """Return the messages as a list. Raises TypeError for anything else."""
    if isinstance(given, Message):
        return [given]
    if isinstance(given, list | tuple):
        found = cast("Sequence[object]", given)
        if all(isinstance(each, Message) for each in found):
            return list(cast("Sequence[Message]", found))
    raise TypeError(f"a thread is made of messages; give a Message or a list of them, not {given!r}")


def _tags(given: Mapping[str, str] | None) -> dict[str, str]:
    tags = dict(given or {})
    for name, value in cast("dict[object, object]", tags).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"tags are texts by their names; {name!r}: {value!r} is not")
    return tags


class InMemorySessionStore(SessionStore):
    """Keep sessions in memory, for tests."""

    def __init__(self, *, tenant: str | None = None, clock: Clock | None = None) -> None:
        super().__init__(MemoryStore(clock=clock), tenant=tenant, clock=clock)


class SessionStoreOptions(TypedDict, total=False):
    """Options of a session store on disk.

    Attributes:
        clock: The clock of the store. Default: the machine's.
        lease_seconds: A process on another machine counts as dead after this long without a sign of life. Default: 30.
        durability: With "commit", the default, appended messages survive a power cut; with "os" a killed process.
    """

    clock: Clock | None
    lease_seconds: float
    durability: Durability


class FileSessionStore(SessionStore):
    """Keep sessions in a directory of readable files, for one machine."""

    def __init__(
        self, directory: str | os.PathLike[str], *, tenant: str | None = None, **options: Unpack[SessionStoreOptions]
    ) -> None:
        store = FileStore(directory, **options)
        super().__init__(store, tenant=tenant, clock=options.get("clock"))
        self.directory: Path = store.directory


class SqliteSessionStore(SessionStore):
    """Keep sessions in one SQLite file, for any number of processes on one machine."""

    def __init__(
        self, path: str | os.PathLike[str], *, tenant: str | None = None, **options: Unpack[SessionStoreOptions]
    ) -> None:
        store = SqliteStore(path, **options)
        super().__init__(store, tenant=tenant, clock=options.get("clock"))
        self.path: Path = store.path


class PostgresSessionStore(SessionStore):
    """Keep sessions in a PostgreSQL database, for several machines. Needs the extra `perdure[postgres]`.

    All tables are in one `schema`, created on first use. `pool_size` is the largest number of connections of a process.
    With durability "os" the server confirms appends before it has synced them.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "perdure",
        tenant: str | None = None,
        pool_size: int = 4,
        **options: Unpack[SessionStoreOptions],
    ) -> None:
        store = PostgresStore(dsn, schema=schema, pool_size=pool_size, **options)
        super().__init__(store, tenant=tenant, clock=options.get("clock"))
