"""The session store: threads on a store, by session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

from perdure.agents import Message
from perdure.clock import SystemClock
from perdure.records import LatestOnly, Retention
from perdure.threads.lease import Holding
from perdure.threads.log import Forking, Reading, Writing
from perdure.threads.thread import ThreadName, appended, tenant_name

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.storage import Durability, HostStore
    from perdure.threads.thread import Thread, ThreadEvent


class SessionStore:
    """Conversations: the threads of sessions, each a list of numbered messages that only grows.

    It may share its place with a storage of workflows: neither sees anything of the other. With a `tenant` it has the
    sessions of that tenant alone.
    """

    def __init__(self, store: HostStore, *, tenant: str | None = None, clock: Clock | None = None) -> None:
        self._base = store
        self._clock = clock or SystemClock()
        self._store = store.tenant(tenant_name(tenant))
        self._reading = Reading(self._store)
        holding = Holding(self._store, self._clock)
        self._writing = Writing(self._store, self._reading, holding)
        self._forking = Forking(self._store, self._clock, self._reading, self._writing, holding)

    @property
    def place(self) -> str:
        """Where the sessions are, so that two objects on one place are known to be the same."""
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
        """Append messages to a thread, all of them or none; the number of the last. They are durable when this returns.

        Args:
            session_id: The session. It begins with its first thread.
            thread_id: The thread. It begins with its first message.
            messages: What was said. What becomes of the objects later changes nothing in the thread.
            expected: The number that the thread must be at, 0 for one that is new or empty. Without it the messages
                come behind whatever is there.
            key: Names the append, so that it is done once: if an event behind `since` has the key, nothing is written
                and the number of the last such event is returned.
            since: From where on a key is looked for. To look at less costs less.
            tags: Kept with each of the events, and with the thread.

        Raises:
            ThreadConflictError: the thread is not at `expected`; nothing was written.
            ThreadMessageError: a message could not be read back; nothing was written.
            ThreadNameError: what can't be the id of a session or thread.
        """
        name = ThreadName(session_id, thread_id)
        new = appended(name, _messages(messages), self._clock, key=key, tags=_tags(tags))
        return await self._writing.append(name, new, expected=expected, since=since)

    async def read(
        self, session_id: str, thread_id: str, *, after: int = 0, until: int | None = None
    ) -> list[ThreadEvent]:
        """The events behind one number and up to another, in order; none if there is no such thread.

        A fork's begin with those of the thread that it was forked from. Raises ThreadDamagedError.
        """
        place = await self._reading.look(ThreadName(session_id, thread_id))
        return [] if place is None else await self._reading.events(place, after=max(0, after), until=until)

    async def messages(self, session_id: str, thread_id: str, *, until: int | None = None) -> list[Message]:
        """What was said in a thread, up to a number. Raises ThreadDamagedError."""
        return [event.message for event in await self.read(session_id, thread_id, until=until)]

    async def thread(self, session_id: str, thread_id: str) -> Thread | None:
        """Where a thread stands; None if there is none."""
        place = await self._reading.look(ThreadName(session_id, thread_id))
        return None if place is None else place.thread()

    async def threads(self, session_id: str) -> list[Thread]:
        """The threads of a session, in the order in which they began."""
        return [place.thread() for place in await self._reading.places(session_id)]

    async def sessions(self) -> list[str]:
        """The sessions that have threads, in the order in which they began. All threads are looked at."""
        return await self._reading.sessions()

    async def fork(
        self, session_id: str, thread_id: str, new_thread_id: str, *, from_message: str | int | None = None
    ) -> Thread:
        """Begin a thread with what another has up to a message, which is not copied; its numbers go on from there.

        `from_message` is a message id or a sequence number, None for the last message and 0 for none of them. The same
        fork of the same point again is the one that is there.

        Raises:
            ThreadNotFoundError: no such thread, or it has no such message.
            ThreadExistsError: a thread of the new name is there that is not this fork.
            TypeError: `from_message` is neither of these.
        """
        parent = ThreadName(session_id, thread_id)
        return await self._forking.fork(parent, parent.sibling(new_thread_id), from_message=from_message)

    async def delete(self, session_id: str, thread_id: str) -> bool:
        """Forget a thread; False if there is none. Raises ThreadInUseError while forks rest on it.

        Of large contents the bytes go with the next `collect`, by itself or called.
        """
        return await self._forking.delete(ThreadName(session_id, thread_id))

    async def collect(self) -> int:
        """Remove what no thread refers to any more; the number of parts removed."""
        return await self._store.collect()

    def tenant(self, name: str) -> SessionStore:
        """The sessions of one tenant, on the same place, in which those of others do not exist."""
        return SessionStore(self._base, tenant=name, clock=self._clock)

    async def close(self) -> None:
        """Release files and threads. A closed store opens again when it is used."""
        await self._base.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _messages(given: object) -> list[Message]:
    """Messages, and nothing else. Raises TypeError."""
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


_RETENTION = Retention(checkpoints=LatestOnly())
"""A checkpoint of a thread is only where it stands; what was said are its events, and all of them stay."""


class InMemorySessionStore(SessionStore):
    """For tests, and for conversations that need not outlive the process."""

    def __init__(self, *, tenant: str | None = None, clock: Clock | None = None) -> None:
        from perdure.storage import MemoryStore  # noqa: PLC0415

        clock = clock or SystemClock()
        super().__init__(MemoryStore(retention=_RETENTION, clock=clock), tenant=tenant, clock=clock)


class FileSessionStore(SessionStore):
    """A directory of readable files, for one machine.

    What is appended outlasts a power cut with durability "commit", and with "os" a killed process only.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        tenant: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage import FileStore  # noqa: PLC0415

        clock = clock or SystemClock()
        store = FileStore(
            directory, retention=_RETENTION, clock=clock, lease_seconds=lease_seconds, durability=durability
        )
        super().__init__(store, tenant=tenant, clock=clock)
        self.directory: Path = store.directory


class SqliteSessionStore(SessionStore):
    """One SQLite file, for one machine and any number of its processes.

    What is appended outlasts a power cut with durability "commit", and with "os" a killed process only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tenant: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage import SqliteStore  # noqa: PLC0415

        clock = clock or SystemClock()
        store = SqliteStore(path, retention=_RETENTION, clock=clock, lease_seconds=lease_seconds, durability=durability)
        super().__init__(store, tenant=tenant, clock=clock)
        self.path: Path = store.path


class PostgresSessionStore(SessionStore):
    """A PostgreSQL database, for several machines. It needs the extra `perdure[postgres]`.

    All that is perdure's is in one `schema`, which is made when it is first needed. `pool_size` is how many connections
    a process opens at most. With durability "os" the server tells of appends before it has synced them.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "perdure",
        tenant: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        pool_size: int = 4,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage import PostgresStore  # noqa: PLC0415

        clock = clock or SystemClock()
        store = PostgresStore(
            dsn,
            schema=schema,
            retention=_RETENTION,
            clock=clock,
            lease_seconds=lease_seconds,
            pool_size=pool_size,
            durability=durability,
        )
        super().__init__(store, tenant=tenant, clock=clock)
