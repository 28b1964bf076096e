"""Where a name leads: to the request, or to what one of the nodes before has put out. It is seen before anything runs.

A name is `input`, a key, or `node.key`; what follows after a further dot is inside of the value: a key of a dict, or
the number of an element of a list, from 0 on. `START.input` is the request, too, where a node has an output `input`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from perdure.agent_workflows.checking_words import listed
from perdure.agent_workflows.definition import INPUT, START
from perdure.agent_workflows.outputs import keys_with_fallbacks
from perdure.agent_workflows.outputs_paths import dead_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


class Places:
    """Finds where names lead. What holds for all nodes of a plan is found out once, as it may have many."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._nodes = {node.id: node for node in plan.definition.nodes}
        self._keys = {id_: keys_with_fallbacks(node, self._nodes) for id_, node in self._nodes.items()}
        self._writers: dict[str, list[str]] = {}
        """By key: who writes it, in the order of declaration."""
        for id_, keys in self._keys.items():
            for key in keys or ():
                self._writers.setdefault(key, []).append(id_)
        self._unknown = [id_ for id_, keys in self._keys.items() if keys is None]
        """Of whom it is not known what they write."""
        self._before: dict[str, frozenset[str]] = {}

    def place_of(self, node_id: str, name: str) -> Place:
        """Where a name leads that a node reads. Raises UnreadableError."""
        parts = name.split(".")
        if parts[:2] == [START, INPUT]:
            return InRequest(tuple(parts[2:]))
        if parts[0] == INPUT:
            self._require_request(node_id, name)
            return InRequest(tuple(parts[1:]))
        writer = self._node_named(parts)
        if writer is not None:
            return self._in_node(node_id, writer, name.removeprefix(f"{writer}."))
        return self._in_any(node_id, name)

    def _require_request(self, node_id: str, name: str) -> None:
        """Refuse the name of the request where a node before has an output of that name, and so either may be meant."""
        writers = sorted(self._leading_to(node_id).intersection(self._writers.get(INPUT, ())) - {node_id})
        if writers:
            ways = listed(f"{writer}.{name}" for writer in writers)
            raise UnreadableError(
                f"{listed(writers)} before it writes that, too; write {ways} for what was made of the request, or "
                f"'{START}.{name}' for the request itself"
            )

    def _node_named(self, parts: Sequence[str]) -> str | None:
        """The node that a name begins with. Ids may hold dots: the longest one is meant."""
        begins = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
        return next((id_ for id_ in begins if id_ in self._nodes), None)

    def _in_node(self, node_id: str, writer: str, name: str) -> Place:
        if writer not in self._leading_to(node_id):
            raise UnreadableError(f"{writer!r} does not come before it; join them by an edge, or read something else")
        keys = self._keys[writer]
        found = _key_in(name, keys)
        if found is None:
            raise UnreadableError(f"{writer!r} does not write that; it writes {listed(sorted(keys or ()))}")
        return self._required(InOutputs((writer,), *found))

    def _required(self, place: InOutputs) -> InOutputs:
        """The same place, of one writer, if its path can lead somewhere. Raises UnreadableError."""
        why = dead_end(self._nodes[place.writers[0]], self._nodes, place.key, place.path)
        if why is not None:
            raise UnreadableError(why)
        return place

    def _in_any(self, node_id: str, name: str) -> Place:
        before = self._leading_to(node_id) - {node_id}
        key, *path = name.split(".")
        # A key may hold dots. The nodes are in the order of declaration.
        may = dict.fromkeys((*self._writers.get(name, ()), *self._writers.get(key, ())))
        found = [writer for writer in may if writer in before]
        if len(found) > 1:
            found = self._nearest(node_id, found, name)
        if found:
            is_whole = name in (self._keys[found[0]] or ())
            return self._required(InOutputs((found[0],), *((name, ()) if is_whole else (key, tuple(path)))))
        maybe = tuple(writer for writer in self._unknown if writer in before)
        if not maybe:
            raise UnreadableError(f"nobody before it writes that; there is {listed(self._names(before))}")
        return InOutputs(maybe, key, tuple(path))

    def _nearest(self, node_id: str, writers: Sequence[str], name: str) -> list[str]:
        direct = {edge.source for edge in self._plan.incoming(node_id)}
        nearest = [writer for writer in writers if writer in direct]
        if len(nearest) != 1:
            ways = sorted(f"{writer}.{name}" for writer in writers)
            raise UnreadableError(f"several nodes before it write that; write which one is meant: {listed(ways)}")
        return nearest

    def _leading_to(self, node_id: str) -> frozenset[str]:
        if node_id not in self._before:
            self._before[node_id] = self._plan.leading_to(node_id)
        return self._before[node_id]

    def _names(self, writers: Iterable[str]) -> list[str]:
        return sorted([INPUT, *(f"{writer}.{key}" for writer in writers for key in self._keys.get(writer) or ())])


def _key_in(name: str, keys: Iterable[str] | None) -> tuple[str, tuple[str, ...]] | None:
    """A name as a key and what is inside of its value; None if there is no such key. Keys may hold dots."""
    if keys is not None and name in keys:
        return name, ()
    key, *path = name.split(".")
    return None if keys is not None and key not in keys else (key, tuple(path))
