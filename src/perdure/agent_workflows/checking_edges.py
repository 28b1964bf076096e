"""What is wrong with the edges of a definition."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perdure.agent_workflows.definition import END, ERROR, INPUT, START
from perdure.agent_workflows.outputs import output_keys
from perdure.agent_workflows.reasons import way_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perdure.agent_workflows.definition import Definition, Edge, Node


def edge_problems(definition: Definition) -> Iterator[str]:
    """All that is wrong with the edges, one by one and beside each other."""
    nodes = {node.id: node for node in definition.nodes}
    for edge in definition.edges:
        yield from _end_problems(edge, nodes)
        yield from _condition_problems(edge, nodes)
    for (source, target), count in Counter((edge.source, edge.target) for edge in definition.edges).items():
        if count > 1:
            yield f"{count} edges lead from {source!r} to {target!r}: declare one, with conditions joined by '|' or '&'"
    yield from _default_problems(definition)


def _end_problems(edge: Edge, nodes: Mapping[str, Node]) -> Iterator[str]:
    way = way_in_words(edge)
    if edge.target == START:
        yield f"edge {way}: nothing leads to START; name the first node"
    elif edge.target != END and edge.target not in nodes:
        yield f"edge {way}: there is no node {edge.target!r}"
    if edge.source == END:
        yield f"edge {way}: nothing follows END; name a node before it"
    elif edge.source != START and edge.source not in nodes:
        yield f"edge {way}: there is no node {edge.source!r}"
    if (edge.source, edge.target) == (START, END):
        yield f"edge {way}: a node has to be between the two"


def _condition_problems(edge: Edge, nodes: Mapping[str, Node]) -> Iterator[str]:
    way = way_in_words(edge)
    if edge.is_default and edge.is_conditional:
        yield f"edge {way} is a default and has a condition: it can be one of the two"
    if edge.condition is None:
        return
    keys = _keys(edge.source, nodes)
    if keys is None:
        return
    for field in sorted(edge.condition.fields()):
        if field.split(".")[0] not in keys:
            has = ", ".join(map(repr, sorted(keys)))
            yield f"edge {way} depends on {field!r}, which {edge.source!r} never puts out; it has {has}"


def _keys(source: str, nodes: Mapping[str, Node]) -> frozenset[str] | None:
    """All keys that conditions may find: also those of a failure, and of whoever stands in. None: not known."""
    if source == START:
        return frozenset({INPUT})
    found: frozenset[str] = frozenset()
    seen: set[str] = set()
    while source in nodes and source not in seen:
        seen.add(source)
        keys = output_keys(nodes[source])
        if keys is None:
            return None
        on_error = nodes[source].on_error
        found |= keys | ({ERROR} if on_error.mode == "isolate" else set[str]())
        source = on_error.fallback or ""
    return found if seen else None


def _default_problems(definition: Definition) -> Iterator[str]:
    choosing = {edge.source for edge in definition.edges if edge.is_conditional}
    for edge in definition.edges:
        if edge.is_default and edge.source not in choosing:
            yield (
                f"edge {way_in_words(edge)} is a default, and no other edge of {edge.source!r} has a condition: give "
                "one a condition, or leave out as_default()"
            )
