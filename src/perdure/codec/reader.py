"""Read texts: parse them, fetch blobs, and dispatch on tags.

The tree is walked from the leaves up without recursion, so that every value that was written can be read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, cast

from perdure.codec.errors import Damage, Fault, Untrusted, spelled
from perdure.codec.memo import Chunk, Leaf, Memo, Uncopyable, copied, type_of
from perdure.records import Blob, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from perdure.codec.encoded import Branch, Encoded
    from perdure.codec.trust import Trust

Node: TypeAlias = "dict[str, Any]"
"""A JSON object with a tag. Its content is decoded before it is read itself."""

Read: TypeAlias = "Callable[[Reader, Node], Any]"


@dataclass(frozen=True, slots=True)
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
    """Parse a JSON text."""
    try:
        return _decoder.decode(text.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise Damage(f"not JSON: {error}") from error


class Decodes(Protocol):
    """The codec as a reader sees it, to read the elements of logs later."""

    @property
    def token(self) -> object:
        """Identifies the codec's trust."""
        ...

    def read(self, text: bytes, source: Source, *, path: str, checkpoint_id: str | None = None) -> Any:
        """Decode a text."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value, for error messages and for parts that are read later."""

    codec: Decodes | None
    source: Source
    path: str
    checkpoint_id: str | None


class Reader:
    """Reads one value with the trust of a program."""

    __slots__ = ("_memo", "_source", "_tags", "_unread", "origin", "trust")

    def __init__(self, tags: Mapping[str, Tag], origin: Origin, trust: Trust, memo: Memo) -> None:
        self._tags = tags
        self._memo = memo
        self._source = origin.source
        self._unread: dict[int, _Gathered] = {}
        """By the id of a list: the ranges that were decoded before."""
        self.origin = origin
        self.trust = trust

    def text(self, text: bytes) -> Any:
        """Decode a JSON text."""
        tree = parsed(text)
        # A text without tags is plain data: inside a string, the quotes around `~` would be escaped.
        return self._value(tree) if b'"~"' in text else tree

    def raw(self, address: object) -> bytes:
        """Return the bytes of a raw blob."""
        name: str = require(address, str, "part")
        data = self._source.bytes(name)
        leaf = self._memo.leaf_at(name, is_raw=True)
        if leaf is None:
            blob = Blob(name, data, (), "raw")
            leaf = self._memo.add_leaf(Leaf(data, f'{{"~":"bytes","part":"{name}"}}', blob))
        self._source.leaves[name] = leaf
        return cast("bytes", leaf.value)

    def trusted(self, name: object) -> type:
        """Return the class of a stored name. Raises Untrusted."""
        cls = self.trust.lookup(require(name, str, "type"))
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
            fault.rise(spelled(holders[1:], places[1:]))
            raise
        return root[0]

    def _whole(self, tree: Any) -> Any:
        """Resolve references: return the content of a blob, or gather the elements of chunks."""
        while _is_tagged(tree, "part"):
            if len(tree) != 2:  # noqa: PLR2004  the tag and the hash
                raise Damage("a reference to a part has other members")
            tree = self._blob(require(tree.get("part"), str, "part"))
        if not _is_tagged(tree) or "chunks" not in tree or self._keeps_chunks(tree["~"]):
            return tree
        node: Node = dict(tree)
        chunks = require(node.pop("chunks"), list, "chunks")
        if node == {"~": "object"}:
            return _merged(parsed(self._source.bytes(address)) for address in self._addresses(chunks))
        if "items" in node:
            raise Damage("a sequence has both items and chunks")
        node["items"] = self._gathered(self._addresses(chunks))
        return node

    def _keeps_chunks(self, name: object) -> bool:
        tag = self._tags.get(name) if isinstance(name, str) else None
        return tag is not None and tag.keeps_chunks

    def _blob(self, address: str) -> Any:
        """Return the tree of a blob, or the value of a leaf."""
        data = self._source.bytes(address)
        leaf = self._memo.leaf_at(address, is_raw=False)
        if leaf is None:
            tree = parsed(data)
            if type(tree) is not str:
                return tree
            leaf = self._memo.add_leaf(Leaf(tree, f'{{"~":"part","part":"{address}"}}', Blob(address, data)))
        self._source.leaves[address] = leaf
        return leaf.value

    def _addresses(self, chunks: list[Any]) -> Iterator[str]:
        """Yield the hashes of all chunks, following index blobs."""
        waiting = [iter(chunks)]
        while waiting:
            for address in waiting[-1]:
                # The first bytes tell an index, so known chunks need not be parsed.
                if self._source.begins(require(address, str, "part"), INDEX_HEAD):
                    index = parsed(self._source.bytes(address))
                    waiting.append(iter(require(index.get("chunks"), list, "chunks")))
                    break
                yield address
            else:
                waiting.pop()

    def _gathered(self, addresses: Iterable[str]) -> list[Any]:
        """Gather the elements of chunks: decoded ones as they are, the others as JSON trees."""
        elements: list[Any] = []
        gathered = _Gathered([], [])
        for address in addresses:
            known, first = self._known(address), len(elements)
            elements.extend(require(parsed(self._source.bytes(address)), list, "chunk") if known is None else known)
            (gathered.known if known is not None else gathered.unknown).append((address, first, len(elements)))
        if len(gathered.known) + len(gathered.unknown) <= _REMEMBERED_MAX or gathered.known:
            self._unread[id(elements)] = gathered
        return elements

    def _known(self, address: str) -> Sequence[Any] | None:
        chunk = self._source.chunks.get(address)
        # Blobs made here are complete. Of a chunk that was read, everything it refers to is verified once.
        if chunk is None and self._source.has_made(address):
            chunk = self._memo.chunk(address)
        if chunk is None:
            return None
        try:
            return chunk.given()
        except RecursionError:
            return None

    def _inside(self, tree: Any) -> Iterator[tuple[Any, Any]]:
        if type_of(tree) is dict:
            return iter(tree.items())
        gathered = self._unread.get(id(tree))
        if gathered is None:
            return enumerate(cast("list[Any]", tree))
        unread = [zip(range(first, last), tree[first:last], strict=True) for _, first, last in gathered.unknown]
        return chain.from_iterable(unread)

    def _remember(self, done: Any) -> None:
        """Remember the decoded elements of chunks, so that the next reader gets copies."""
        gathered = self._unread.pop(id(done), None)
        if gathered is None:
            return
        for address, first, last in gathered.unknown:
            try:
                elements = copied(done[first:last])
            except (Uncopyable, RecursionError):
                return
            self._source.chunks[address] = self._memo.add_chunk(address, Chunk(elements, is_shared=False))

    def _tagged(self, node: Node) -> Any:
        name = node["~"]
        tag = self._tags.get(name) if isinstance(name, str) else None
        if tag is None:
            raise Damage(f"the tag {name!r} is unknown; a newer release may have written it")
        if not node.keys() <= tag.keys:
            raise Damage(f"a value tagged {name!r} has no {min(node.keys() - tag.keys)!r}")
        try:
            return tag.read(self, node)
        except (Fault, RecursionError):
            raise
        except Exception as error:
            raise Damage(f"a malformed {name!r}: {error!r}") from error


