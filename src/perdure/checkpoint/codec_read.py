"""Reading a text back: parsing, fetching parts, and the dispatch on tags.

The tree is walked without recursion, from the leaves up: a value that could be written can be read, however little
is left of the stack.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from perdure.checkpoint.codec_faults import Damage, Fault, Untrusted
from perdure.checkpoint.codec_paths import spelled
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.checkpoint.trust import Trust

Node: TypeAlias = "dict[str, Any]"
"""A JSON object with a tag. What is inside it has been read when it is read itself."""

Read: TypeAlias = "Callable[[Reader, Node], Any]"


@dataclass(frozen=True, slots=True)
class Tag:
    """How objects with one tag are read, and which keys they may have."""

    read: Read
    keys: frozenset[str]

    @classmethod
    def of(cls, read: Read, *keys: str) -> Tag:
        """A tag whose objects may have these keys."""
        return cls(read, frozenset({"~", *keys}))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def parsed(text: bytes) -> Any:
    """The plain data of a JSON text."""
    try:
        return _decoder.decode(text.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise Damage(f"not JSON: {error}") from error


class Reader:
    """Reads one value with the trust of the program that asks for it."""

    __slots__ = ("_parts", "_tags", "trust")

    def __init__(self, tags: Mapping[str, Tag], parts: Mapping[str, bytes], trust: Trust) -> None:
        self._tags = tags
        self._parts = parts
        self.trust = trust

    def text(self, text: bytes) -> Any:
        """The value of a JSON text."""
        tree = parsed(text)
        # A text without tags is plain data throughout: in a string the quotes around `~` would be escaped.
        return self._value(tree) if b'"~"' in text else tree

    def part(self, address: object) -> bytes:
        """The bytes of a part, which are those that were written."""
        data = self._parts.get(require(address, str, "part"))
        if data is None:
            raise Damage(f"part {address} is missing")
        if digest(data) != address:
            raise Damage(f"part {address} has other bytes than were written")
        return data

    def trusted(self, name: object) -> type:
        """The class that a stored name means."""
        cls = self.trust.lookup(require(name, str, "type"))
        if cls is None:
            raise Untrusted(str(name))
        return cls

    def _value(self, tree: Any) -> Any:
        """Replace every JSON object that has a tag by the value it stands for."""
        root: list[Any] = [tree]
        holders: list[Any] = [root]
        places: list[Any] = []
        waiting = [_inside(root)]
        try:
            while waiting:
                for place, inner in waiting[-1]:
                    if type(inner) is dict or type(inner) is list:
                        places.append(place)
                        whole = holders[-1][place] = self._whole(inner)
                        holders.append(whole)
                        waiting.append(_inside(whole))
                        break
                else:
                    waiting.pop()
                    done = holders.pop()
                    if places:
                        holders[-1][places[-1]] = self._tagged(done) if _is_tagged(done) else done
                        places.pop()
        except Fault as fault:
            fault.rise(spelled(holders[1:], places[1:]))
            raise
        return root[0]

    def _whole(self, tree: Any) -> Any:
        """A JSON tree with what was cut out of it: itself, if it is a part, or its elements, if they are in chunks."""
        while _is_tagged(tree, "part"):
            if len(tree) != 2:  # noqa: PLR2004  the tag and the address
                raise Damage("a reference to a part holds something else")
            tree = parsed(self.part(tree.get("part")))
        if not _is_tagged(tree) or "chunks" not in tree:
            return tree
        node: Node = dict(tree)
        chunks = self._chunks(require(node.pop("chunks"), list, "chunks"))
        if node == {"~": "object"}:
            return _merged(chunks)
        if "items" in node:
            raise Damage("a sequence has both items and chunks")
        node["items"] = [element for chunk in chunks for element in require(chunk, list, "chunk")]
        return node

    def _chunks(self, addresses: list[Any]) -> Iterator[Any]:
        for address in addresses:
            tree = parsed(self.part(address))
            if _is_tagged(tree, "index"):
                yield from self._chunks(require(tree.get("chunks"), list, "chunks"))
            else:
                yield tree

    def _tagged(self, node: Node) -> Any:
        name = node["~"]
        tag = self._tags.get(name) if isinstance(name, str) else None
        if tag is None:
            raise Damage(f"no value is tagged {name!r}; it may have been written by a later release")
        if not node.keys() <= tag.keys:
            raise Damage(f"a value tagged {name!r} has no {min(node.keys() - tag.keys)!r}")
        try:
            return tag.read(self, node)
        except (Fault, RecursionError):
            raise
        except Exception as error:
            raise Damage(f"a malformed {name!r}: {error!r}") from error


def _is_tagged(tree: Any, tag: str | None = None) -> bool:
    return type(tree) is dict and "~" in tree and (tag is None or cast("Node", tree)["~"] == tag)


def _merged(chunks: Iterable[Any]) -> dict[str, Any]:
    """The JSON object whose members stand in several."""
    merged: dict[str, Any] = {}
    count = 0
    for chunk in chunks:
        merged.update(require(chunk, dict, "chunk"))
        count += len(chunk)
    if len(merged) != count or "~" in merged:
        raise Damage("a key is there twice, or is no key")
    return merged


def _inside(tree: Any) -> Any:
    if type(tree) is dict:
        return iter(cast("Node", tree).items())
    return iter(enumerate(cast("Iterable[Any]", tree))) if type(tree) is list else iter(())


def require(found: Any, expected: type, what: str) -> Any:
    """What was found in a JSON text, if it is of the expected type."""
    if type(found) is not expected:
        raise Damage(f"{what!r} is a {type(found).__name__}, not a {expected.__name__}")
    return found


def items(node: Node) -> list[Any]:
    """The elements of a sequence."""
    return require(node.get("items"), list, "items")


def references(text: bytes) -> tuple[str, ...]:
    """The parts that a JSON text refers to directly."""
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
