"""Write and read logs: elements are sealed in chunks, and chunks form a tree of width eight.

A log of any length has a few nodes at its top. Appending changes only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.codec.encoded import Encoded
from perdure.codec.errors import Damage, Fault, explained, index_step
from perdure.codec.reader import INDEX_HEAD, Node, Origin, Reader, Source, Tag, find_references, parsed, require
from perdure.codec.writer import Write, Writer, to_bytes
from perdure.log import Log, Seals
from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.codec.encoded import Branch

_CHUNK_LENGTH_MIN = 1024
_WIDTH = 8


class Bough:
    """A node of a log: a chunk of elements, or eight nodes of the height below."""

    __slots__ = ("_children", "_origin", "_part", "_shared", "_size", "_within", "count", "hash", "height")

    def __init__(
        self,
        hash_: str,
        *,
        count: int,
        height: int,
        origin: Origin,
        part: Part | None = None,
        size: int | None = None,
    ) -> None:
        self.hash = hash_
        self.count = count
        self.height = height
        self._origin = origin
        self._part = part
        self._children: tuple[Bough, ...] | None = None
        self._within: tuple[Mapping[str, Part], Mapping[str, Branch]] | None = None
        self._shared: Sequence[Any] | None = None
        self._size = size

    @classmethod
    def chunk(cls, part: Part, elements: Sequence[Any], within: Encoded, origin: Origin, *, is_shared: bool) -> Bough:
        """Return a chunk that was made here."""
        self = cls(part.hash, count=len(elements), height=0, origin=origin, part=part)
        self._children = ()
        self._within = within.made, within.branches
        self._shared = elements if is_shared else None
        return self

    @classmethod
    def above(cls, children: tuple[Bough, ...]) -> Bough:
        """Return the parent of these nodes."""
        part = Part.of(
            INDEX_HEAD + to_bytes(f",{_listed(children)}}}"), tuple(sorted({child.hash for child in children}))
        )
        first, count = children[0], sum([child.count for child in children])
        self = cls(part.hash, count=count, height=first.height + 1, origin=first._origin, part=part)
        self._children = children
        return self

    @property
    def size(self) -> int:
        """The size in bytes of the blob and of everything it refers to. A stored parent states it."""
        if self._size is None:
            parts, branches = self.within()
            inside = sum([len(part.data) for part in parts.values()]) + sum([each.size for each in branches.values()])
            self._size = len(self.part().data) + inside
        return self._size

    def part(self) -> Part:
        """Return the blob. Raises CheckpointDamagedError if it was read and is damaged."""
        if self._part is None:
            with _Explaining(self._origin):
                data = self._origin.source.bytes(self.hash)
                self._part = Part(self.hash, data, find_references(data))
        return self._part

    def within(self) -> tuple[Mapping[str, Part], Mapping[str, Branch]]:
        """Return the blobs and nodes that the blob refers to."""
        if self._within is None:
            children = {child.hash: child for child in self.children()}
            with _Explaining(self._origin):
                self._within = ({} if children else _stored(self.part().refs, self._origin.source)), children
        return self._within

    def children(self) -> tuple[Bough, ...]:
        """Return the nodes below, in order. A chunk has none."""
        if self._children is None:
            with _Explaining(self._origin):
                self._children = self._read_children() if self.height else ()
        return self._children

    def _read_children(self) -> tuple[Bough, ...]:
        tree = require(parsed(self.part().data), dict, "index")
        heights = [self.height - 1] * len(require(tree.get("chunks"), list, "chunks"))
        children = _boughs(tree, heights, self._origin)
        if sum([child.count for child in children]) != self.count:
            raise Damage(f"part {self.hash} of a log has not as many elements as it should")
        return children

    def shared(self) -> Sequence[Any] | None:
        """Return the elements of a chunk if none of them can change."""
        return self._shared

    def fresh(self) -> Sequence[Any]:
        """Decode the elements of a chunk for one log."""
        origin, part = self._origin, self.part()
        assert origin.codec is not None, "a log is read by a codec"
        source = origin.source
        if self._within is not None:
            parts, branches = self._within
            source = Source(encoded=Encoded(part.data, parts, branches=branches))
        elements = origin.codec.read(part.data, source, path=origin.path, checkpoint_id=origin.checkpoint_id)
        with _Explaining(origin):
            if len(require(elements, list, "chunk")) != self.count:
                raise Damage(f"part {self.hash} of a log has not as many elements as it should")
        return elements


class _Explaining:
    """Names the value in errors that appear long after it was given out."""

    __slots__ = ("_origin",)

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Fault):
            raise explained(error, path=self._origin.path, checkpoint_id=self._origin.checkpoint_id) from error


def _write_log(writer: Writer, log: Log[Any]) -> str:
    writer.immutable = False
    if writer.sorts_mappings:
        # Sealed chunks have the keys of mappings in their original order, so they can't be reused here.
        return _unsealed_text(writer, log)
    before = log.__seals__()
    is_covered = not before.sealed or writer.codec.covers(before.by)
    boughs, tail = (list(before.sealed), before.tail) if is_covered else ([], list(log))
    writer.enter(log)
    growth = _Growth(writer, boughs, tail)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  ours alone seals
    writer.leave(log)
    writer.immutable = False
    if growth.sealed:
        after, own = Seals(tuple(boughs), writer.codec.token, tail[growth.sealed :]), growth.own
        writer.seals.append(lambda: log.__seal__(before, after, own))
    return growth.text()


class _Growth:
    """Seals appended elements as soon as they fill chunks. The rest stays in the tail."""

    def __init__(self, writer: Writer, boughs: list[Bough], tail: list[Any]) -> None:
        self._writer = writer
        self._boughs = boughs
        self._origin = Origin(writer.codec, Source(), "a log", None)
        self.own: dict[Any, Sequence[Any]] = {}
        self.sealed = 0
        """The number of elements of the tail that are sealed."""
        self._texts: list[str] = []
        count = sum([bough.count for bough in boughs])
        length = 0
        self._begin()
        for index, element in enumerate(tail):
            text = writer.child(element, index_step, count + index)
            self._texts.append(text)
            length += len(text) + 1
            if length >= _CHUNK_LENGTH_MIN:
                self._seal(tail[self.sealed : index + 1])
                self._begin()
                length = 0

    def _begin(self) -> None:
        writer = self._writer
        writer.immutable = True
        self._refs, self._parts = len(writer.refs), len(writer.parts)

    def _seal(self, elements: list[Any]) -> None:
        writer = self._writer
        refs = writer.refs[self._refs :]
        del writer.refs[self._refs :]
        part = Part.of(to_bytes(f"[{','.join(self._texts)}]"), tuple(sorted(set(refs))))
        within = _taken(writer, part, self._parts)
        bough = Bough.chunk(part, elements, within, self._origin, is_shared=writer.immutable)
        if not writer.immutable:
            self.own[bough] = elements
        _grow(self._boughs, bough)
        self.sealed += len(elements)
        self._texts.clear()

    def text(self) -> str:
        """Return the text of the log."""
        tail = f'"tail":[{",".join(self._texts)}]}}'
        boughs = self._boughs
        if not boughs:
            return '{"~":"log",' + tail
        for bough in boughs:
            self._writer.refs.append(bough.hash)
            self._writer.branches[bough.hash] = bough
        heights = _numbers(bough.height for bough in boughs)
        return f'{{"~":"log",{_listed(boughs)},"heights":[{heights}],{tail}'


def _grow(boughs: list[Bough], bough: Bough) -> None:
    boughs.append(bough)
    while len(boughs) >= _WIDTH and boughs[-_WIDTH].height == boughs[-1].height:
        children = tuple(boughs[-_WIDTH:])
        del boughs[-_WIDTH:]
        boughs.append(Bough.above(children))


def _taken(writer: Writer, part: Part, mark: int) -> Encoded:
    """Return what a chunk needs, and remove from the writer the blobs that only this chunk needs."""
    made: dict[str, Part] = {}
    branches: dict[str, Branch] = {}
    waiting = list(part.refs)
    while waiting:
        address = waiting.pop()
        if address in writer.branches:
            branches[address] = writer.branches[address]
        elif address not in made:
            made[address] = writer.parts[address]
            waiting.extend(made[address].refs)
    while len(writer.parts) > mark:
        writer.parts.popitem()
    return Encoded(part.data, made, part.refs, branches=branches)


def _unsealed_text(writer: Writer, log: Log[Any]) -> str:
    texts: list[str] = []
    writer.enter(log)
    for element in log:
        texts.append(writer.child(element, index_step, len(texts)))
    writer.leave(log)
    return f'{{"~":"log","tail":[{",".join(texts)}]}}'


def _read_log(reader: Reader, node: Node) -> Log[Any]:
    tail = require(node.get("tail"), list, "tail")
    boughs = _boughs(node, require(node.get("heights", []), list, "heights"), reader.origin)
    codec = reader.origin.codec
    return Log[Any].__sealed__(Seals(boughs, None if codec is None else codec.token, tail))


def _boughs(tree: Node, heights: Sequence[Any], origin: Origin) -> tuple[Bough, ...]:
    """Read the list of nodes of a log or of a node."""
    hashes = require(tree.get("chunks", []), list, "chunks")
    counts = require(tree.get("counts", []), list, "counts")
    sizes = require(tree.get("sizes", [None] * len(hashes)), list, "sizes")
    if not len(hashes) == len(counts) == len(heights) == len(sizes):
        raise Damage("a log does not say how many elements its chunks have")
    return tuple(_bough(*each, origin) for each in zip(hashes, counts, heights, sizes, strict=True))


def _bough(address: Any, count: Any, height: Any, size: Any, origin: Origin) -> Bough:
    known = origin.source.branch(require(address, str, "chunk"))
    if isinstance(known, Bough) and known.count == count:
        return known
    if require(count, int, "counts") < 1 or require(height, int, "heights") < 0:
        raise Damage("a chunk of a log has no elements")
    if size is not None and require(size, int, "sizes") < 1:
        raise Damage("a chunk of a log has no bytes")
    bough = Bough(address, count=count, height=height, origin=origin, size=size)
    origin.source.keep(bough)
    return bough


def _stored(refs: Iterable[str], source: Source) -> dict[str, Part]:
    """Return the blobs that a stored chunk refers to, directly or not."""
    found: dict[str, Part] = {}
    waiting = list(refs)
    while waiting:
        address = waiting.pop()
        if address not in found:
            data = source.bytes(address)
            found[address] = Part(address, data, find_references(data))
            waiting.extend(found[address].refs)
    return found


def _listed(boughs: Sequence[Bough]) -> str:
    """Format a list of nodes, with what a reader must know before loading them."""
    hashes = ",".join([f'"{bough.hash}"' for bough in boughs])
    counts, sizes = _numbers(bough.count for bough in boughs), _numbers(bough.size for bough in boughs)
    return f'"chunks":[{hashes}],"counts":[{counts}],"sizes":[{sizes}]'


def _numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


LOG_KINDS: Mapping[type, Write] = {Log: _write_log}

LOG_TAGS: Mapping[str, Tag] = {
    "log": Tag(_read_log, frozenset({"~", "chunks", "counts", "heights", "items", "sizes", "tail"}), keeps_chunks=True),
}
