"""The plan of a definition: implied edges, layers, and the edges that go back and so form loops.

The edges that go back follow from the shape of the graph alone; the order of declaration does not matter. A cycle that
is entered at one node goes back to that node. If it has several entrances, some of them start it (see `_heads`): edges
to them from inside the cycle go back, and the cycles that remain are treated in the same way.
"""

from __future__ import annotations

from functools import cached_property
from graphlib import TopologicalSorter
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from perdure.agent_workflows.definition.values import END, START, Definition, Edge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence


KeyT = TypeVar("KeyT", bound="Hashable")
EdgeKey: TypeAlias = tuple[str, str]
"""An edge by source and target: there is at most one between two nodes."""


class EdgesByNode(dict[str, list[Edge]]):
    """The edges by the node at one of their ends; none for other nodes."""

    def __init__(self, edges: Iterable[Edge], end: Literal["source", "target"]) -> None:
        for edge in edges:
            self.setdefault(getattr(edge, end), []).append(edge)

    def __missing__(self, node_id: str) -> list[Edge]:
        return []

    def sources(self, node_id: str) -> list[str]:
        """Return the sources of a node's edges."""
        return [edge.source for edge in self[node_id]]

    def targets(self, node_id: str) -> list[str]:
        """Return the targets of a node's edges."""
        return [edge.target for edge in self[node_id]]


