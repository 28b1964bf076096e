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
from perdure.records import Blob

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.codec.encoded import Branch

_CHUNK_LENGTH_MIN = 1024
_WIDTH = 8


class LogNode:
    """A node of a log: a chunk of elements, or eight nodes of the height below."""

    __slots__ = ("_blob", "_children", "_origin", "_shared", "_size", "_within", "count", "hash", "height")

    def __init__(
        self,
        hash_: str,
        *,
        count: int,
        height: int,
        origin: Origin,
        blob: Blob | None = None,
        size: int | None = None,
    ) -> None:
        self.hash = hash_
        self.count = count
        self.height = height
        self._origin = origin
        self._blob = blob
        self._children: tuple[LogNode, ...] | None = None
        self._within: tuple[Mapping[str, Blob], Mapping[str, Branch]] | None = None
        self._shared: Sequence[Any] | None = None
        self._size = size

    @classmethod
    def chunk(cls, blob: Blob, elements: Sequence[Any], within: Encoded, origin: Origin, *, is_shared: bool) -> LogNode:
        """Return a chunk that was made here."""
        self = cls(blob.hash, count=len(elements), height=0, origin=origin, blob=blob)
        self._children = ()
        self._within = within.made, within.branches
        self._shared = elements if is_shared else None
        return self

    @classmethod
    def above(cls, children: tuple[LogNode, ...]) -> LogNode:
        """Return the parent of these nodes."""
        blob = Blob.of(
            INDEX_HEAD + to_bytes(f",{_node_list(children)}}}"), tuple(sorted({child.hash for child in children}))
        )
        first, count = children[0], sum([child.count for child in children])
        self = cls(blob.hash, count=count, height=first.height + 1, origin=first._origin, blob=blob)
        self._children = children
        return self

    @property
    def size(self) -> int:
        """The size in bytes of the blob and of everything it refers to. A stored parent states it."""
        if self._size is None:
            blobs, branches = self.within()
            inside = sum([len(blob.data) for blob in blobs.values()]) + sum([each.size for each in branches.values()])
            self._size = len(self.blob().data) + inside
        return self._size

    def blob(self) -> Blob:
        """Return the blob. Raises CheckpointDamagedError if it was read and is damaged."""
        if self._blob is None:
            with _NamedErrors(self._origin):
                data = self._origin.source.bytes(self.hash)
                self._blob = Blob(self.hash, data, find_references(data))
        return self._blob

    def within(self) -> tuple[Mapping[str, Blob], Mapping[str, Branch]]:
        """Return the blobs and nodes that the blob refers to."""
        if self._within is None:
            children = {child.hash: child for child in self.children()}
            with _NamedErrors(self._origin):
                self._within = ({} if children else _stored(self.blob().refs, self._origin.source)), children
        return self._within

    def children(self) -> tuple[LogNode, ...]:
        """Return the nodes below, in order. A chunk has none."""
        if self._children is None:
            with _NamedErrors(self._origin):
                self._children = self._read_children() if self.height else ()
        return self._children

    def _read_children(self) -> tuple[LogNode, ...]:
        tree = require(parsed(self.blob().data), dict, "index")
        heights = [self.height - 1] * len(require(tree.get("chunks"), list, "chunks"))
        children = _read_nodes(tree, heights, self._origin)
        if sum([child.count for child in children]) != self.count:
            raise Damage(f"part {self.hash} of a log has the wrong number of elements")
        return children

    def shared(self) -> Sequence[Any] | None:
        """Return the elements of a chunk if none of them can change."""
        return self._shared

    def fresh(self) -> Sequence[Any]:
        """Decode the elements of a chunk for one log."""
        origin, blob = self._origin, self.blob()
        assert origin.codec is not None, "a log is read by a codec"
        source = origin.source
        if self._within is not None:
            blobs, branches = self._within
            source = Source(encoded=Encoded(blob.data, blobs, branches=branches))
        elements = origin.codec.read(blob.data, source, path=origin.path, checkpoint_id=origin.checkpoint_id)
        with _NamedErrors(origin):
            if len(require(elements, list, "chunk")) != self.count:
                raise Damage(f"part {self.hash} of a log has the wrong number of elements")
        return elements


class _NamedErrors:
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
    nodes, tail = (list(before.sealed), before.tail) if is_covered else ([], list(log))
    writer.enter(log)
    sealer = _Sealer(writer, nodes, tail)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  ours alone seals
    writer.leave(log)
    writer.immutable = False
    if sealer.sealed:
        after, own = Seals(tuple(nodes), writer.codec.token, tail[sealer.sealed :]), sealer.own
        writer.seals.append(lambda: log.__seal__(before, after, own))
    return sealer.text()


