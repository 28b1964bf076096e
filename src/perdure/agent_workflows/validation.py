"""Validation of definitions: kinds of values, nodes, edges, loops, fallbacks, inputs. It finds all problems at once."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from perdure.agent_workflows.definition import values
from perdure.agent_workflows.definition.conditions import Condition
from perdure.agent_workflows.errors import Place, path_of, problems_in, quoted
from perdure.agent_workflows.inputs import input_problems
from perdure.agent_workflows.outputs import find_dead_end, output_keys, readable_keys, title_of
from perdure.agent_workflows.plan import Plan, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


CONDUCTOR: Final = "conductor"
"""The id of the executor that starts the nodes."""
_RESERVED: Final = frozenset({values.START, values.END, values.INPUT, CONDUCTOR})
# Characters that would give `{{node.key?}}` another meaning.
_UNREADABLE: Final = re.compile(r"[.{}?]|^\s|\s$")
_KEY_RULE: Final = "a key has no '.', '?' or braces, and no space at its ends"
_KINDS: Final = TypeAdapter(values.Definition)


def check_kinds(definition: values.Definition) -> tuple[values.Definition, list[str]]:
    """Check the kinds of all values with pydantic. Return the definition with short forms made long, and the problems.

    A wrong value is replaced by its default, so that it does not hide other problems.
    """
    try:
        return _KINDS.validate_python(definition), []
    except ValidationError as error:
        found = problems_in(error, definition, lambda place: _name_place(definition, place))
    nodes, edges = [*definition.nodes], [*definition.edges]
    for place in found:
        match place:
            case ("nodes", int(number), str(name), *_):
                nodes[number] = _reset(nodes[number], name)
            case ("edges", int(number), str(name), *_):
                edges[number] = _reset(edges[number], name)
            case _:
                definition = _reset(definition, str(place[0]))
    corrected = _KINDS.validate_python(replace(definition, nodes=tuple(nodes), edges=tuple(edges)))
    return corrected, list(found.values())


def _name_place(definition: values.Definition, place: Place) -> str:
    match place:
        case ("nodes", int(number), *rest):
            return f"node {definition.nodes[number].id!r}: {path_of(tuple(rest))}"
        case ("edges", int(number), *rest):
            return f"edge {definition.edges[number].name}: {path_of(tuple(rest))}"
        case _:
            return path_of(place)


def _reset(value: Any, name: str) -> Any:
    [own] = [each for each in fields(value) if each.name == name]
    match name:
        case "id" | "source" | "target":
            default: Any = str(getattr(value, name))
        case "agent":
            default = values.AgentConfig()
        case "name":
            default = None
        case _:
            default = own.default if own.default_factory is MISSING else own.default_factory()
    return replace(value, **{name: default})


def find_problems(definition: values.Definition) -> list[str]:
    """Return all problems of a definition whose values have the right kinds, but those of inputs."""
    if not definition.nodes:
        return ["there is no node: add one with add_agent(...)"]
    graph = [*_id_problems(definition), *_edge_problems(definition), *_fallback_problems(definition)]
    others = [problem for node in definition.nodes for problem in _node_problems(definition, node)]
    # Reachability is a question only for edges that exist.
    return [*(graph or _reach_problems(definition)), *others, *_thread_problems(definition)]


def structure_problems(definition: values.Definition, routed_types: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Return all problems of nodes and edges, and of the inputs of nodes.

    `routed_types` are pairs of a node and a type by which an edge is routed.
    """
    problems = [*find_problems(definition), *_type_problems(definition, routed_types)]
    ids = [node.id for node in definition.nodes]
    if len(set(ids)) < len(ids) or not all(edge.source in {*ids, values.START} for edge in definition.edges):
        return problems  # The order of nodes is not known, so inputs cannot be resolved.
    known = tuple(edge for edge in definition.edges if edge.target in {*ids, values.END})
    return [*problems, *input_problems(Plan(replace(definition, edges=known)))]


def _id_problems(definition: values.Definition) -> Iterator[str]:
    for node_id, count in Counter(node.id for node in definition.nodes).items():
        if not node_id:
            yield "a node has an empty id: give it one"
        elif node_id in _RESERVED:
            yield f"the id {node_id!r} is reserved: give the node another one"
        elif _UNREADABLE.search(node_id):
            yield f"node {node_id!r}: an id has no '.', '?' or braces, and no space at its ends, for '{{{{node.key}}}}'"
        if count > 1:
            yield f"{count} nodes have the id {node_id!r}: give each its own"


