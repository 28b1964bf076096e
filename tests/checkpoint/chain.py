"""A run's checkpoints one after another, as a store keeps them that has nothing but what it must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint import Author, CheckpointWriter, Reader
from perdure.codec import Codec, CodedValues, Kept, Trust, references
from perdure.kernel import Trail
from perdure.records import NewRun

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.checkpoint import WrittenCheckpoint
    from perdure.kernel import Snapshot
    from perdure.records import Blob, Manifest

_MANY = 500
"""Parts that take long to be read; a test says when it wants that."""

CODEC = Codec(Trust.of())
VALUES = CodedValues(CODEC)
AUTHOR = Author(NewRun("r", "flow", "2024-01-01T00:00:00+00:00", "nonce"), "signature", 1)


def kept(value: object) -> Kept:
    return VALUES.fix(value, "a value")


def shown(value: Any) -> Any:
    """A snapshot as plain data, with the values that are kept in it."""
    match value:
        case Kept():
            return VALUES.give(value)
        case Trail() | tuple():
            return [shown(item) for item in cast("tuple[Any, ...]", value)]
        case Mapping():
            return {key: shown(item) for key, item in cast("Mapping[Any, Any]", value).items()}
        case _ if is_dataclass(value):
            return {field.name: shown(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


class Chain:
    """Commits snapshots. There is nothing but what the predecessor protects and the commit brings."""

    def __init__(self, graph: Mapping[str, Any] | None = None) -> None:
        self.graph = graph or {"signature": "x"}
        self.writer = CheckpointWriter(CODEC, self.graph, AUTHOR)
        self.head: Manifest | None = None
        self.blobs: dict[str, bytes] = {}
        """The parts of the head."""
        self.brought: tuple[Blob, ...] = ()
        """What the last commit wrote beside its manifest."""
        self.position = -1

    def attempt(self, snapshot: Snapshot) -> tuple[Manifest, tuple[Blob, ...]]:
        """Write a checkpoint that is not committed."""
        previous = self.head.checkpoint_id if self.head else None
        return self.writer.write(
            snapshot, position=self.position + 1, previous_id=previous, timestamp="2024-01-01", kind="superstep"
        )

    def commit(self, snapshot: Snapshot) -> Manifest:
        """Commit, and read it back if it is not too much."""
        manifest, self.brought = self.attempt(snapshot)
        known = {**self._protected(), **{blob.hash: blob.data for blob in self.brought}}
        assert all(set(blob.refs) == set(_references(blob.data)) for blob in self.brought)
        self.blobs = closure(manifest.roots, known)
        self.head, self.position = manifest, manifest.position
        self.writer.commit(manifest)
        assert len(self.blobs) > _MANY or self.shows(snapshot)
        return manifest

    def shows(self, snapshot: Snapshot) -> bool:
        """Whether this is what the head holds."""
        return shown(self.read()) == shown(snapshot)

    def _protected(self) -> dict[str, bytes]:
        """What stands in the head's table of contents or its base; what only its pieces refer to goes with it."""
        if self.head is None:
            return {}
        base = () if self.head.base is None else (self.head.base,)
        return closure([*self.head.toc.values(), *base], self.blobs)

    def require_head(self) -> Manifest:
        assert self.head is not None
        return self.head

    def read(self) -> Snapshot:
        return Reader(self.require_head(), self.blobs, CODEC).snapshot()

    def resume(self) -> Snapshot:
        """Go on in another life, that knows what the head says."""
        reader = Reader(self.require_head(), self.blobs, CODEC)
        snapshot = reader.snapshot()
        self.go_on(reader.written(snapshot))
        return snapshot

    def go_on(self, written: WrittenCheckpoint | None) -> None:
        """Go on with another writer."""
        self.writer = CheckpointWriter(CODEC, self.graph, AUTHOR, written)

    @property
    def written(self) -> int:
        """The bytes that the last commit wrote."""
        head = self.require_head()
        table = sum(len(path) + len(address) + 6 for path, address in head.table().items())
        return len(head.header) + len(head.pieces) + table + sum(len(blob.data) for blob in self.brought)


def closure(roots: Iterable[str], known: Mapping[str, bytes]) -> dict[str, bytes]:
    """These parts and all that they refer to. Everything has to be there."""
    found: dict[str, bytes] = {}
    waiting = list(roots)
    while waiting:
        address = waiting.pop()
        if address not in found:
            found[address] = known[address]
            waiting.extend(_references(known[address]))
    return found


@cache
def _references(data: bytes) -> tuple[str, ...]:
    return references(data)