class _Sealer:
    """Seals appended elements as soon as they fill chunks. The rest stays in the tail."""

    def __init__(self, writer: Writer, nodes: list[LogNode], tail: list[Any]) -> None:
        self._writer = writer
        self._nodes = nodes
        self._origin = Origin(writer.codec, Source(), "a log", None)
        self.own: dict[Any, Sequence[Any]] = {}
        self.sealed = 0
        """The number of elements of the tail that are sealed."""
        self._texts: list[str] = []
        count = sum([node.count for node in nodes])
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
        self._refs, self._blobs = len(writer.refs), len(writer.blobs)

    def _seal(self, elements: list[Any]) -> None:
        writer = self._writer
        refs = writer.refs[self._refs :]
        del writer.refs[self._refs :]
        blob = Blob.of(to_bytes(f"[{','.join(self._texts)}]"), tuple(sorted(set(refs))))
        within = _take_needs(writer, blob, self._blobs)
        node = LogNode.chunk(blob, elements, within, self._origin, is_shared=writer.immutable)
        if not writer.immutable:
            self.own[node] = elements
        _grow(self._nodes, node)
        self.sealed += len(elements)
        self._texts.clear()

    def text(self) -> str:
        """Return the text of the log."""
        tail = f'"tail":[{",".join(self._texts)}]}}'
        nodes = self._nodes
        if not nodes:
            return '{"~":"log",' + tail
        for node in nodes:
            self._writer.refs.append(node.hash)
            self._writer.branches[node.hash] = node
        heights = _numbers(node.height for node in nodes)
        return f'{{"~":"log",{_node_list(nodes)},"heights":[{heights}],{tail}'


def _grow(nodes: list[LogNode], node: LogNode) -> None:
    nodes.append(node)
    while len(nodes) >= _WIDTH and nodes[-_WIDTH].height == nodes[-1].height:
        children = tuple(nodes[-_WIDTH:])
        del nodes[-_WIDTH:]
        nodes.append(LogNode.above(children))


def _take_needs(writer: Writer, blob: Blob, mark: int) -> Encoded:
    """Return what a chunk needs, and remove from the writer the blobs that only this chunk needs."""
    made: dict[str, Blob] = {}
    branches: dict[str, Branch] = {}
    waiting = list(blob.refs)
    while waiting:
        address = waiting.pop()
        if address in writer.branches:
            branches[address] = writer.branches[address]
        elif address not in made:
            made[address] = writer.blobs[address]
            waiting.extend(made[address].refs)
    while len(writer.blobs) > mark:
        writer.blobs.popitem()
    return Encoded(blob.data, made, blob.refs, branches=branches)


def _unsealed_text(writer: Writer, log: Log[Any]) -> str:
    texts: list[str] = []
    writer.enter(log)
    for element in log:
        texts.append(writer.child(element, index_step, len(texts)))
    writer.leave(log)
    return f'{{"~":"log","tail":[{",".join(texts)}]}}'


def _read_log(reader: Reader, node: Node) -> Log[Any]:
    tail = require(node.get("tail"), list, "tail")
    nodes = _read_nodes(node, require(node.get("heights", []), list, "heights"), reader.origin)
    codec = reader.origin.codec
    return Log[Any].__sealed__(Seals(nodes, None if codec is None else codec.token, tail))


def _read_nodes(tree: Node, heights: Sequence[Any], origin: Origin) -> tuple[LogNode, ...]:
    """Read the list of nodes of a log or of a node."""
    hashes = require(tree.get("chunks", []), list, "chunks")
    counts = require(tree.get("counts", []), list, "counts")
    sizes = require(tree.get("sizes", [None] * len(hashes)), list, "sizes")
    if not len(hashes) == len(counts) == len(heights) == len(sizes):
        raise Damage("a log does not say how many elements its chunks have")
    return tuple(_read_node(*each, origin) for each in zip(hashes, counts, heights, sizes, strict=True))


def _read_node(address: Any, count: Any, height: Any, size: Any, origin: Origin) -> LogNode:
    known = origin.source.branch(require(address, str, "chunk"))
    if isinstance(known, LogNode) and known.count == count:
        return known
    if require(count, int, "counts") < 1 or require(height, int, "heights") < 0:
        raise Damage("a chunk of a log has no elements")
    if size is not None and require(size, int, "sizes") < 1:
        raise Damage("a chunk of a log has no bytes")
    node = LogNode(address, count=count, height=height, origin=origin, size=size)
    origin.source.keep(node)
    return node


def _stored(refs: Iterable[str], source: Source) -> dict[str, Blob]:
    """Return the blobs that a stored chunk refers to, directly or not."""
    found: dict[str, Blob] = {}
    waiting = list(refs)
    while waiting:
        address = waiting.pop()
        if address not in found:
            data = source.bytes(address)
            found[address] = Blob(address, data, find_references(data))
            waiting.extend(found[address].refs)
    return found


def _node_list(nodes: Sequence[LogNode]) -> str:
    """Format a list of nodes, with what a reader must know before loading them."""
    hashes = ",".join([f'"{node.hash}"' for node in nodes])
    counts, sizes = _numbers(node.count for node in nodes), _numbers(node.size for node in nodes)
    return f'"chunks":[{hashes}],"counts":[{counts}],"sizes":[{sizes}]'


def _numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


LOG_KINDS: Mapping[type, Write] = {Log: _write_log}

LOG_TAGS: Mapping[str, Tag] = {
    "log": Tag(_read_log, frozenset({"~", "chunks", "counts", "heights", "items", "sizes", "tail"}), keeps_chunks=True),
}
