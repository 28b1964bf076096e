"""A definition as a graph: the edges that are implied, the layers, and which edges go back and so make loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from perdure.agent_workflows.definition import END, START, Edge
from perdure.agent_workflows.plan_backs import back_ways, by_end, circles_of, reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.agent_workflows.definition import Definition, Node
    from perdure.agent_workflows.plan_backs import Way


@dataclass(frozen=True, eq=False)
class Plan:
    """A definition, and what follows from it. It is made by `plan_of`.

    `layers` are the nodes by how far they are from START, over edges that don't go back; `ends` the nodes with an edge
    to END, as they were declared; `fallbacks` says, by fallback, whom it stands in for. Fallbacks are in no layer.

    `circles` are the nodes that all lead to each other: loops with nodes in common are one. What comes after several
    circles acts again once for all of them, so these have their passes together: they and all that comes after them
    are one of the `loops`. Both are numbered, and a node is in one of each at most.
    """

    definition: Definition
    edges: tuple[Edge, ...]
    layers: tuple[tuple[str, ...], ...]
    ends: tuple[str, ...]
    fallbacks: Mapping[str, tuple[str, ...]]
    backs: frozenset[Way]
    _nodes: Mapping[str, Node]
    _incoming: Mapping[str, tuple[Edge, ...]]
    _outgoing: Mapping[str, tuple[Edge, ...]]
    _places: Mapping[str, tuple[int, int]]

    @cached_property
    def ways(self) -> tuple[str, ...]:
        """All edges in words, and which of them go back: what an execution rests on that is under way."""
        ways = sorted((edge.source, edge.target) for edge in self.edges)
        return tuple(f"{way[0]!r} -> {way[1]!r}{' (back)' if way in self.backs else ''}" for way in ways)

    def has_node(self, node_id: str) -> bool:
        """Whether there is such a node."""
        return node_id in self._nodes

    def node(self, node_id: str) -> Node:
        """A node by its id. Raises KeyError."""
        return self._nodes[node_id]

    def incoming(self, node_id: str) -> tuple[Edge, ...]:
        """The edges to a node, those from START and those that go back included."""
        return self._incoming.get(node_id, ())

    def outgoing(self, node_id: str) -> tuple[Edge, ...]:
        """The edges from a node, those to END and those that go back included."""
        return self._outgoing.get(node_id, ())

    def is_back(self, edge: Edge) -> bool:
        """Whether an edge leads to a node that comes before it."""
        return (edge.source, edge.target) in self.backs

    def forward_to(self, node_id: str) -> tuple[Edge, ...]:
        """The edges to a node that don't go back."""
        return self._forward_to.get(node_id, ())

    def forward_from(self, node_id: str) -> tuple[Edge, ...]:
        """The edges from a node that don't go back."""
        return self._forward_from.get(node_id, ())

    @cached_property
    def _forward_to(self) -> Mapping[str, tuple[Edge, ...]]:
        return {id_: tuple(each for each in edges if not self.is_back(each)) for id_, edges in self._incoming.items()}

    @cached_property
    def _forward_from(self) -> Mapping[str, tuple[Edge, ...]]:
        return {id_: tuple(each for each in edges if not self.is_back(each)) for id_, edges in self._outgoing.items()}

    def before(self, node_id: str) -> frozenset[str]:
        """The nodes that come before a node, over edges that don't go back."""
        return reached([node_id], lambda each: (edge.source for edge in self.forward_to(each))) - {START}

    def leading_to(self, node_id: str) -> frozenset[str]:
        """The nodes that a node can follow, loops included: in a loop, also itself."""
        return reached([node_id], lambda each: (edge.source for edge in self.incoming(each))) - {START}

    def after(self, node_id: str) -> frozenset[str]:
        """The nodes that come after a node, over edges that don't go back."""
        return reached([node_id], lambda each: (edge.target for edge in self.forward_from(each))) - {END}

    @cached_property
    def circles(self) -> tuple[frozenset[str], ...]:
        """By the number of a circle: the nodes that are in it."""
        found = circles_of(self.edges)
        return tuple(sorted(found, key=lambda nodes: self._places[self.in_order(nodes)[0]]))

    @cached_property
    def _circle_numbers(self) -> Mapping[str, int]:
        return {node_id: number for number, nodes in enumerate(self.circles) for node_id in nodes}

    def circle_of(self, way: Way) -> int:
        """The number of the circle that an edge which goes back closes."""
        return self._circle_numbers[way[1]]

    @cached_property
    def leading_to_circle(self) -> tuple[frozenset[str], ...]:
        """By the number of a circle: the nodes in it, and all that it can follow, over edges that go back as well."""
        return tuple(
            nodes | reached(nodes, lambda each: (edge.source for edge in self.incoming(each))) - {START}
            for nodes in self.circles
        )

    @cached_property
    def _from_circle(self) -> tuple[frozenset[str], ...]:
        """By the number of a circle: the nodes in it, and all that comes after it."""
        return tuple(
            nodes | reached(nodes, lambda each: (edge.target for edge in self.forward_from(each))) - {END}
            for nodes in self.circles
        )

    @cached_property
    def _circles_to(self) -> Mapping[str, frozenset[int]]:
        """By node: the circles that it is in or comes after."""
        found: dict[str, set[int]] = {}
        for number, nodes in enumerate(self._from_circle):
            for node_id in nodes:
                found.setdefault(node_id, set()).add(number)
        return {node_id: frozenset(numbers) for node_id, numbers in found.items()}

    def circles_to(self, node_id: str) -> frozenset[int]:
        """The numbers of the circles that a node is in or comes after."""
        return self._circles_to.get(node_id, frozenset())

    def circles_before(self, node_id: str) -> frozenset[int]:
        """The numbers of the circles that a node comes after, and is not in."""
        return self.circles_to(node_id) - {self._circle_numbers.get(node_id)}

    @cached_property
    def after_circles(self) -> tuple[str, ...]:
        """The nodes that come after a circle, and are not in it."""
        return self.in_order(node_id for node_id in self._circles_to if self.circles_before(node_id))

    @cached_property
    def deciding(self) -> tuple[frozenset[str], ...]:
        """By the number of a circle: the nodes in it and before it. Nothing else changes what comes of a pass."""
        return tuple(nodes.union(*(self.before(each) for each in nodes)) for nodes in self.circles)

    def again(self, target: str) -> frozenset[str]:
        """The nodes that are decided anew when something goes back to a node: it and all that comes after it."""
        return self.after(target) | {target}

    @cached_property
    def loops(self) -> tuple[frozenset[str], ...]:
        """By the number of a loop: the nodes that are in it."""
        return _joined(self._from_circle)

    @cached_property
    def _loop_numbers(self) -> Mapping[str, int]:
        return {node_id: number for number, nodes in enumerate(self.loops) for node_id in nodes}

    def loop_of(self, node_id: str) -> int | None:
        """The number of the loop that a node is in, if it is in one."""
        return self._loop_numbers.get(node_id)

    @cached_property
    def bearing_on(self) -> tuple[frozenset[str], ...]:
        """By the number of a loop: the nodes that what happens there depends on. Of others it is independent."""
        return tuple(
            nodes | reached(nodes, lambda each: (edge.source for edge in self.forward_to(each))) - {START}
            for nodes in self.loops
        )

    def layer_of(self, node_id: str) -> int:
        """The number of the layer of a node; of a fallback, that of the first node that it stands in for."""
        while node_id in self.fallbacks:
            node_id = self.fallbacks[node_id][0]
        return self._places[node_id][0]

    def in_order(self, node_ids: Iterable[str]) -> tuple[str, ...]:
        """The same nodes in the order of the plan: by layer, then as they were declared."""
        return tuple(sorted(node_ids, key=lambda each: self._places[each]))