def _edge_problems(definition: values.Definition) -> Iterator[str]:
    nodes = {node.id: node for node in definition.nodes}
    for edge in definition.edges:
        yield from _end_problems(edge, nodes)
        yield from _condition_problems(edge, nodes)
    for (source, target), count in Counter((edge.source, edge.target) for edge in definition.edges).items():
        if count > 1:
            yield f"{count} edges lead from {source!r} to {target!r}: declare one, with conditions joined by '|' or '&'"
    choosing = {edge.source for edge in definition.edges if edge.is_conditional}
    for edge in definition.edges:
        if edge.is_default and edge.source not in choosing:
            yield (
                f"edge {edge.name} is a default, and no other edge of {edge.source!r} has a condition: give one a "
                "condition, or leave out as_default()"
            )


def _end_problems(edge: values.Edge, nodes: Mapping[str, values.Node]) -> Iterator[str]:
    if edge.target == values.START:
        yield f"edge {edge.name}: nothing leads to START; name the first node"
    elif edge.target != values.END and edge.target not in nodes:
        yield f"edge {edge.name}: there is no node {edge.target!r}"
    if edge.source == values.END:
        yield f"edge {edge.name}: nothing follows END; name a node before it"
    elif edge.source != values.START and edge.source not in nodes:
        yield f"edge {edge.name}: there is no node {edge.source!r}"
    if (edge.source, edge.target) == (values.START, values.END):
        yield f"edge {edge.name}: a node has to be between the two"


def _condition_problems(edge: values.Edge, nodes: Mapping[str, values.Node]) -> Iterator[str]:
    if edge.is_default and edge.is_conditional:
        yield f"edge {edge.name} is a default and has a condition: it can be one of the two"
    if edge.condition is None:
        return
    if edge.source == values.START:
        for path in sorted(edge.condition.paths()):
            if path.split(".")[0] != values.INPUT:
                yield f"edge {edge.name} depends on {path!r}, which 'START' never puts out; it has 'input'"
    elif edge.source in nodes:
        for why in _dead_paths(nodes[edge.source], nodes, edge.condition):
            yield f"edge {edge.name} depends on {why}"


def _dead_paths(node: values.Node, nodes: Mapping[str, values.Node], condition: Condition) -> Iterator[str]:
    """Name the paths of a condition that can never exist in the outputs of a node."""
    keys = readable_keys(node, nodes)
    for path in sorted(condition.paths()):
        key, *inner = path.split(".")
        if keys is not None and key not in keys:
            yield f"{path!r}, which {node.id!r} never puts out; it has {quoted(sorted(keys))}"
        elif (why := find_dead_end(node, nodes, key, inner)) is not None:
            yield f"{path!r}, which is never there: {why}"


def _fallback_problems(definition: values.Definition) -> Iterator[str]:
    nodes = {node.id: node for node in definition.nodes}
    for node in definition.nodes:
        yield from _on_error_problems(node, nodes)
    yield from _fallback_cycles(nodes)
    named = {node.on_error.fallback for node in definition.nodes if node.on_error.mode == "fallback"}
    for node in (node for node in definition.nodes if node.id in named):
        for edge in definition.edges:
            if node.id in {edge.source, edge.target}:
                yield (
                    f"node {node.id!r} is a fallback, so it has no edges of its own: those of the failed node decide "
                    f"what follows; leave out {edge.name}, or use two nodes"
                )
        if node.template is not None or node.input_key is not None or node.reads is not None:
            yield (
                f"node {node.id!r} is a fallback, and gets the task of the failed node: leave out its template, "
                "input_key and reads"
            )


def _on_error_problems(node: values.Node, nodes: Mapping[str, values.Node]) -> Iterator[str]:
    mode, fallback = node.on_error.mode, node.on_error.fallback
    if mode == "fallback" and not fallback:
        yield f"node {node.id!r} has on_error 'fallback', but names no node: give on_error=fallback('node')"
    elif mode != "fallback" and fallback:
        yield f"node {node.id!r} names the fallback {fallback!r}, but its on_error is {mode!r}: make it 'fallback'"
    elif fallback == node.id:
        yield f"node {node.id!r} is its own fallback: name another one, or give it a retry"
    elif fallback and fallback not in nodes:
        yield f"node {node.id!r}: its fallback {fallback!r} does not exist; add that node"


