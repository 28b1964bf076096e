"""A run in a directory whose parts are collected, advanced step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.records import LatestOnly, Retention, digest
from perdure.storage import Disk, MemoryStore
from perdure.storage.file import FileBackend
from perdure.storage.group_commit import PendingCommit
from perdure.testing.stores import ManualClock, RunDriver, new_run, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from perdure.records import Blob

LEAF = text_blob("of A")
A, B = raw_blob(b"A" * 9000, LEAF), raw_blob(b"B" * 9000)
CONSTANT = raw_blob(b"constant" * 2000)


def opened(directory: Path, disk: Disk | None = None) -> FileBackend:
    """A store that keeps the newest checkpoint of each run."""
    lax = disk or Disk(durability="os")
    return FileBackend(directory, retention=Retention(checkpoints=LatestOnly()), clock=ManualClock(), disk=lax)


class Advancing:
    """One who commits to the run "r", and whose value goes to and fro while another one never changes."""

    def __init__(self, directory: Path) -> None:
        self.backend = opened(directory)
        self.lease = self.backend.acquire("r", create=new_run("r"), takeover=True, token=None)
        record = self.backend.run("r")
        # It makes commits; the store that it has is none of them.
        self.run = RunDriver(MemoryStore(), ManualClock(), "r", "flow")
        self.run.head, self.run.position = (record.head, record.position) if record else (None, -1)

    def commit(self, value: Blob, *new: Blob) -> None:
        """Let the value be this one. Only the new parts are sent, and so the store has to have the others."""
        commit = replace(self.run.next_commit({"value": value, "constant": CONSTANT}), blobs=new)
        pending = PendingCommit(self.lease, commit)
        self.backend.write([pending])
        assert pending.error is None, pending.error
        self.run.head, self.run.position = commit.manifest.checkpoint_id, commit.manifest.position

    def commit_to_and_fro(self) -> None:
        """The value that it was before the last one, sent anew as if it were not there."""
        if self.run.position % 2:
            self.commit(A, A, LEAF)
        else:
            self.commit(B, B)

    def commit_waste(self, number: int) -> None:
        """So many parts that nothing needs when the next value has come."""
        waste = [raw_blob(f"waste {each} of {self.run.position}".encode() * 500) for each in range(number)]
        self.commit(raw_blob(b"all of it", *waste), raw_blob(b"all of it", *waste), *waste)

    def require_whole(self) -> None:
        """What the head needs is there, each part with its bytes."""
        require_whole(self.backend, self.run.head)


def require_whole(backend: FileBackend, head: str | None) -> None:
    """What the checkpoint needs is there, each part with its bytes."""
    assert head is not None
    roots: Collection[str] = backend.manifest(head).roots
    found = backend.blobs(roots)
    wanted = {*roots, LEAF.hash} if A.hash in roots else set(roots)
    assert found.keys() >= wanted, f"{head} lacks a part"
    assert all(digest(data) == blob_hash for blob_hash, data in found.items())
