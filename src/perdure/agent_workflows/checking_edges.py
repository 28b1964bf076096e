"""What is wrong with the ways of a definition: its edges, and who stands in for whom."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perdure.agent_workflows.checking_words import listed
from perdure.agent_workflows.conditions_fields import paths_of
from perdure.agent_workflows.definition import END, INPUT, START
from perdure.agent_workflows.outputs import keys_with_fallbacks
from perdure.agent_workflows.outputs_paths import dead_end
from perdure.agent_workflows.reasons import way_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
    if edge.source == START:
        yield from (
            f"edge {way} depends on {path!r}, which {START!r} never puts out; it has {INPUT!r}"
            for path in sorted(paths_of(edge.condition))
            if path.split(".")[0] != INPUT
        )
    elif edge.source in nodes:
        yield from (
            f"edge {way} depends on {why}" for why in dead_ends(nodes[edge.source], nodes, paths_of(edge.condition))
        )


def dead_ends(node: Node, nodes: Mapping[str, Node], paths: Iterable[str]) -> Iterator[str]:
    """Of paths that are looked up in what a node puts out: those that lead nowhere, and why."""
    keys = keys_with_fallbacks(node, nodes)
    for path in sorted(paths):
        key, *inner = path.split(".")
        if keys is not None and key not in keys:
            yield f"{path!r}, which {node.id!r} never puts out; it has {listed(sorted(keys))}"
        elif (why := dead_end(node, nodes, key, inner)) is not None:
            yield f"{path!r}, which is never there: {why}"


def _default_problems(definition: Definition) -> Iterator[str]:
    choosing = {edge.source for edge in definition.edges if edge.is_conditional}
    for edge in definition.edges:
        if edge.is_default and edge.source not in choosing:
            yield (
                f"edge {way_in_words(edge)} is a default, and no other edge of {edge.source!r} has a condition: give "
                "one a condition, or leave out as_default()"
            )


def fallback_problems(definition: Definition) -> Iterator[str]:
    """All that is wrong with them."""
    nodes = {node.id: node for node in definition.nodes}
    for node in definition.nodes:
        yield from _naming_problems(node, nodes)
    yield from _circle_problems(nodes)
    named = {node.on_error.fallback for node in definition.nodes if node.on_error.mode == "fallback"}
    for fallback in (node for node in definition.nodes if node.id in named):
        yield from _stand_in_problems(definition, fallback)


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


def _stand_in_problems(definition: Definition, fallback: Node) -> Iterator[str]:
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