def _fallback_cycles(nodes: Mapping[str, values.Node]) -> Iterator[str]:
    reported: set[str] = set()
    for node_id in nodes:
        chain: list[str] = []
        each: str | None = node_id
        while each is not None and each in nodes and each not in chain:
            chain.append(each)
            each = nodes[each].on_error.fallback
        if each in chain and len(chain) > 1 and reported.isdisjoint(chain):
            reported.update(chain)
            cycle = [*chain[chain.index(each) :], each]
            yield f"fallbacks form a cycle: {' -> '.join(map(repr, cycle))}; remove one of them"


def _node_problems(definition: values.Definition, node: values.Node) -> Iterator[str]:
    when = None if node.approval is None else node.approval.when
    if isinstance(when, Condition):
        # The node's own output is approved, so its fallback does not count.
        for why in _dead_paths(replace(node, on_error=values.OnError()), {}, when):
            yield f"node {node.id!r}: its approval depends on {why}"
    if isinstance(node.output, values.Handoffs):
        yield from _router_problems(definition, node, node.output)
    if node.output == values.TextOutput(values.INPUT):
        yield f"node {node.id!r}: the key {values.INPUT!r} is reserved for the request: give it another output_key"
    for key in sorted(output_keys(node) or ()):
        if _UNREADABLE.search(key) if isinstance(node.output, values.TextOutput) else "." in key:
            yield f"node {node.id!r}: its output {key!r} could not be read as '{{{{node.key}}}}'; {_KEY_RULE}"


def _router_problems(definition: values.Definition, node: values.Node, handoffs: values.Handoffs) -> Iterator[str]:
    ids = {each.id for each in definition.nodes}
    joined = {edge.target for edge in definition.edges if edge.source == node.id}
    for target in handoffs.targets:
        if target not in ids:
            yield f"router {node.id!r} may choose {target!r}, which is not a node: add it, or leave the handoff out"
        elif target not in joined:
            add = f"from_({node.id!r}).to({target!r})"
            yield f"router {node.id!r} may choose {target!r}, but no edge leads there: add {add}"
    if handoffs.default is not None and handoffs.default not in handoffs.targets:
        known = quoted(handoffs.targets)
        yield f"router {node.id!r}: its default {handoffs.default!r} is not one of its handoffs: {known}"


def _type_problems(definition: values.Definition, routed_types: Iterable[tuple[str, str]]) -> Iterator[str]:
    nodes = {node.id: node for node in definition.nodes}
    for source, name in routed_types:
        if source not in nodes:
            continue
        output = nodes[source].output
        known = [title_of(each) for each in output.types] if isinstance(output, values.UnionOutput) else []
        if not known:
            yield f"node {source!r} has no types to route by: give it union_output=[...]"
        elif name not in known:
            has = ", ".join(known)
            yield f"node {source!r} never puts out a {name!r}, so no edge can be routed by it; it has {has}"


def _thread_problems(definition: values.Definition) -> Iterator[str]:
    policy = definition.conversation
    if policy.root_id is None:
        return
    for node_id in dict.fromkeys(node.id for node in definition.nodes):
        if policy.thread_of(node_id) == policy.root_id:
            yield (
                f"the thread of node {node_id!r} would be {policy.root_id!r}, which is the root of all threads: give "
                "the conversation policy another thread_prefix or root_thread_id, or the node another id"
            )


def _reach_problems(definition: values.Definition) -> Iterator[str]:
    """Name the nodes that START does not lead to, and those that do not lead to END."""
    plan = Plan(definition)
    ids = [node.id for node in definition.nodes if node.id not in plan.fallbacks]
    started = reach([values.START], plan.outgoing.targets)
    lost = [id_ for id_ in ids if id_ not in started]
    if lost:
        yield (
            f"nothing leads to {quoted(lost)}: each follows another of them; say where it begins, as in "
            f"from_(START).to({lost[0]!r})"
        )
    ending = reach([values.END], plan.incoming.sources)
    endless = [id_ for id_ in ids if id_ not in ending]
    if endless:
        yield (
            f"no end can be reached from {quoted(endless)}: say where the loop is left, as in "
            f"from_({endless[-1]!r}).to(END).as_default()"
        )
