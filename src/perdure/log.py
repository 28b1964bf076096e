"""`Log`: a sequence that only grows, so that keeping it costs what was added."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, get_args, overload

from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

T = TypeVar("T")

_SHOWN_MAX = 8


class Sealed(Protocol):
    """Elements of a log that have been encoded: a chunk of them, or several."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def children(self) -> tuple[Sealed, ...]:
        """What it is made of, in order; of a chunk nothing."""
        ...

    def shared(self) -> Sequence[Any] | None:
        """The elements of a chunk, if none of them can change."""
        ...

    def fresh(self) -> Sequence[Any]:
        """The elements of a chunk, decoded for one log alone."""
        ...


@frozen
class Seals:
    """What the codec knows of a log: what was sealed, by whom, and the elements that were not."""

    sealed: tuple[Sealed, ...]
    by: object
    tail: list[Any]


class Log(Sequence[T]):
    """An append-only sequence for long histories.

    A checkpoint of a run that has a log in its state, in a message or in an executor costs the elements that were
    added, however long the log is; a list is looked through from its beginning. Handing a log out costs nothing, and
    an element that was stored is decoded when it is looked at.

    An element belongs to the log once it was appended. If it is changed after a checkpoint has it, that is not noticed.
    """

    __slots__ = ("_own", "_sealed", "_sealed_by", "_tail")

    def __init__(self, elements: Iterable[T] = (), /) -> None:
        self._sealed: tuple[Sealed, ...] = ()
        self._sealed_by: object = None
        self._own: dict[Sealed, Sequence[T]] = {}
        self._tail: list[T] = list(elements)

    def append(self, element: T) -> None:
        """Add an element to the end."""
        self._tail.append(element)

    def extend(self, elements: Iterable[T]) -> None:
        """Add elements to the end."""
        # All of them first: the elements may be those of this log.
        self._tail.extend(list(elements))

    def __iadd__(self, elements: Iterable[T]) -> Self:
        """Add elements to the end."""
        self.extend(elements)
        return self

    def copy(self) -> Log[T]:
        """A log with the same elements. What is added to one is not in the other."""
        other: Log[T] = Log(self._tail)
        other._sealed, other._sealed_by, other._own = self._sealed, self._sealed_by, dict(self._own)
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Log[T]:
        """A log with copies of the elements; those that can't change are shared."""
        other: Log[T] = Log()
        memo[id(self)] = other
        other._sealed, other._sealed_by = self._sealed, self._sealed_by
        other._own = {chunk: copy.deepcopy(elements, memo) for chunk, elements in self._own.items()}
        other._tail = copy.deepcopy(self._tail, memo)
        return other

    def __len__(self) -> int:
        return _count(self._sealed) + len(self._tail)

    @overload
    def __getitem__(self, index: int, /) -> T: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[T]: ...
    def __getitem__(self, index: int | slice, /) -> T | list[T]:
        """The element at a place, or a list of those in a slice."""
        length = len(self)
        if isinstance(index, slice):
            return self._slice(range(length)[index])
        place = index + length if index < 0 else index
        if not 0 <= place < length:
            raise IndexError(f"log index {index} is out of range: it has {length} elements")
        return next(self._from(place))

    def _slice(self, places: range) -> list[T]:
        if not places:
            return []
        first, last = min(places[0], places[-1]), max(places[0], places[-1])
        found = list(islice(self._from(first), last - first + 1))
        return [found[place - first] for place in places]

    def __iter__(self) -> Iterator[T]:
        return self._from(0)

    def __reversed__(self) -> Iterator[T]:
        sealed, tail = self._sealed, self._tail
        yield from reversed(tail)
        waiting = list(sealed)
        while waiting:
            last = waiting.pop()
            children = last.children()
            waiting.extend(children)
            if not children:
                yield from reversed(self._elements(last))

    def _from(self, place: int) -> Iterator[T]:
        """The elements from a place on; chunks before it are not looked at. Whoever seals some makes a new tail."""
        sealed, tail = self._sealed, self._tail
        for chunk, start in _chunks(sealed, place):
            yield from islice(self._elements(chunk), max(0, place - start), None)
        yield from islice(tail, max(0, place - _count(sealed)), None)

    def _elements(self, chunk: Sealed) -> Sequence[T]:
        elements = chunk.shared()
        if elements is None:
            elements = self._own.get(chunk)
        if elements is None:
            elements = self._own[chunk] = chunk.fresh()
        return elements

    def __eq__(self, other: object) -> bool:
        """Whether the other is a log with equal elements."""
        if not isinstance(other, Log):
            return NotImplemented
        rival = cast("Log[object]", other)
        return len(self) == len(rival) and all(mine == its for mine, its in zip(self, rival, strict=True))

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - it grows

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:_SHOWN_MAX]))
        more = len(self) - _SHOWN_MAX
        return f"Log([{shown}])" if more <= 0 else f"Log([{shown}, ... {more} more])"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has the elements."""
        return type(self), (list(self),)

    def __seals__(self) -> Seals:
        """What is sealed: for the codec."""
        return Seals(self._sealed, self._sealed_by, self._tail)

    @classmethod
    def __sealed__(cls, seals: Seals) -> Log[T]:
        """A log of elements that were sealed before: for the codec."""
        log: Log[T] = Log(seals.tail)
        log._sealed, log._sealed_by = seals.sealed, seals.by
        return log

    def __seal__(self, before: Seals, after: Seals, own: Mapping[Sealed, Sequence[T]]) -> None:
        """Note that more is sealed: for the codec. The program goes on with the elements that it has, `own`."""
        if self._sealed is before.sealed and self._tail is before.tail:
            self._sealed, self._sealed_by, self._tail = after.sealed, after.by, after.tail
            self._own = {**self._own, **own} if before.by is after.by else dict(own)

    def __share__(self, other: Log[T]) -> None:
        """Have in common with another log the elements of chunks that both have: for who owns both."""
        if self._sealed and other._own:
            self._own = {**other._own, **self._own}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """In a pydantic model: a log as it is, or made of a sequence; JSON has the elements."""
        from pydantic_core import core_schema  # noqa: PLC0415  where this is called, pydantic is loaded

        elements = get_args(source)
        inner = handler.generate_schema(elements[0]) if elements else core_schema.any_schema()
        made = core_schema.no_info_after_validator_function(cls, core_schema.list_schema(inner))
        return core_schema.json_or_python_schema(
            json_schema=made,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), made]),
            serialization=core_schema.plain_serializer_function_ser_schema(list),
        )


def _count(sealed: Iterable[Sealed]) -> int:
    return sum([each.count for each in sealed])


def _chunks(sealed: Sequence[Sealed], place: int) -> Iterator[tuple[Sealed, int]]:
    """The chunks that end after a place, each with the place where it begins."""
    start = 0
    waiting = list(reversed(sealed))
    while waiting:
        each = waiting.pop()
        if start + each.count <= place:
            start += each.count
            continue
        children = each.children()
        waiting.extend(reversed(children))
        if not children:
            yield each, start
            start += each.count
