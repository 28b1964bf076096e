"""A value as bytes, and the parts that were cut out of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class Branch(Protocol):
    """A part of a log with all that it refers to. Nothing of it is looked at before it is asked for."""

    @property
    def hash(self) -> str:
        """The hash of the part."""
        ...

    @property
    def size(self) -> int:
        """The bytes of the part and of all that it refers to."""
        ...

    def part(self) -> Part:
        """The part. Raises CheckpointDamagedError if it was read, and is not what was written."""
        ...

    def within(self) -> tuple[Mapping[str, Part], Mapping[str, Branch]]:
        """What the part refers to: parts, with those that they refer to themselves, and further branches."""
        ...


_NO_PARTS: Mapping[str, Part] = MappingProxyType({})
_NO_BRANCHES: Mapping[str, Branch] = MappingProxyType({})


class Encoded:
    """A value as bytes: its text, and the parts that were cut out of it. It is never changed.

    No frozen dataclass, which takes three times as long to make: each message, write and output makes one.
    """

    __slots__ = ("_made", "_whole", "branches", "immutable", "memories", "refs", "text")

    def __init__(  # noqa: PLR0917
        self,
        text: bytes,
        parts: Iterable[Part] | Mapping[str, Part] = (),
        refs: tuple[str, ...] = (),
        immutable: bool = False,  # noqa: FBT001, FBT002  given by name; a keyword only would cost as much as the rest
        branches: Mapping[str, Branch] = _NO_BRANCHES,
        memories: object = None,
    ) -> None:
        self.text = text
        """The value as JSON."""
        self.refs = refs
        """The hashes of the parts that the text itself refers to."""
        self.immutable = immutable
        """Nothing inside can change: the value that was encoded may be handed out again."""
        self.branches = branches
        """The parts of logs that the value has, by their hashes."""
        self.memories = memories
        """What the codec remembers as long as this is there."""
        self._made = _by_hash(parts) if parts else _NO_PARTS
        self._whole: Part | None = None

    def __repr__(self) -> str:
        return f"Encoded(text={self.text!r}, refs={self.refs!r}, immutable={self.immutable!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Encoded):
            return NotImplemented
        return (self.text, self.refs, self.immutable) == (other.text, other.refs, other.immutable)

    def __hash__(self) -> int:
        return hash((self.text, self.refs, self.immutable))

    @property
    def made(self) -> Mapping[str, Part]:
        """The parts that were made with the text, by their hashes; not those of branches."""
        return self._made

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the text needs, those that it refers to through others included."""
        if not self.branches:
            return tuple(self._made.values())
        return tuple({**self._made, **{part.hash: part for part in self.parts_in_order()}}.values())

    @property
    def size(self) -> int:
        """The bytes of the text and of all the parts that it needs."""
        own = len(self.text)
        if self._made:
            own += sum([len(part.data) for part in self._made.values()])
        return own + sum([branch.size for branch in self.branches.values()]) if self.branches else own

    def has(self, address: str) -> bool:
        """Whether a part is known to be among those that the text needs. Of what was read few are known."""
        return address in self._made or address in self.branches or address in self.refs

    def beyond(self, is_known: Callable[[str], bool]) -> Iterator[Part]:
        """The parts that the text needs, but for those that are known, with all that they refer to.

        What follows an earlier value is written for what has changed: `later.beyond(earlier.has)`. Each part comes
        after those that it refers to.
        """
        return _walked(self.refs, self._made, self.branches, is_known)

    def parts_in_order(self) -> Iterator[Part]:
        """The parts that the text needs and no others, each after those that it refers to."""
        return self.beyond(_nothing)

    def part(self) -> Part:
        """The text as a part."""
        whole = self._whole
        if whole is None:
            whole = self._whole = Part.of(self.text, self.refs)
        return whole

    def with_whole(self, part: Part) -> Encoded:
        """The same, where the text is known to be this part."""
        self._whole = part
        return self

    def with_parts(self, parts: Iterable[Part]) -> Encoded:
        """The same text with these parts."""
        return Encoded(self.text, parts, self.refs, self.immutable, self.branches, self.memories)


def _by_hash(parts: Iterable[Part] | Mapping[str, Part]) -> Mapping[str, Part]:
    # A writer hands over the dict that it has filled.
    return parts if type(parts) is dict else {part.hash: part for part in parts}  # type: ignore[union-attr]


def _nothing(_: str) -> bool:
    return False


_Place: TypeAlias = "tuple[Part | None, Iterator[str], Mapping[str, Part], Mapping[str, Branch]]"
"""A part, those of its references that were not looked at, and where the parts are found."""


def _walked(
    refs: Iterable[str],
    parts: Mapping[str, Part],
    branches: Mapping[str, Branch],
    is_known: Callable[[str], bool],
) -> Iterator[Part]:
    """From the leaves up, without recursion: nested values may be deep."""
    seen: set[str] = set()
    waiting: list[_Place] = [(None, iter(refs), parts, branches)]
    while waiting:
        part, inner, parts, branches = waiting[-1]
        for address in inner:
            if address in seen or is_known(address):
                continue
            seen.add(address)
            branch = branches.get(address)
            found = parts.get(address) if branch is None else branch.part()
            # What is neither made nor a branch was read from a store, and is there.
            if found is not None:
                parts, branches = (parts, branches) if branch is None else branch.within()
                waiting.append((found, iter(found.refs), parts, branches))
                break
        else:
            waiting.pop()
            if part is not None:
                yield part
