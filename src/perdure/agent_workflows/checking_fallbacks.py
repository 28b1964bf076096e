"""What is wrong with the nodes that stand in for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perdure.agent_workflows.definition import Definition, Node


def fallback_problems(definition: Definition) -> Iterator[str]:
    """All that is wrong with them."""
    nodes = {node.id: node for node in definition.nodes}
    for node in definition.nodes:
        yield from _naming_problems(node, nodes)
    yield from _circle_problems(nodes)
    named = {node.on_error.fallback for node in definition.nodes if node.on_error.mode == "fallback"}
    for fallback in (node for node in definition.nodes if node.id in named):
        yield from _own_problems(definition, fallback)


def _naming_problems(node: Node, nodes: Mapping[str, Node]) -> Iterator[str]:
    mode, fallback = node.on_error.mode, node.on_error.fallback
    if mode not in {"stop", "skip_dependents", "isolate", "fallback"}:
        yield f"node {node.id!r}: on_error is 'stop', 'skip_dependents', 'isolate' or 'fallback', not {mode!r}"
    elif mode == "fallback" and not fallback:
        yield f"node {node.id!r} is to have a fallback, and names none"
    elif mode != "fallback" and fallback:
        yield f"node {node.id!r} names the fallback {fallback!r}, and its on_error is {mode!r}: make it 'fallback'"
    elif fallback == node.id:
        yield f"node {node.id!r} is its own fallback: name another one, or give it a retry"
    elif fallback and fallback not in nodes:
        yield f"node {node.id!r}: there is no node {fallback!r} to stand in for it"


def _circle_problems(nodes: Mapping[str, Node]) -> Iterator[str]:
    told: set[str] = set()
    for node_id in nodes:
        way: list[str] = []
        each: str | None = node_id
        while each is not None and each in nodes and each not in way:
            way.append(each)
            each = nodes[each].on_error.fallback
        if each in way and len(way) > 1 and told.isdisjoint(way):
            told.update(way)
            circle = [*way[way.index(each) :], each]
            yield f"fallbacks stand in for each other in a circle: {' -> '.join(map(repr, circle))}"


def _own_problems(definition: Definition, fallback: Node) -> Iterator[str]:
    for edge in definition.edges:
        if fallback.id in {edge.source, edge.target}:
            yield (
                f"node {fallback.id!r} stands in for others, so it has no edges of its own: what follows is decided by "
                f"those of the node that has failed; leave out {edge.source!r} -> {edge.target!r}, or use two nodes"
            )
    if fallback.template is not None or fallback.input_key is not None or fallback.reads is not None:
        yield (
            f"node {fallback.id!r} stands in for others, and is given their task: leave out its template, input_key "
            "and reads"
        )
