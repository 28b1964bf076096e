"""Read texts: parse them, fetch blobs, and dispatch on tags.

The tree is walked from the leaves up without recursion, so that every value that was written can be read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from perdure.codec.encoded import Encoded, reference, require, verified
from perdure.codec.errors import DamagedPartError, Fault, Untrusted, spelled
from perdure.codec.writer import Chunk, Leaf, Uncopyable, copied, type_of
from perdure.data_classes import new_dict, new_set, value_class
from perdure.records import Blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from perdure.codec.codec import Codec
    from perdure.codec.log import LogNode

Node: TypeAlias = "dict[str, Any]"
"""A JSON object with a tag. Its content is decoded before it is read itself."""

Read: TypeAlias = "Callable[[Reader, Node], Any]"


@value_class
class Tag:
    """The reader of objects with one tag, and the keys that they may have."""

    read: Read
    keys: frozenset[str]
    keeps_chunks: bool = False
    """True if the reader gets the hashes of chunks instead of their elements."""

    @classmethod
    def of(cls, read: Read, *keys: str) -> Tag:
        """Return a tag whose objects may have these keys."""
        return cls(read, frozenset({"~", *keys}))


# Chunks of longer lists are not remembered: most are decoded once, when a run resumes.
_REMEMBERED_MAX = 4096

INDEX_HEAD = b'{"~":"index"'
"""The start of the text of every index blob."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def parsed(text: bytes) -> Any:
    """Parse a JSON text. Raises DamagedPartError."""
    try:
        return _decoder.decode(text.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise DamagedPartError(f"not JSON: {error}") from error


@value_class
class Origin:
    """The origin of a value, for error messages and for parts that are read later."""

    codec: Codec
    source: Source
    path: str
    checkpoint_id: str | None


class Reader:
    """Reads one value with the trust of a program."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._codec = origin.codec
        self._source = origin.source
        self._unread: dict[int, _Gathered] = {}
        """By the id of a list: the ranges that were decoded before."""

    def text(self, text: bytes) -> Any:
        """Decode a JSON text."""
        tree = parsed(text)
        # A text without tags is plain data: inside a string, the quotes around `~` would be escaped.
        return self._value(tree) if b'"~"' in text else tree

    def raw(self, address: object) -> bytes:
        """Return the bytes of a raw blob."""
        name: str = require(address, str, "part")
        leaf = self._leaf(name, self._source.bytes(name), is_raw=True)
        return cast("bytes", leaf.value)

    def trusted(self, name: object) -> type:
        """Return the class of a stored name. Raises Untrusted."""
        cls = self._codec.trust.lookup(require(name, str, "type"))
        if cls is None:
            raise Untrusted(str(name))
        return cls

    def _value(self, tree: Any) -> Any:
        """Replace every tagged JSON object by its value."""
        root: list[Any] = [tree]
        holders: list[Any] = [root]
        places: list[Any] = []
        waiting: list[Iterator[tuple[Any, Any]]] = [enumerate(root)]
        try:
            while waiting:
                for place, inner in waiting[-1]:
                    if type(inner) is dict or type(inner) is list:
                        places.append(place)
                        whole = holders[-1][place] = self._whole(inner)
                        if type(whole) is not dict and type(whole) is not list:
                            places.pop()
                            continue
                        holders.append(whole)
                        waiting.append(self._inside(whole))
                        break
                else:
                    waiting.pop()
                    done = holders.pop()
                    if places:
                        holders[-1][places[-1]] = self._tagged(done) if _is_tagged(done) else done
                        places.pop()
                    if self._unread:
                        self._remember(done)
        except Fault as fault:
            fault.steps.append(spelled(holders[1:], places[1:]))
            raise
        return root[0]

    def _whole(self, tree: Any) -> Any:
        """Resolve references: return the content of a blob, or gather the elements of chunks."""
        while _is_tagged(tree, "part"):
            if len(tree) != 2:  # noqa: PLR2004  the tag and the hash
                raise DamagedPartError("a reference to a part has other members")
            tree = self._blob(require(tree.get("part"), str, "part"))
        if not _is_tagged(tree) or "chunks" not in tree:
            return tree
        tag = self._tag(tree["~"])
        if tag is not None and tag.keeps_chunks:
            return tree
        node: Node = dict(tree)
        chunks = require(node.pop("chunks"), list, "chunks")
        if node == {"~": "object"}:
            return _merged(parsed(self._source.bytes(address)) for address in self._addresses(chunks))
        if "items" in node:
            raise DamagedPartError("a sequence has both items and chunks")
        node["items"] = self._gathered(self._addresses(chunks))
        return node

    def _tag(self, name: object) -> Tag | None:
        return self._codec.tags.get(name) if isinstance(name, str) else None

    def _blob(self, address: str) -> Any:
        """Return the tree of a blob, or the value of a leaf."""
        data = self._source.bytes(address)
        leaf = self._codec.memo.leaf_at(address, is_raw=False)
        if leaf is not None or data.startswith(b'"'):
            return self._leaf(address, data, is_raw=False).value
        return parsed(data)

    def _leaf(self, address: str, data: bytes, *, is_raw: bool) -> Leaf:
        """Return a long string or bytes, decoded once."""
        memo = self._codec.memo
        leaf = memo.leaf_at(address, is_raw=is_raw)
        if leaf is None and is_raw:
            leaf = memo.add_leaf(Leaf(data, f'{{"~":"bytes","part":"{address}"}}', Blob(address, data, (), "raw")))
        elif leaf is None:
            leaf = memo.add_leaf(Leaf(parsed(data), reference(address), Blob(address, data)))
        self._source.leaves[address] = leaf
        return leaf

    def _addresses(self, chunks: list[Any]) -> Iterator[str]:
        """Yield the hashes of all chunks, following index blobs."""
        waiting = [iter(chunks)]
        while waiting:
            for address in waiting[-1]:
                # The first bytes tell an index, so known chunks need not be parsed.
                data = self._source.bytes(require(address, str, "part"))
                if data.startswith(INDEX_HEAD):
                    waiting.append(iter(require(parsed(data).get("chunks"), list, "chunks")))
                    break
                yield address
            else:
                waiting.pop()

    def _gathered(self, addresses: Iterable[str]) -> list[Any]:
        """Gather the elements of chunks: decoded ones as they are, the others as JSON trees."""
        elements: list[Any] = []
        unknown: _Gathered = []
        chunks = list(addresses)
        for address in chunks:
            known, first = self._known(address), len(elements)
            elements.extend(require(parsed(self._source.bytes(address)), list, "chunk") if known is None else known)
            if known is None:
                unknown.append((address, first, len(elements)))
        if len(chunks) <= _REMEMBERED_MAX or len(unknown) < len(chunks):
            self._unread[id(elements)] = unknown
        return elements

    def _known(self, address: str) -> Sequence[Any] | None:
        """Return the elements of a chunk that was decoded or written before, copied if they could change."""
        chunk = self._source.chunks.get(address)
        # Blobs made here are complete. Of a chunk that was read, everything it refers to is verified once.
        if chunk is None and self._source.encoded is not None and address in self._source.encoded.made:
            chunk = self._codec.memo.chunk(address)
        if chunk is None:
            return None
        try:
            return chunk.elements if chunk.is_shared else copied(chunk.elements)
        except RecursionError:
            return None

    def _inside(self, tree: Any) -> Iterator[tuple[Any, Any]]:
        if type_of(tree) is dict:
            return iter(tree.items())
        unknown = self._unread.get(id(tree))
        if unknown is None:
            return enumerate(cast("list[Any]", tree))
        return chain.from_iterable(
            [zip(range(first, last), tree[first:last], strict=True) for _, first, last in unknown]
        )

    def _remember(self, done: Any) -> None:
        """Remember the decoded elements of chunks, so that the next reader gets copies."""
        for address, first, last in self._unread.pop(id(done), ()):
            try:
                elements = copied(done[first:last])
            except (Uncopyable, RecursionError):
                return
            self._source.chunks[address] = self._codec.memo.add_chunk(address, Chunk(elements))

    def _tagged(self, node: Node) -> Any:
        name = node["~"]
        tag = self._tag(name)
        if tag is None:
            raise DamagedPartError(f"the tag {name!r} is unknown; a newer release may have written it")
        if not node.keys() <= tag.keys:
            raise DamagedPartError(f"a value tagged {name!r} has no {min(node.keys() - tag.keys)!r}")
        try:
            return tag.read(self, node)
        except (Fault, RecursionError):
            raise
        except Exception as error:
            raise DamagedPartError(f"a malformed {name!r}: {error!r}") from error


_Gathered: TypeAlias = "list[tuple[str, int, int]]"
"""The chunks of a list that must be decoded: their hashes, and where they start and end."""


def _is_tagged(tree: Any, tag: str | None = None) -> bool:
    return type_of(tree) is dict and "~" in tree and (tag is None or tree["~"] == tag)


def _merged(chunks: Iterable[Any]) -> dict[str, Any]:
    """Merge JSON objects whose members belong together."""
    merged: dict[str, Any] = {}
    count = 0
    for chunk in chunks:
        merged.update(require(chunk, dict, "chunk"))
        count += len(chunk)
    if len(merged) != count or "~" in merged:
        raise DamagedPartError("a key is duplicated or invalid")
    return merged


@dataclass(slots=True)
class Source:
    """Provides the bytes of blobs. Blobs that were read are verified on first use.

    Attributes:
        leaves: Long strings and bytes that were read. The memo keeps them as long as this object exists.
        chunks: Chunks that were decoded.
        branches: Log nodes that were read, so that the same object is used again.
    """

    stored: Mapping[str, bytes] | None = None
    encoded: Encoded | None = None
    leaves: dict[str, Leaf] = field(default_factory=new_dict)
    chunks: dict[str, Chunk] = field(default_factory=new_dict)
    branches: dict[str, LogNode] = field(default_factory=new_dict)
    _verified: set[str] = field(default_factory=new_set)

    def bytes(self, address: str) -> bytes:
        """Return the bytes of a blob. Raises DamagedPartError."""
        made = None if self.encoded is None else self.encoded.made.get(address)
        if made is not None:
            return made.data
        stored = self.stored or {}
        if address not in self._verified:
            verified(stored, address)
            self._verified.add(address)
        return stored[address]

    def branch(self, address: str) -> LogNode | None:
        """Return a log node that was read before."""
        made = None if self.encoded is None else self.encoded.branches.get(address)
        return made or self.branches.get(address)
