"""A graph as a picture, independent of notation: boxes, arrows and frames."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING

from perdure.graph import FanInEdgeGroup, InternalEdgeGroup, on_error_ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.graph import EdgeGroup, Graph

_DIGEST_LENGTH = 8
_UNDRAWABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})  # controls, lone surrogates, separators of lines and paragraphs


@dataclass(frozen=True, slots=True)
class Box:
    """An executor. Its name is unique in the picture; people read the label."""

    name: str
    label: str
    is_start: bool = False


@dataclass(frozen=True, slots=True)
class FanIn:
    """The point where the arrows of several sources meet."""

    name: str
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow between two names. One that is not always taken has a reason and is dashed."""

    source: str
    target: str
    when: str | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A sub-workflow: the box of its executor, and its content."""

    box: Box
    picture: Picture


@dataclass(frozen=True, slots=True)
class Picture:
    """The drawing of one graph."""

    boxes: tuple[Box, ...]
    fan_ins: tuple[FanIn, ...]
    arrows: tuple[Arrow, ...]
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Naming:
    """Makes a node's name of its path, in one notation."""

    separator: str
    spell: Callable[[str], str]


def draw(graph: Graph, naming: Naming, *, include_internal: bool) -> Picture:
    """Return the picture of a graph and its sub-workflows, optionally with the entries from outside."""
    return _draw_graph(graph, _Names(naming), (), include_internal=include_internal)


def short_digest(text: str) -> str:
    """Return eight hexadecimal digits for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]


def make_printable(text: str) -> str:
    """Escape every character that can't be drawn. Line breaks stay."""
    lines = re.sub(r"\r\n?", "\n", text)
    return "".join(c.encode("unicode_escape").decode() if _is_undrawable(c) else c for c in lines)


def _is_undrawable(character: str) -> bool:
    return character != "\n" and unicodedata.category(character) in _UNDRAWABLE


class _Names:
    """Gives each node of a picture a unique name."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._taken: set[str] = set()

    def name_node(self, path: tuple[str, ...]) -> str:
        """Return the spelled path, with a number if another node has that name."""
        wanted = self._naming.spell(self._naming.separator.join(path))
        choices = chain([wanted], (f"{wanted}_{number}" for number in count(2)))
        name = next(name for name in choices if name not in self._taken)
        self._taken.add(name)
        return name

    def name_siblings(self, path: tuple[str, ...], ids: Iterable[str]) -> dict[str, str]:
        """Return the names of siblings by id. Ids that are valid names come first and so keep them."""
        plain_first = sorted(ids, key=lambda id_: self._naming.spell(id_) != id_)
        return {id_: self.name_node((*path, id_)) for id_ in plain_first}


def _draw_graph(graph: Graph, names: _Names, path: tuple[str, ...], *, include_internal: bool) -> Picture:
    groups = [group for group in graph.groups if include_internal or not isinstance(group, InternalEdgeGroup)]
    outside = [edge.source_id for group in groups if isinstance(group, InternalEdgeGroup) for edge in group.edges]
    named = names.name_siblings(path, graph.executors) | names.name_siblings(path, outside)
    boxes = {
        id_: Box(named[id_], make_printable(id_), is_start=id_ == graph.start_id)
        for id_ in dict.fromkeys([graph.start_id, *graph.executors, *outside])
    }
    return Picture(
        boxes=tuple(boxes.values()),
        fan_ins=tuple(_fan_in(group, names, path, named) for group in groups if isinstance(group, FanInEdgeGroup)),
        arrows=(*_arrows(groups, named), *_fallbacks(graph, named)),
        frames=tuple(
            Frame(boxes[id_], _draw_graph(child, names, (*path, id_), include_internal=include_internal))
            for id_, child in graph.children.items()
        ),
    )


def _arrows(groups: Iterable[EdgeGroup], named: Mapping[str, str]) -> Iterator[Arrow]:
    for group in groups:
        if not isinstance(group, FanInEdgeGroup):
            for edge in group.edges:
                when = "conditional" if edge.has_condition else None
                yield Arrow(named[edge.source_id], named[edge.target_id], when)


def _fallbacks(graph: Graph, named: Mapping[str, str]) -> Iterator[Arrow]:
    for source_id, target_id in on_error_ways(graph.executors):
        yield Arrow(named[source_id], named[target_id], "on error")


def _fan_in(group: FanInEdgeGroup, names: _Names, path: tuple[str, ...], named: Mapping[str, str]) -> FanIn:
    sources = group.source_executor_ids
    digest = short_digest("|".join([group.target_id, *sorted(sources)]))
    name = names.name_node((*path, f"fan_in::{group.target_id}::{digest}"))
    return FanIn(name, tuple(named[source_id] for source_id in sources), named[group.target_id])