def plan_of(definition: Definition) -> Plan:
    """The plan of a definition. What is wrong with one is for `checking` to say."""
    fallbacks = _fallbacks(definition)
    edges = (*definition.edges, *implied_edges(definition))
    incoming, outgoing = by_end(edges, lambda edge: edge.target), by_end(edges, lambda edge: edge.source)
    ids = [node.id for node in definition.nodes if node.id not in fallbacks]
    backs = back_ways(edges)
    layers = _layers(ids, [edge for edge in edges if (edge.source, edge.target) not in backs])
    return Plan(
        definition=definition,
        edges=edges,
        layers=layers,
        ends=tuple(id_ for id_ in ids if any(edge.target == END for edge in outgoing.get(id_, ()))),
        fallbacks=fallbacks,
        backs=backs,
        _nodes={node.id: node for node in definition.nodes},
        _incoming=incoming,
        _outgoing=outgoing,
        _places={id_: (layer, place) for layer, ids_ in enumerate(layers) for place, id_ in enumerate(ids_)},
    )


def implied_edges(definition: Definition) -> tuple[Edge, ...]:
    """From START to each node that nothing else leads to, and to END from each that leads nowhere.

    An edge of a node to itself is none that leads to it from elsewhere. Fallbacks have no edges.
    """
    fallbacks = _fallbacks(definition)
    others = [edge for edge in definition.edges if edge.source != edge.target]
    targets, sources = {edge.target for edge in others}, {edge.source for edge in others}
    ids = [node.id for node in definition.nodes if node.id not in fallbacks]
    starts = (Edge(START, id_) for id_ in ids if id_ not in targets)
    ends = (Edge(id_, END) for id_ in ids if id_ not in sources)
    return (*starts, *ends)


def _fallbacks(definition: Definition) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for node in definition.nodes:
        fallback = node.on_error.fallback if node.on_error.mode == "fallback" else None
        if fallback is not None:
            found[fallback] = (*found.get(fallback, ()), node.id)
    return found


def _joined(sets: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """The same, those with something in common as one."""
    found: list[frozenset[str]] = []
    for each in sets:
        common = [other for other in found if other & each]
        found = [*(other for other in found if not other & each), each.union(*common)]
    return tuple(found)


def _layers(ids: Sequence[str], forward: Sequence[Edge]) -> tuple[tuple[str, ...], ...]:
    """Each node in the first layer that comes after all nodes before it."""
    known = set(ids)
    inner = [edge for edge in forward if edge.source in known and edge.target in known]
    after = by_end(inner, lambda edge: edge.source)
    missing = Counter(edge.target for edge in inner)
    layers: list[tuple[str, ...]] = []
    current = [id_ for id_ in ids if not missing[id_]]
    order = {id_: place for place, id_ in enumerate(ids)}
    while current:
        layers.append(tuple(current))
        following: list[str] = []
        for edge in (edge for id_ in current for edge in after.get(id_, ())):
            missing[edge.target] -= 1
            if not missing[edge.target]:
                following.append(edge.target)
        current = sorted(following, key=order.__getitem__)
    return tuple(layers)
