"""Where a name leads: to the request, or to what one of the nodes before has put out. It is seen before anything runs.

A name is `input`, a key, or `node.key`; what follows after a further dot is inside of the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from perdure.agent_workflows.definition import INPUT
from perdure.agent_workflows.outputs import readable_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agent_workflows.definition import Node
    from perdure.agent_workflows.plan import Plan


class UnreadableError(ValueError):
    """A name leads nowhere. The text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class InRequest:
    """The request, or what is inside of it."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InOutputs:
    """A key of the outputs of a node, or what is inside of its value.

    Where it is not known who writes the key, `writers` are all that may.
    """

    writers: tuple[str, ...]
    key: str
    path: tuple[str, ...]


Place: TypeAlias = InRequest | InOutputs


def place_of(plan: Plan, node_id: str, name: str) -> Place:
    """Where a name leads that a node reads. Raises UnreadableError."""
    parts = name.split(".")
    if parts[0] == INPUT:
        return InRequest(tuple(parts[1:]))
    writer = _node_named(plan, name)
    if writer is not None:
        return _in_node(plan, node_id, writer, name.removeprefix(f"{writer.id}."))
    return _in_any(plan, node_id, name)


def _node_named(plan: Plan, name: str) -> Node | None:
    """The node that a name begins with. Ids may hold dots: the longest one is meant."""
    found = [node for node in plan.definition.nodes if name.startswith(f"{node.id}.")]
    return max(found, key=lambda node: len(node.id), default=None)


def _in_node(plan: Plan, node_id: str, writer: Node, name: str) -> Place:
    if writer.id not in plan.leading_to(node_id):
        raise UnreadableError(f"{writer.id!r} does not come before it; join them by an edge, or read something else")
    keys = _keys_of(plan, writer)
    found = _key_in(name, keys)
    if found is None:
        raise UnreadableError(f"{writer.id!r} does not write that; it writes {_listed(keys or ())}")
    return InOutputs((writer.id,), *found)


def _in_any(plan: Plan, node_id: str, name: str) -> Place:
    before = _writers(plan, node_id)
    found = [(writer, place) for writer in before if (place := _known_key(plan, name, writer)) is not None]
    if len(found) > 1:
        direct = {edge.source for edge in plan.incoming(node_id)}
        nearest = [(writer, place) for writer, place in found if writer.id in direct]
        if len(nearest) != 1:
            ways = [f"{writer.id}.{name}" for writer, _ in found]
            raise UnreadableError(f"several nodes before it write that; write which one is meant: {_listed(ways)}")
        found = nearest
    if found:
        writer, (key, path) = found[0]
        return InOutputs((writer.id,), key, path)
    maybe = tuple(writer.id for writer in before if _keys_of(plan, writer) is None)
    if not maybe:
        raise UnreadableError(f"nobody before it writes that; there is {_listed(_names(plan, before))}")
    key, *path = name.split(".")
    return InOutputs(maybe, key, tuple(path))


def _writers(plan: Plan, node_id: str) -> list[Node]:
    """The nodes whose keys a node may read without naming them: those that lead to it, in the order of declaration."""
    before = plan.leading_to(node_id) - {node_id}
    return [node for node in plan.definition.nodes if node.id in before]


def _keys_of(plan: Plan, writer: Node) -> frozenset[str] | None:
    """The keys that may be read of a node, those of who stands in for it included; None if they are not known."""
    found: frozenset[str] = frozenset()
    seen: set[str] = set()
    nodes = {node.id: node for node in plan.definition.nodes}
    who: Node | None = writer
    while who is not None and who.id not in seen:
        seen.add(who.id)
        keys = readable_keys(who)
        if keys is None:
            return None
        found |= keys
        who = nodes.get(who.on_error.fallback or "") if who.on_error.mode == "fallback" else None
    return found


def _known_key(plan: Plan, name: str, writer: Node) -> tuple[str, tuple[str, ...]] | None:
    keys = _keys_of(plan, writer)
    return None if keys is None else _key_in(name, keys)


def _key_in(name: str, keys: Iterable[str] | None) -> tuple[str, tuple[str, ...]] | None:
    """A name as a key and what is inside of its value; None if there is no such key. Keys may hold dots."""
    if keys is not None and name in keys:
        return name, ()
    key, *path = name.split(".")
    return None if keys is not None and key not in keys else (key, tuple(path))


def _names(plan: Plan, writers: Sequence[Node]) -> list[str]:
    return [INPUT, *(f"{writer.id}.{key}" for writer in writers for key in sorted(_keys_of(plan, writer) or ()))]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
