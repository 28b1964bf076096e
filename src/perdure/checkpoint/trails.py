"""How the full chunks of a trail are put together, so that a table of contents stays short however much a run gives.

Sixteen chunks, or sixteen parts that hold as many each, stand in one part at the path of the first of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from perdure.codec import dumps
from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH = 16


class Gathered(NamedTuple):
    """A part that puts others together, at the path of the first of them."""

    path: str
    part: Part
    gone: tuple[str, ...]
    """The paths of the others, where nothing stands any more."""


def gathered(path: str, address: Callable[[str], str | None]) -> Iterator[Gathered]:
    """What is to be put together now that a chunk is full. `address` says what stands at a path, step by step."""
    trail, _, number = path.rpartition("/")
    count, step = int(number) + 1, 1
    while count % (step * WIDTH) == 0:
        firsts = range(count - step * WIDTH, count, step)
        addresses = [_address(trail, first, step, address) for first in firsts]
        known = [each for each in addresses if each is not None]
        if len(known) < WIDTH:
            return
        text = b'{"~":"index","chunks":%b}' % dumps(known)
        paths = [f"{trail}/{first}" for first in firsts]
        yield Gathered(paths[0], Part.of(text, tuple(sorted(set(known)))), tuple(paths[1:]))
        step *= WIDTH


def _address(trail: str, first: int, step: int, address: Callable[[str], str | None]) -> str | None:
    """What holds so many chunks; None if they stand one by one, as those of earlier releases do."""
    if step > 1 and address(f"{trail}/{first + 1}") is not None:
        return None
    return address(f"{trail}/{first}")