class Plan:
    """A definition with all that follows from it. `validation` reports what is wrong with a definition.

    `incoming` and `outgoing` are all edges by node, `forward_to` and `forward_from` those that do not go back. `layers`
    are the nodes by distance from START, over edges that do not go back. `ends` are the nodes with an edge to END.
    `fallbacks` names, by fallback, the nodes that it replaces; a fallback is in no layer.

    `cycles` are the largest sets of nodes that all lead to each other. Nodes after several cycles run again once for
    all of them, so these cycles share their passes: together with all nodes after them they are one of the `loops`. A
    node is in at most one cycle and one loop.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.nodes = {node.id: node for node in definition.nodes}
        self.fallbacks: dict[str, tuple[str, ...]] = {}
        for node in definition.nodes:
            fallback = node.on_error.fallback if node.on_error.mode == "fallback" else None
            if fallback is not None:
                self.fallbacks[fallback] = (*self.fallbacks.get(fallback, ()), node.id)
        ids = [node.id for node in definition.nodes if node.id not in self.fallbacks]
        self.edges = (*definition.edges, *_implied_edges(ids, definition.edges))
        self.incoming, self.outgoing = EdgesByNode(self.edges, "target"), EdgesByNode(self.edges, "source")
        self.back_edges = find_back_edges(self.edges)
        forward = [edge for edge in self.edges if not self.is_back(edge)]
        self.forward_to, self.forward_from = EdgesByNode(forward, "target"), EdgesByNode(forward, "source")
        self.layers = _find_layers(ids, forward)
        self.ends = tuple(node_id for node_id in ids if END in self.outgoing.targets(node_id))
        self._positions = {
            node_id: (layer, place) for layer, nodes in enumerate(self.layers) for place, node_id in enumerate(nodes)
        }

    @cached_property
    def edge_names(self) -> tuple[str, ...]:
        """Return all edges as texts, sorted. An execution only continues with the edges that it began with."""
        keys = sorted((edge.source, edge.target) for edge in self.edges)
        return tuple(f"{key[0]!r} -> {key[1]!r}{' (back)' if key in self.back_edges else ''}" for key in keys)

    @cached_property
    def edges_digest(self) -> str:
        """Return the digest of the edges."""
        return _digest(self.edge_names)

    @cached_property
    def requirements(self) -> Mapping[str, str]:
        """Return the conditions of the edges as texts. Predicates are known by their names alone."""
        return {edge.name: edge.requirement for edge in self.edges if edge.requirement is not None}

    @cached_property
    def requirements_digest(self) -> str:
        """Return the digest of the conditions. A change of them is reported."""
        return _digest(f"{name} {requirement}" for name, requirement in sorted(self.requirements.items()))

    def is_back(self, edge: Edge) -> bool:
        """Return True if an edge goes back."""
        return (edge.source, edge.target) in self.back_edges

    def before(self, node_id: str) -> frozenset[str]:
        """Return the nodes before a node, over edges that do not go back."""
        return reach([node_id], self.forward_to.sources) - {START}

    def leading_to(self, node_id: str) -> frozenset[str]:
        """Return the nodes from which a node can be reached; in a loop, also itself."""
        return reach([node_id], self.incoming.sources) - {START}

    def after(self, node_id: str) -> frozenset[str]:
        """Return the nodes after a node, over edges that do not go back."""
        return reach([node_id], self.forward_from.targets) - {END}

    def rerun_from(self, target: str) -> frozenset[str]:
        """Return the nodes that are decided again when an edge goes back to `target`: it and all after it."""
        return self.after(target) | {target}

    @cached_property
    def cycles(self) -> tuple[frozenset[str], ...]:
        """Return the nodes of each cycle, by its number."""
        found = find_cycles(self.edges)
        return tuple(sorted(found, key=lambda nodes: self._positions[self.in_order(nodes)[0]]))

    @cached_property
    def _cycle_numbers(self) -> Mapping[str, int]:
        return {node_id: number for number, nodes in enumerate(self.cycles) for node_id in nodes}

    def cycle_of(self, key: EdgeKey) -> int:
        """Return the number of the cycle that a back edge closes."""
        return self._cycle_numbers[key[1]]

    @cached_property
    def leading_to_cycle(self) -> tuple[frozenset[str], ...]:
        """Return, by the number of a cycle, its nodes and all from which it can be reached."""
        return tuple(nodes | reach(nodes, self.incoming.sources) - {START} for nodes in self.cycles)

    @cached_property
    def _from_cycle(self) -> tuple[frozenset[str], ...]:
        """Return, by the number of a cycle, its nodes and all after it."""
        return tuple(nodes | reach(nodes, self.forward_from.targets) - {END} for nodes in self.cycles)

    @cached_property
    def _cycles_up_to(self) -> Mapping[str, frozenset[int]]:
        found: dict[str, set[int]] = {}
        for number, nodes in enumerate(self._from_cycle):
            for node_id in nodes:
                found.setdefault(node_id, set()).add(number)
        return {node_id: frozenset(numbers) for node_id, numbers in found.items()}

    def cycles_up_to(self, node_id: str) -> frozenset[int]:
        """Return the numbers of the cycles that a node is in or after."""
        return self._cycles_up_to.get(node_id, frozenset())

    def cycles_before(self, node_id: str) -> frozenset[int]:
        """Return the numbers of the cycles that a node is after, but not in."""
        return self.cycles_up_to(node_id) - {self._cycle_numbers.get(node_id)}

    @cached_property
    def after_cycles(self) -> tuple[str, ...]:
        """Return the nodes after a cycle that they are not in."""
        return self.in_order(node_id for node_id in self._cycles_up_to if self.cycles_before(node_id))

    @cached_property
    def deciding(self) -> tuple[frozenset[str], ...]:
        """Return, by the number of a cycle, the nodes in it and before it: only these can change a pass."""
        return tuple(nodes.union(*(self.before(each) for each in nodes)) for nodes in self.cycles)

    @cached_property
    def loops(self) -> tuple[frozenset[str], ...]:
        """Return the nodes of each loop, by its number."""
        found: list[frozenset[str]] = []
        for each in self._from_cycle:
            common = [other for other in found if other & each]
            found = [*(other for other in found if not other & each), each.union(*common)]
        return tuple(found)

    @cached_property
    def _loop_numbers(self) -> Mapping[str, int]:
        return {node_id: number for number, nodes in enumerate(self.loops) for node_id in nodes}

    def loop_of(self, node_id: str) -> int | None:
        """Return the number of a node's loop; None if it is in none."""
        return self._loop_numbers.get(node_id)

    @cached_property
    def influencing(self) -> tuple[frozenset[str], ...]:
        """Return, by the number of a loop, the nodes on which it depends."""
        return tuple(nodes | reach(nodes, self.forward_to.sources) - {START} for nodes in self.loops)

    def layer_of(self, node_id: str) -> int:
        """Return the number of a node's layer; of a fallback, that of the first node that it replaces."""
        while node_id in self.fallbacks:
            node_id = self.fallbacks[node_id][0]
        return self._positions[node_id][0]

    def in_order(self, node_ids: Iterable[str]) -> tuple[str, ...]:
        """Sort nodes by layer, then by declaration."""
        return tuple(sorted(node_ids, key=lambda each: self._positions[each]))