@dataclass(frozen=True, slots=True)
class _Gathered:
    """The chunks that form a list: their hashes, and where they start and end."""

    known: list[tuple[str, int, int]]
    unknown: list[tuple[str, int, int]]


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
        raise Damage("a key is duplicated or invalid")
    return merged


def require(found: Any, expected: type, what: str) -> Any:
    """Return `found` if it has the expected type. Raises Damage."""
    if type(found) is not expected:
        raise Damage(f"{what!r} is a {type(found).__name__}, not a {expected.__name__}")
    return found


def items(node: Node) -> list[Any]:
    """Return the elements of a sequence."""
    return require(node.get("items"), list, "items")


def find_references(text: bytes) -> tuple[str, ...]:
    """Return the hashes of the blobs that a JSON text refers to directly."""
    if b'"~"' not in text:
        return ()
    found: set[str] = set()
    trees: list[Any] = [parsed(text)]
    while trees:
        tree = trees.pop()
        if type(tree) is list:
            trees.extend(cast("list[Any]", tree))
        elif type(tree) is dict:
            node = cast("Node", tree)
            trees.extend(node.values())
            if "~" in node:
                found.update(require(node.get("chunks", []), list, "chunks"))
                found.update([node["part"]] if "part" in node else ())
    return tuple(sorted(found))


class Source:
    """Provides the bytes of blobs. Blobs that were read are verified on first use."""

    __slots__ = ("_branches", "_encoded", "_stored", "_verified", "chunks", "leaves")

    def __init__(self, stored: Mapping[str, bytes] | None = None, encoded: Encoded | None = None) -> None:
        self._stored = stored
        self._encoded = encoded
        self._verified: set[str] = set()
        self._branches: dict[str, Branch] = {}
        self.leaves: dict[str, Leaf] = {}
        """Long strings and bytes that were read. The memo keeps them as long as this object exists."""
        self.chunks: dict[str, Chunk] = {}
        """Chunks that were decoded."""

    def bytes(self, address: str) -> bytes:
        """Return the bytes of a blob. Raises Damage."""
        made = None if self._encoded is None else self._encoded.made.get(address)
        if made is not None:
            return made.data
        data = None if self._stored is None else self._stored.get(address)
        if data is None:
            raise Damage(f"part {address} is missing")
        if address not in self._verified:
            if digest(data) != address:
                raise Damage(f"part {address} has other bytes than were written")
            self._verified.add(address)
        return data

    def has_made(self, address: str) -> bool:
        """Return True if a blob was made here, with everything it refers to."""
        return self._encoded is not None and address in self._encoded.made

    def begins(self, address: str, head: bytes) -> bool:
        """Return True if a blob starts with `head`. Raises Damage."""
        return self.bytes(address).startswith(head)

    def branch(self, address: str) -> Branch | None:
        """Return a log node that was read before."""
        made = None if self._encoded is None else self._encoded.branches.get(address)
        return self._branches.get(address) if made is None else made

    def keep(self, branch: Branch) -> None:
        """Remember a log node, so that the same object is used again."""
        self._branches[branch.hash] = branch
