"""Which edges go back and so make loops. It follows from the shape of a graph: the order of declaration means nothing.

A circle that is entered at one node goes back there. Of several entrances some begin it, as `_heads` says: what leads
to them inside of it goes back, and the circles that are left then are looked at in the same way.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from perdure.agent_workflows.definition import END, START

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from perdure.agent_workflows.definition import Edge

KeyT = TypeVar("KeyT", bound="Hashable")
Way: TypeAlias = tuple[str, str]
"""An edge by its ends: there is one between two nodes at most."""


def back_ways(edges: Sequence[Edge]) -> frozenset[Way]:
    """The edges that go back. Without them there is no circle, and START leads to the same nodes as before."""
    incoming, outgoing = by_end(edges, lambda edge: edge.target), by_end(edges, lambda edge: edge.source)
    from_start = _distances(START, outgoing, lambda edge: edge.target)
    to_end = _distances(END, incoming, lambda edge: edge.source)

    def is_before(one: str, other: str) -> bool:
        """Whether one node is nearer to START than another, and not nearer to END."""
        is_nearer = from_start.get(one, inf) < from_start.get(other, inf)
        return is_nearer and to_end.get(one, inf) >= to_end.get(other, inf)

    backs: set[Way] = set()
    open_ = circles_of(edges)
    while open_:
        nodes = open_.pop()
        to_them = [edge for node_id in nodes for edge in incoming[node_id] if _way(edge) not in backs]
        inner = [edge for edge in to_them if edge.source in nodes]
        # A circle without an entrance is an error that `checking` tells; it has a plan all the same.
        entrances = {edge.target for edge in to_them if edge.source not in nodes} or {min(nodes)}
        heads = _heads(entrances, inner, is_before)
        backs.update(_way(edge) for edge in inner if edge.target in heads)
        open_ += circles_of([edge for edge in inner if edge.target not in heads])
    return frozenset(backs)


def _heads(entrances: Collection[str], inner: Sequence[Edge], is_before: Callable[[str, str], bool]) -> frozenset[str]:
    """The entrances of a circle that don't wait for it: what leads to them inside of it goes back.

    One that something in the circle is sure to lead to waits for that, or it would act before all is there. If that is
    so of all of them or of several not, one that is before another goes first. Those of which that can't be said begin
    side by side.
    """
    waiting = _called_for_sure(entrances, inner)
    free = [each for each in entrances if each not in waiting] or entrances
    return frozenset(each for each in free if not any(is_before(other, each) for other in free))


def _called_for_sure(entrances: Collection[str], inner: Sequence[Edge]) -> frozenset[str]:
    """The nodes that edges lead to which are taken whenever the circle is entered: nothing is asked on the way."""
    always = [edge for edge in inner if not edge.is_conditional and not edge.is_default]
    following = by_end(always, lambda edge: edge.source)
    return reached(entrances, lambda each: (edge.target for edge in following.get(each, ())))


def _way(edge: Edge) -> Way:
    return edge.source, edge.target


def _distances(
    root: str, edges_at: Mapping[str, Sequence[Edge]], other_end: Callable[[Edge], str]
) -> Mapping[str, float]:
    """By node: over how many edges it is reached at least."""
    found: dict[str, float] = {root: 0}
    frontier = [root]
    while frontier:
        ends = dict.fromkeys(other_end(edge) for each in frontier for edge in edges_at.get(each, ()))
        distance = found[frontier[0]] + 1
        frontier = [each for each in ends if each not in found]
        found.update(dict.fromkeys(frontier, distance))
    return found


def circles_of(edges: Iterable[Edge]) -> list[frozenset[str]]:
    """The largest sets of nodes that all lead to each other, over one edge at least."""
    edges = list(edges)
    following, leading = by_end(edges, lambda edge: edge.source), by_end(edges, lambda edge: edge.target)
    found: list[frozenset[str]] = []
    seen: set[str] = set()
    # Who was left last comes before all that it leads to: what leads to it and is not known yet is in its circle.
    for root in reversed(_left(following)):
        if root in seen:
            continue
        circle = {root} | reached([root], lambda each: (edge.source for edge in leading.get(each, ())), but=seen)
        seen |= circle
        if len(circle) > 1 or any(edge.target == root for edge in following.get(root, ())):
            found.append(frozenset(circle))
    return found


def _left(following: Mapping[str, Sequence[Edge]]) -> list[str]:
    """The nodes in the order in which a walk leaves them, depth first. It keeps its own stack: graphs may be deep."""
    left: list[str] = []
    seen: set[str] = set()
    for root in following:
        stack = [] if root in seen else [(root, iter(following[root]))]
        seen.add(root)
        while stack:
            node_id, rest = stack[-1]
            target = _next_new(rest, seen)
            if target is None:
                left.append(node_id)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(following.get(target, ()))))
    return left


def _next_new(edges: Iterator[Edge], seen: Collection[str]) -> str | None:
    return next((edge.target for edge in edges if edge.target not in seen), None)


def by_end(edges: Iterable[Edge], end: Callable[[Edge], str]) -> Mapping[str, tuple[Edge, ...]]:
    """The edges by one of their ends."""
    found: dict[str, list[Edge]] = {}
    for edge in edges:
        found.setdefault(end(edge), []).append(edge)
    return {id_: tuple(own) for id_, own in found.items()}


def reached(
    node_ids: Iterable[KeyT], neighbours: Callable[[KeyT], Iterable[KeyT]], *, but: Collection[KeyT] = ()
) -> frozenset[KeyT]:
    """All that neighbours of neighbours lead to, without the nodes themselves unless they lead back to them."""
    found: set[KeyT] = set()
    frontier = list(node_ids)
    while frontier:
        fresh = [each for each in neighbours(frontier.pop()) if each not in found and each not in but]
        found.update(fresh)
        frontier.extend(fresh)
    return frozenset(found)
