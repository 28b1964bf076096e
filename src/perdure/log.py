"""`Log`: an append-only sequence. Storing it costs only what was appended."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol, Self, TypeVar, cast, get_args, overload

T = TypeVar("T")

_SHOWN_MAX = 8


class Sealed(Protocol):
    """A node of encoded elements of a log: a chunk, or several nodes."""

    @property
    def count(self) -> int:
        """The number of elements."""
        ...

    def children(self) -> tuple[Sealed, ...]:
        """Return the nodes below, in order. A chunk has none."""
        ...

    @property
    def shared(self) -> Sequence[Any] | None:
        """The elements of a chunk if none of them can change."""
        ...

    def fresh(self) -> Sequence[Any]:
        """Decode the elements of a chunk for one log."""
        ...


@dataclass(frozen=True, slots=True)
class Seals:
    """The encoded part of a log, the codec that encoded it, and the remaining elements."""

    sealed: tuple[Sealed, ...]
    by: object
    tail: list[Any]


class Log(Sequence[T]):
    """An append-only sequence for long histories.

    A checkpoint with a log in its state, in a message or in an executor costs the appended elements, however long the
    log is; a list is searched from its start. Passing a log on costs nothing, and a stored element is decoded on first
    access.

    An element belongs to the log once it is appended. Changing it after a checkpoint has no effect on what is stored.
    """

    __slots__ = ("_own", "_sealed", "_sealed_by", "_tail")

    def __init__(self, elements: Iterable[T] = (), /) -> None:
        self._sealed: tuple[Sealed, ...] = ()
        self._sealed_by: object = None
        self._own: dict[Sealed, Sequence[T]] = {}
        self._tail: list[T] = list(elements)

    def append(self, element: T) -> None:
        """Append an element."""
        self._tail.append(element)

    def extend(self, elements: Iterable[T]) -> None:
        """Append elements."""
        # Collect them first: they may come from this log.
        self._tail.extend(list(elements))

    def __iadd__(self, elements: Iterable[T]) -> Self:
        """Append elements."""
        self.extend(elements)
        return self

    def copy(self) -> Log[T]:
        """Copy the log. Later additions are not shared."""
        other: Log[T] = Log(self._tail)
        other._sealed, other._sealed_by, other._own = self._sealed, self._sealed_by, dict(self._own)
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Log[T]:
        """Copy the log and its elements. Elements that can't change are shared."""
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
        """Return an element, or a list of the elements in a slice."""
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
        """Yield the elements from a position on, without loading chunks before it."""
        sealed, tail = self._sealed, self._tail
        chunks = (islice(self._elements(chunk), max(0, place - start), None) for chunk, start in _chunks(sealed, place))
        return chain(chain.from_iterable(chunks), islice(tail, max(0, place - _count(sealed)), None))

    def _elements(self, chunk: Sealed) -> Sequence[T]:
        elements = chunk.shared
        if elements is None:
            elements = self._own.get(chunk)
        if elements is None:
            elements = self._own[chunk] = chunk.fresh()
        return elements

    def __eq__(self, other: object) -> bool:
        """Compare with another log by elements."""
        if not isinstance(other, Log):
            return NotImplemented
        rival = cast("Log[object]", other)
        return len(self) == len(rival) and all(mine == its for mine, its in zip(self, rival, strict=True))

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - it is mutable

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:_SHOWN_MAX]))
        more = len(self) - _SHOWN_MAX
        return f"Log([{shown}])" if more <= 0 else f"Log([{shown}, ... {more} more])"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the elements."""
        return type(self), (list(self),)

    def __seals__(self) -> Seals:
        """Return the encoded part. For the codec."""
        return Seals(self._sealed, self._sealed_by, self._tail)

    @classmethod
    def __sealed__(cls, seals: Seals) -> Log[T]:
        """Create a log from its encoded part. For the codec."""
        log: Log[T] = Log(seals.tail)
        log._sealed, log._sealed_by = seals.sealed, seals.by
        return log

    def __seal__(self, before: Seals, after: Seals, own: Mapping[Sealed, Sequence[T]]) -> None:
        """Replace elements by their encoded part. For the codec. The program keeps its own objects, `own`."""
        if self._sealed is before.sealed and self._tail is before.tail:
            self._sealed, self._sealed_by, self._tail = after.sealed, after.by, after.tail
            self._own = {**self._own, **own} if before.by is after.by else dict(own)

    def __share__(self, other: Log[T]) -> None:
        """Share decoded elements with another log that has the same chunks. For the owner of both."""
        if self._sealed and other._own:
            self._own = {**other._own, **self._own}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Accept a log or a sequence in pydantic models, and serialize the elements."""
        from pydantic_core import core_schema  # noqa: PLC0415  pydantic is loaded already

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
    """Yield the chunks that end after a position, each with its start."""
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
