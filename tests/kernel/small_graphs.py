"""Every graph of up to three executors, with its edges grouped in every way."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from perdure.graph import FanInEdgeGroup, FanOutEdgeGroup, SingleEdgeGroup
from perdure.kernel import FanIn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.graph import EdgeGroup

IDS = ("a", "b", "c")

ItemT = TypeVar("ItemT")
Arrow: TypeAlias = tuple[str, str]
Groups: TypeAlias = "tuple[EdgeGroup, ...]"


def small_graphs(*, executors: int, edges_max: int) -> Iterator[Groups]:
    """All graphs of so many executors. No edge occurs twice, as in every graph that was built."""
    ids = IDS[:executors]
    arrows = [(source, target) for source in ids for target in ids]
    for chosen in subsets(arrows):
        if len(chosen) <= edges_max:
            yield from _grouped(chosen)


def subsets(items: Sequence[ItemT]) -> Iterator[tuple[ItemT, ...]]:
    """All subsets, the small ones first."""
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def _grouped(arrows: tuple[Arrow, ...]) -> Iterator[Groups]:
    if not arrows:
        yield ()
        return
    first, *others = arrows
    for members in _companies(first, others):
        rest = tuple(arrow for arrow in others if arrow not in members)
        for groups in _grouped(rest):
            yield (_group(members), *groups)


def _companies(first: Arrow, others: Sequence[Arrow]) -> Iterator[tuple[Arrow, ...]]:
    """The groups that an edge can be in: alone, with others of its source, with others of its target."""
    yield (first,)
    for end in (0, 1):
        companions = [arrow for arrow in others if arrow[end] == first[end]]
        yield from ((first, *chosen) for chosen in subsets(companions) if chosen)


def _group(members: tuple[Arrow, ...]) -> EdgeGroup:
    sources, targets = zip(*members, strict=True)
    if len(members) == 1:
        return SingleEdgeGroup(sources[0], targets[0])
    if len(set(sources)) == 1:
        return FanOutEdgeGroup(sources[0], targets)
    return FanInEdgeGroup(sources, targets[0])


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the messages of each source go: at once, in the order of the edges, and into fan-ins by their ids."""

    direct: Mapping[str, tuple[str, ...]]
    barriers: Mapping[str, tuple[str, ...]]
    fan_ins: Mapping[str, FanIn]

    @classmethod
    def of(cls, groups: Groups) -> Routes:
        """What a graph says, read from its edges alone."""
        gathering = [group for group in groups if isinstance(group, FanInEdgeGroup)]
        edges = [edge for group in groups if group not in gathering for edge in group.edges]
        return cls(
            {key: tuple(edge.target_id for edge in edges if edge.source_id == key) for key in IDS},
            {key: tuple(group.id for group in gathering if key in group.source_executor_ids) for key in IDS},
            {group.id: FanIn(tuple(group.source_executor_ids), group.target_id) for group in gathering},
        )
