"""What is wrong with a definition: nodes, edges, loops, fallbacks. All is found at once, and nothing is raised."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from perdure.agent_workflows.checking_edges import dead_ends, edge_problems, fallback_problems
from perdure.agent_workflows.checking_kinds import sound
from perdure.agent_workflows.checking_words import listed
from perdure.agent_workflows.conditions import Condition
from perdure.agent_workflows.conditions_fields import paths_of
from perdure.agent_workflows.definition import END, INPUT, START, Handoffs, OnError, TextOutput
from perdure.agent_workflows.outputs import output_keys
from perdure.agent_workflows.plan import plan_of, reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.agent_workflows.definition import Definition, Node

CONDUCTOR: Final = "conductor"
"""The id of the executor that leads the nodes."""
_RESERVED: Final = frozenset({START, END, INPUT, CONDUCTOR})
_UNREADABLE: Final = re.compile(r"[.{}?]|^\s|\s$")
"""What would make `{{node.key?}}` mean something else."""
_KEY_RULE: Final = "a key has no '.', '?' or braces, and no space at its ends"


def problems(definition: Definition) -> list[str]:
    """All that is wrong with the structure of a definition; an empty list if nothing is."""
    definition, wrong = sound(definition)
    if not definition.nodes:
        return [*wrong, "there is no node: add one with add_agent(...)"]
    graph = [*_id_problems(definition), *edge_problems(definition), *fallback_problems(definition)]
    others = [problem for node in definition.nodes for problem in _node_problems(definition, node)]
    # Whether something can be reached is a question about edges that make sense.
    return [*wrong, *(graph or _reach_problems(definition)), *others, *_setting_problems(definition)]


def _id_problems(definition: Definition) -> Iterator[str]:
    for node_id, count in Counter(node.id for node in definition.nodes).items():
        if not node_id:
            yield "a node has an empty id: give it one"
        elif node_id in _RESERVED:
            yield f"the id {node_id!r} stands for something else: give the node another one"
        elif _UNREADABLE.search(node_id):
            yield f"node {node_id!r}: an id has no '.', '?' or braces, and no space at its ends, for '{{{{node.key}}}}'"
        if count > 1:
            yield f"{count} nodes have the id {node_id!r}: give each its own"


def _setting_problems(definition: Definition) -> Iterator[str]:
    if definition.iterations.limit < 1:
        yield f"a loop has at least one pass: its limit is 1 or more, not {definition.iterations.limit}"
    if _is_no_time(definition.timeout):
        yield f"the timeout of the workflow is more than 0, not {definition.timeout}; leave it out for no limit"
    yield from _thread_problems(definition)


def _thread_problems(definition: Definition) -> Iterator[str]:
    policy = definition.conversation
    if policy.root_id is None:
        return
    # Nodes have ids of their own, so no two of them have one thread.
    for node_id in dict.fromkeys(node.id for node in definition.nodes):
        if policy.thread_of(node_id) == policy.root_id:
            yield (
                f"the thread of node {node_id!r} would be {policy.root_id!r}, which is the root that the threads of "
                "all nodes are forks of: give the conversation policy another thread_prefix or root_thread_id, or the "
                "node another id"
            )


def _node_problems(definition: Definition, node: Node) -> Iterator[str]:
    if _is_no_time(node.timeout):
        yield f"node {node.id!r}: its timeout is more than 0, not {node.timeout}; leave it out for no limit"
    approval = node.approval
    if approval is not None:
        if _is_no_time(approval.timeout):
            yield f"node {node.id!r}: the timeout of its approval is more than 0, not {approval.timeout}"
        yield from _approval_problems(node, approval.when)
    if isinstance(node.output, Handoffs):
        yield from _router_problems(definition, node, node.output)
    if node.output == TextOutput(INPUT):
        yield f"node {node.id!r}: the key {INPUT!r} is that of the request: give what it says another output_key"
    for key in sorted(output_keys(node) or ()):
        if _UNREADABLE.search(key) if isinstance(node.output, TextOutput) else "." in key:
            yield f"node {node.id!r}: its output {key!r} could not be read as '{{{{node.key}}}}'; {_KEY_RULE}"


def _is_no_time(given: timedelta | float | None) -> bool:
    return given is not None and (given.total_seconds() if isinstance(given, timedelta) else given) <= 0


def _approval_problems(node: Node, when: object) -> Iterator[str]:
    if isinstance(when, Condition):
        # It is asked when the node itself has spoken, so nobody stands in for it.
        for why in dead_ends(replace(node, on_error=OnError()), {}, paths_of(when)):
            yield f"node {node.id!r}: its approval depends on {why}"


def _router_problems(definition: Definition, node: Node, handoffs: Handoffs) -> Iterator[str]:
    if not handoffs.targets:
        yield f"router {node.id!r} has nobody to choose: add one with with_handoff(...)"
    ids = {each.id for each in definition.nodes}
    joined = {edge.target for edge in definition.edges if edge.source == node.id}
    for target in handoffs.targets:
        if target not in ids:
            yield f"router {node.id!r} may choose {target!r}, which is no node: add it, or leave the handoff out"
        elif target not in joined:
            add = f"from_({node.id!r}).to({target!r})"
            yield f"router {node.id!r} may choose {target!r}, and no edge leads there: add {add}"
    if handoffs.default is not None and handoffs.default not in handoffs.targets:
        known = listed(handoffs.targets)
        yield f"router {node.id!r}: its default {handoffs.default!r} is none of its handoffs: {known}"


def _reach_problems(definition: Definition) -> Iterator[str]:
    """The nodes that nothing leads to from START, and those that lead nowhere."""
    plan = plan_of(definition)
    ids = [node.id for node in definition.nodes if node.id not in plan.fallbacks]
    begun = reached([START], lambda id_: (edge.target for edge in plan.outgoing(id_)))
    lost = [id_ for id_ in ids if id_ not in begun]
    if lost:
        yield (
            f"nothing leads to {listed(lost)}: each follows another of them; say where it begins, as in "
            f"from_(START).to({lost[0]!r})"
        )
    ending = reached([END], lambda id_: (edge.source for edge in plan.incoming(id_)))
    endless = [id_ for id_ in ids if id_ not in ending]
    if endless:
        yield (
            f"no end can be reached from {listed(endless)}: say where the loop is left, as in "
            f"from_({endless[-1]!r}).to(END).as_default()"
        )
