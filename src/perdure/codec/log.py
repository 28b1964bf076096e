"""Write and read logs: elements are sealed in chunks, and chunks form a tree of width eight.

A log of any length has a few nodes at its top. Appending changes only those.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from perdure.codec.encoded import Encoded, reached, references, require, to_bytes
from perdure.codec.errors import DamagedPartError, Fault, explained, index_step
from perdure.codec.reader import INDEX_HEAD, Node, Origin, Reader, Source, Tag, parsed
from perdure.data_classes import new_dict, new_list
from perdure.log import Log, Seals
from perdure.records import Blob

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from perdure.codec.writer import ValueWriter, Write

_CHUNK_LENGTH_MIN = 1024
_WIDTH = 8


@dataclass(slots=True, eq=False)
class LogNode:
    """A node of a log: a chunk of elements, or eight nodes of the height below."""

    hash: str
    count: int
    height: int
    _origin: Origin
    _blob: Blob | None = None
    _size: int | None = None
    _children: tuple[LogNode, ...] | None = None
    needs: tuple[Mapping[str, Blob], Mapping[str, LogNode]] | None = None
    shared: Sequence[Any] | None = None
    """The elements of a chunk that was made here, if none of them can change."""

    @classmethod
    def above(cls, children: tuple[LogNode, ...]) -> LogNode:
        """Return the parent of these nodes."""
        blob = Blob.of(
            INDEX_HEAD + to_bytes(f",{_node_list(children)}}}"), tuple(sorted({child.hash for child in children}))
        )
        first, count = children[0], sum([child.count for child in children])
        return cls(blob.hash, count, first.height + 1, first._origin, blob, _children=children)

    @property
    def size(self) -> int:
        """The size in bytes of the blob and of everything it refers to. A stored parent states it."""
        if self._size is None:
            blobs, branches = self.within()
            self._size = Encoded(self.blob().data, blobs, branches=branches).size
        return self._size

    def blob(self) -> Blob:
        """Return the blob. Raises CheckpointDamagedError if it was read and is damaged."""
        if self._blob is None:
            with _named_errors(self._origin):
                self._blob = self._stored_blob(self.hash)
        return self._blob

    def _stored_blob(self, address: str) -> Blob:
        data = self._origin.source.bytes(address)
        return Blob(address, data, references(data))

    def within(self) -> tuple[Mapping[str, Blob], Mapping[str, LogNode]]:
        """Return the blobs and nodes that the blob refers to."""
        if self.needs is None:
            children = {child.hash: child for child in self.children()}
            with _named_errors(self._origin):
                self.needs = ({} if children else reached(self.blob().refs, self._stored_blob)), children
        return self.needs

    def children(self) -> tuple[LogNode, ...]:
        """Return the nodes below, in order. A chunk has none."""
        if self._children is None:
            with _named_errors(self._origin):
                self._children = self._read_children() if self.height else ()
        return self._children

    def _read_children(self) -> tuple[LogNode, ...]:
        tree = require(parsed(self.blob().data), dict, "index")
        heights = [self.height - 1] * len(require(tree.get("chunks"), list, "chunks"))
        children = _read_nodes(tree, heights, self._origin)
        self._require_count(sum([child.count for child in children]))
        return children

    def fresh(self) -> Sequence[Any]:
        """Decode the elements of a chunk for one log."""
        origin, blob = self._origin, self.blob()
        source = origin.source
        if self.needs is not None:
            blobs, branches = self.needs
            source = Source(encoded=Encoded(blob.data, blobs, branches=branches))
        elements = origin.codec.read(blob.data, source, path=origin.path, checkpoint_id=origin.checkpoint_id)
        with _named_errors(origin):
            self._require_count(len(require(elements, list, "chunk")))
        return elements

    def _require_count(self, count: int) -> None:
        if count != self.count:
            raise DamagedPartError(f"part {self.hash} of a log has the wrong number of elements")


@contextmanager
def _named_errors(origin: Origin) -> Generator[None]:
    """Name the value in errors that appear long after it was given out."""
    try:
        yield
    except Fault as fault:
        raise explained(fault, path=origin.path, checkpoint_id=origin.checkpoint_id) from fault


def _write_log(writer: ValueWriter, log: Log[Any]) -> str:
    before = log.__seals__()
    # Sealed chunks have the keys of mappings in their original order.
    is_covered = not before.sealed or (not writer.is_canonical and writer.codec.covers(before.by))
    nodes, tail = (list(before.sealed), before.tail) if is_covered else ([], list(log))
    writer.enter(log)
    sealer = _Sealer(writer, cast("list[LogNode]", nodes))
    sealer.write(tail)
    writer.leave(log)
    writer.immutable = False
    if sealer.sealed:
        after, own = Seals(tuple(nodes), writer.codec.token, tail[sealer.sealed :]), sealer.own
        writer.seals.append(lambda: log.__seal__(before, after, own))
    return sealer.text()


@dataclass(slots=True)
class _Sealer:
    """Seals appended elements as soon as they fill chunks. The rest stays in the tail."""

    writer: ValueWriter
    nodes: list[LogNode]
    own: dict[Any, Sequence[Any]] = field(default_factory=new_dict)
    sealed: int = 0
    """The number of elements of the tail that are sealed."""
    texts: list[str] = field(default_factory=new_list)

    def write(self, tail: list[Any]) -> None:
        """Write the elements of the tail, and seal full chunks."""
        writer = self.writer
        origin = Origin(writer.codec, Source(), "a log", None)
        count = sum([node.count for node in self.nodes])
        refs, blobs, length, writer.immutable = len(writer.refs), len(writer.blobs), 0, True
        for index, element in enumerate(tail):
            text = writer.child(element, index_step, count + index)
            self.texts.append(text)
            length += len(text) + 1
            if length >= _CHUNK_LENGTH_MIN and not writer.is_canonical:
                self._seal(tail[self.sealed : index + 1], origin, refs, blobs)
                refs, blobs, length, writer.immutable = len(writer.refs), len(writer.blobs), 0, True

    def _seal(self, elements: list[Any], origin: Origin, first_ref: int, first_blob: int) -> None:
        writer = self.writer
        blob = Blob.of(to_bytes(f"[{','.join(self.texts)}]"), tuple(sorted(set(writer.refs[first_ref:]))))
        del writer.refs[first_ref:]
        needs = _take_needs(writer, blob, first_blob)
        node = LogNode(blob.hash, len(elements), 0, origin, blob, _children=(), needs=needs)
        if writer.immutable:
            node.shared = elements
        else:
            self.own[node] = elements
        self.nodes.append(node)
        while len(self.nodes) >= _WIDTH and self.nodes[-_WIDTH].height == self.nodes[-1].height:
            self.nodes[-_WIDTH:] = [LogNode.above(tuple(self.nodes[-_WIDTH:]))]
        self.sealed += len(elements)
        self.texts.clear()

    def text(self) -> str:
        """Return the text of the log."""
        tail = f'"tail":[{",".join(self.texts)}]}}'
        nodes = self.nodes
        if not nodes:
            return '{"~":"log",' + tail
        for node in nodes:
            self.writer.refs.append(node.hash)
            self.writer.branches[node.hash] = node
        heights = _numbers(node.height for node in nodes)
        return f'{{"~":"log",{_node_list(nodes)},"heights":[{heights}],{tail}'


def _take_needs(writer: ValueWriter, blob: Blob, mark: int) -> tuple[Mapping[str, Blob], Mapping[str, LogNode]]:
    """Return what a chunk needs, and remove from the writer the blobs that only this chunk needs."""
    branches = writer.branches
    made = reached(blob.refs, lambda address: None if address in branches else writer.blobs[address])
    inside = [address for each in (blob, *made.values()) for address in each.refs if address in branches]
    while len(writer.blobs) > mark:
        writer.blobs.popitem()
    return made, {address: branches[address] for address in inside}


def _read_log(reader: Reader, node: Node) -> Log[Any]:
    tail = require(node.get("tail"), list, "tail")
    nodes = _read_nodes(node, require(node.get("heights", []), list, "heights"), reader.origin)
    return Log[Any].__sealed__(Seals(nodes, reader.origin.codec.token, tail))


def _read_nodes(tree: Node, heights: Sequence[Any], origin: Origin) -> tuple[LogNode, ...]:
    """Read the list of nodes of a log or of a node."""
    hashes = require(tree.get("chunks", []), list, "chunks")
    counts = require(tree.get("counts", []), list, "counts")
    sizes = require(tree.get("sizes", [None] * len(hashes)), list, "sizes")
    if not len(hashes) == len(counts) == len(heights) == len(sizes):
        raise DamagedPartError("a log does not say how many elements its chunks have")
    return tuple(_read_node(*each, origin) for each in zip(hashes, counts, heights, sizes, strict=True))


def _read_node(address: Any, count: Any, height: Any, size: Any, origin: Origin) -> LogNode:
    known = origin.source.branch(require(address, str, "chunk"))
    if known is not None and known.count == count:
        return known
    if require(count, int, "counts") < 1 or require(height, int, "heights") < 0:
        raise DamagedPartError("a chunk of a log has no elements")
    if size is not None and require(size, int, "sizes") < 1:
        raise DamagedPartError("a chunk of a log has no bytes")
    node = LogNode(address, count, height, origin, _size=size)
    origin.source.branches[address] = node
    return node


def _node_list(nodes: Sequence[LogNode]) -> str:
    """Format a list of nodes, with what a reader must know before loading them."""
    hashes = ",".join([f'"{node.hash}"' for node in nodes])
    counts, sizes = _numbers(node.count for node in nodes), _numbers(node.size for node in nodes)
    return f'"chunks":[{hashes}],"counts":[{counts}],"sizes":[{sizes}]'


def _numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


LOG_KINDS: Mapping[type, Write] = {Log: _write_log}

LOG_TAGS: Mapping[str, Tag] = {
    "log": Tag(_read_log, frozenset({"~", "chunks", "counts", "heights", "items", "sizes", "tail"}), keeps_chunks=True)
}