def _digest(lines: Iterable[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()


def _implied_edges(ids: Sequence[str], declared: Iterable[Edge]) -> Iterator[Edge]:
    """Yield edges from START to nodes that no other node leads to, and to END from nodes that lead to no other."""
    others = [edge for edge in declared if edge.source != edge.target]
    targets, sources = {edge.target for edge in others}, {edge.source for edge in others}
    yield from (Edge(START, id_) for id_ in ids if id_ not in targets)
    yield from (Edge(id_, END) for id_ in ids if id_ not in sources)


def _find_layers(ids: Sequence[str], forward: Sequence[Edge]) -> tuple[tuple[str, ...], ...]:
    """Put each node into the first layer after all nodes before it."""
    order = {id_: place for place, id_ in enumerate(ids)}
    sorter = TopologicalSorter[str](dict.fromkeys(ids, ()))
    for edge in forward:
        if edge.source in order and edge.target in order:
            sorter.add(edge.target, edge.source)
    sorter.prepare()
    layers: list[tuple[str, ...]] = []
    while ready := sorter.get_ready():
        layers.append(tuple(sorted(ready, key=order.__getitem__)))
        sorter.done(*ready)
    return tuple(layers)


def find_back_edges(edges: Sequence[Edge]) -> frozenset[EdgeKey]:
    """Return the edges that go back. Without them there is no cycle, and START leads to the same nodes."""
    incoming = EdgesByNode(edges, "target")
    from_start, to_end = _distances(START, EdgesByNode(edges, "source").targets), _distances(END, incoming.sources)

    def is_before(one: str, other: str) -> bool:
        """Return True if one node is nearer to START than another, and not nearer to END."""
        is_nearer = from_start.get(one, inf) < from_start.get(other, inf)
        return is_nearer and to_end.get(one, inf) >= to_end.get(other, inf)

    found: set[EdgeKey] = set()
    pending = find_cycles(edges)
    while pending:
        nodes = pending.pop()
        to_them = [edge for id_ in nodes for edge in incoming[id_] if (edge.source, edge.target) not in found]
        inner = [edge for edge in to_them if edge.source in nodes]
        # A cycle without an entrance is an error that `validation` reports; it gets a plan all the same.
        entrances = {edge.target for edge in to_them if edge.source not in nodes} or {min(nodes)}
        heads = _heads(entrances, inner, is_before)
        found.update((edge.source, edge.target) for edge in inner if edge.target in heads)
        pending += find_cycles([edge for edge in inner if edge.target not in heads])
    return frozenset(found)


def _heads(entrances: Collection[str], inner: Sequence[Edge], is_before: Callable[[str, str], bool]) -> frozenset[str]:
    """Return the entrances of a cycle that do not wait for it; edges to them from inside go back.

    An entrance that the cycle is certain to reach waits for that; otherwise it would run before all its inputs exist.
    If several entrances remain, or none, one that is before another goes first. Those without such an order start
    together.
    """
    always = [edge for edge in inner if not edge.is_conditional and not edge.is_default]
    certain = reach(entrances, EdgesByNode(always, "source").targets)
    free = [each for each in entrances if each not in certain] or entrances
    return frozenset(each for each in free if not any(is_before(other, each) for other in free))


def _distances(root: str, neighbours: Callable[[str], Iterable[str]]) -> Mapping[str, float]:
    found: dict[str, float] = {root: 0}
    frontier = [root]
    while frontier:
        distance = found[frontier[0]] + 1
        ends = dict.fromkeys(end for each in frontier for end in neighbours(each))
        frontier = [each for each in ends if each not in found]
        found.update(dict.fromkeys(frontier, distance))
    return found


def find_cycles(edges: Iterable[Edge]) -> list[frozenset[str]]:
    """Return the largest sets of nodes that all lead to each other (Kosaraju's algorithm)."""
    edges = list(edges)
    following, leading = EdgesByNode(edges, "source"), EdgesByNode(edges, "target")
    found: list[frozenset[str]] = []
    seen: set[str] = set()
    for root in reversed(_postorder(following)):
        if root in seen:
            continue
        cycle = {root} | reach([root], leading.sources, without=seen)
        seen |= cycle
        if len(cycle) > 1 or root in following.targets(root):
            found.append(frozenset(cycle))
    return found


def _postorder(following: EdgesByNode) -> list[str]:
    """Return the nodes in depth-first postorder. It has its own stack, because graphs may be deep."""
    order: list[str] = []
    seen: set[str] = set()
    for root in following:
        stack = [] if root in seen else [(root, iter(following.targets(root)))]
        seen.add(root)
        while stack:
            node_id, rest = stack[-1]
            target = next((each for each in rest if each not in seen), None)
            if target is None:
                order.append(node_id)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(following.targets(target))))
    return order


def reach(
    start: Iterable[KeyT], neighbours: Callable[[KeyT], Iterable[KeyT]], *, without: Collection[KeyT] = ()
) -> frozenset[KeyT]:
    """Return all that can be reached from `start`; a start itself only if something leads back to it."""
    found: set[KeyT] = set()
    frontier = list(start)
    while frontier:
        fresh = [each for each in neighbours(frontier.pop()) if each not in found and each not in without]
        found.update(fresh)
        frontier.extend(fresh)
    return frozenset(found)
