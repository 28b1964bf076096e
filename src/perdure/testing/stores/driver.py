"""A clock to set and a run to advance: what tests of stores work with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from perdure.records import Command, Commit, Halt, JournalRecord, Manifest, Mark, NewEvents, NewRun, Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from perdure.clock import Clock
    from perdure.records import Claim, HaltKind, HeadStatus, RunRecord
    from perdure.storage import Store


NOWHERE = Mark(head="nowhere", events=-1, commands=-1)
"""The mark of no run at all."""


class Further(TypedDict, total=False):
    """What a commit changes besides its checkpoint."""

    settled: bool
    status: HeadStatus
    wake_at: str | None
    consumed: tuple[str, ...]
    taken: tuple[str, ...]
    events: NewEvents | None


class RunDriver:
    """Advances one run in a store, as an engine would, and knows where it should be."""

    def __init__(self, store: Store, clock: Clock, run_id: str, workflow_name: str) -> None:
        self.store = store
        self.clock = clock
        self.run_id = run_id
        self.workflow_name = workflow_name
        self.claim: Claim | None = None
        self.head: str | None = None
        self.position = -1
        self.waiting = 0
        """What the last commit has said: the number of the newest command that waits."""

    @classmethod
    async def start(
        cls, store: Store, clock: Clock, run_id: str, *, workflow_name: str = "flow", parent: str | None = None
    ) -> RunDriver:
        """Claim a new run, a fork if there is a `parent`."""
        driver = cls(store, clock, run_id, workflow_name)
        driver.head = parent
        driver.claim = await store.claim(run_id, create=new_run(run_id, workflow_name, parent=parent))
        return driver

    def next_commit(
        self, values: Mapping[str, Part] | None = None, *, checkpoint_id: str | None = None, **further: Unpack[Further]
    ) -> Commit:
        """The commit that would follow; `values` by path, each with its part."""
        contents = values or {}
        manifest = Manifest(
            checkpoint_id=checkpoint_id or f"{self.run_id}@{self.position + 1}",
            run_id=self.run_id,
            workflow_name=self.workflow_name,
            position=self.position + 1,
            previous_id=self.head,
            timestamp=self.clock.now().isoformat(),
            iteration_count=self.position + 1,
            header=b'{"note":"f\xc3\xbcr dich","numbers":[1,2.5,null]}',
            toc={path: part.hash for path, part in contents.items()},
        )
        return replace(Commit(manifest, tuple(contents.values()), self.head, settled=False), **further)

    async def write(self, commit: Commit, *further: Part) -> str:
        """Commit it, with further parts that its own refer to."""
        assert self.claim is not None
        self.waiting = await self.store.commit(self.claim, replace(commit, parts=(*commit.parts, *further)))
        self.head = commit.manifest.checkpoint_id
        self.position = commit.manifest.position
        return self.head

    async def commit(
        self,
        values: Mapping[str, Part] | None = None,
        *parts: Part,
        checkpoint_id: str | None = None,
        **further: Unpack[Further],
    ) -> str:
        """Write the next commit; its id."""
        return await self.write(self.next_commit(values, checkpoint_id=checkpoint_id, **further), *parts)

    async def rewind(self, to: str, *, nonce: str = "another") -> None:
        """Move the head back."""
        assert self.claim is not None
        assert self.head is not None
        await self.store.rewind(self.claim, expected_head=self.head, to=to, nonce=nonce)
        self.head = to

    async def note(self, *records: JournalRecord, durable: bool = True) -> None:
        """Record what the superstep in progress has finished."""
        assert self.claim is not None
        await self.store.record(self.claim, head=self.head, records=records, durable=durable)

    async def noted(self) -> Sequence[str]:
        """What the journal holds: of each record its key and its data."""
        return [f"{record.key}={record.data.decode()}" for record in await self.store.journal(self.run_id)]

    async def post(self, *commands: Command) -> Sequence[int]:
        """Put commands into the inbox; their numbers."""
        return [(await self.store.post(self.run_id, command)).number for command in commands]

    async def inbox(self) -> Sequence[str]:
        """What waits: of each command its id and its data."""
        return [f"{command.id}={command.data.decode()}" for command in await self.store.inbox(self.run_id)]

    async def events(self, *, after: int = 0, limit: int = 1000) -> Sequence[str]:
        """What was told: of each event its number and its text."""
        return [
            f"{number}={text}"
            for batch in await self.store.events(self.run_id, after=after, limit=limit)
            for number, text in enumerate(batch.data.decode().split("\n"), start=batch.first)
        ]

    async def mark(self) -> Mark:
        """How far the run is."""
        return await self.store.watch(self.run_id, seen=NOWHERE)

    def at(self, head: str, events: int = 0, commands: int = 0) -> Mark:
        """How far the run is while this driver holds it, if it is there."""
        assert self.claim is not None
        return Mark(head, events, commands, self.claim.owner.id)

    async def reclaim(self, *, token: int | None = None) -> Claim:
        """Claim the run anew, as a later life would that finds it where this one left it."""
        self.claim = await self.store.claim(self.run_id, token=token)
        return self.claim

    async def release(self, *, halt: Halt | None = None) -> None:
        """Give the run free."""
        assert self.claim is not None
        await self.store.release(self.claim, halt=halt)

    async def record(self) -> RunRecord:
        """The run as the store knows it."""
        record = await self.store.run(self.run_id)
        assert record is not None
        return record


def new_run(run_id: str, workflow_name: str = "flow", *, parent: str | None = None) -> NewRun:
    """What a run begins as."""
    return NewRun(
        run_id=run_id,
        workflow_name=workflow_name,
        created_at="2024-01-01T00:00:00+00:00",
        nonce=f"nonce of {run_id}",
        input_digest="digest",
        parent_checkpoint_id=parent,
    )


def halted(kind: HaltKind = "failed", reason: str = "of this and that") -> Halt:
    """Why nobody is to go on with a run."""
    return Halt(kind, "2024-02-03T04:05:06+00:00", reason, b"\xff of the engine\n\0")


def text_part(text: str, *refs: Part) -> Part:
    """A small part: a JSON string."""
    return Part.of(f'"{text}"'.encode(), tuple(part.hash for part in refs))


def raw_part(data: bytes, *refs: Part) -> Part:
    """A part of any bytes."""
    return Part.of(data, tuple(part.hash for part in refs), kind="raw")


def finished(key: str, data: str = "", *parts: Part) -> JournalRecord:
    """A record that comes with the parts that it refers to."""
    return JournalRecord(key, data.encode(), tuple(part.hash for part in parts), parts)


def command(command_id: str, data: str = "", *parts: Part, expects: tuple[str, str] | None = None) -> Command:
    """A command that comes with the parts that it refers to."""
    return Command(
        command_id, "message", data.encode(), tuple(part.hash for part in parts), parts=parts, expects=expects
    )


def events(*texts: str, parts: tuple[Part, ...] = ()) -> NewEvents:
    """Events of these texts, which come with the parts that they refer to."""
    return NewEvents(len(texts), "\n".join(texts).encode(), tuple(part.hash for part in parts), parts)
