"""All graphs of three nodes, with edges of every kind: what holds for each of them, however their nodes end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import pytest
from tests.agent_workflows.conducting import defined, node, otherwise, when

from perdure.agent_workflows import END, START, Edge
from perdure.agent_workflows.conductor.scheduling import begin, finish, follow, idle_loops, leave
from perdure.agent_workflows.plan import Plan
from perdure.agent_workflows.validation import find_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.agent_workflows import Definition
    from perdure.agent_workflows.conductor.scheduling import Move, Outcome

IDS = ("a", "b", "c")
NODES = [node(each) for each in IDS]
WAYS = [(source, target) for source, target in product(IDS, IDS)]
PASSES_MAX = 3
Trace: TypeAlias = list[tuple[int, str, str]]
"""What became of nodes: pass, node, and `acts` or `skips`."""


def _definitions(*starts: str) -> Iterator[Definition]:
    """Every set of edges among three nodes that can be run; the kinds of edges take turns, shifted each time."""
    for number in range(1 << len(WAYS)):
        chosen = [way for place, way in enumerate(WAYS) if number >> place & 1]
        edges = [_edge(source, target, (place + number) % 3) for place, (source, target) in enumerate(chosen)]
        choosing = {edge.source for edge in edges if edge.condition is not None}
        made = [
            edge if not edge.is_default or edge.source in choosing else Edge(edge.source, edge.target) for edge in edges
        ]
        begun = [f"{START}>{each}" for each in starts or "a"]
        definition = defined(NODES, *begun, *made, otherwise(f"c>{END}") if "c" in choosing else f"c>{END}")
        if not find_problems(definition):
            yield definition


def _edge(source: str, target: str, kind: int) -> Edge:
    way = f"{source}>{target}"
    return (Edge(source, target), when(way), otherwise(way))[kind]


def _outcome(script: int, node_id: str, iteration: int) -> tuple[Outcome, set[str]]:
    """Return the outcome of a node and the edges that hold, different for each script, node and pass."""
    seed = script * 31 + IDS.index(node_id) * 7 + iteration * 3
    outcome: Outcome = "failed" if seed % 11 == 0 else "isolated" if seed % 7 == 0 else "completed"
    return outcome, {each for place, each in enumerate((*IDS, END)) if (seed >> place) & 1}


def _pass(plan: Plan, move: Move, node_id: str) -> int:
    return move.progress.iteration(plan.loop_of(node_id))


def _played(plan: Plan, script: int, choose: Callable[[list[str]], str], *, waits_least: bool = True) -> Trace:
    """Finish nodes in the chosen order until none runs. This must terminate.

    A loop goes on at once when nobody acts whom it depends on; or it waits until nobody acts at all.
    """
    trace: Trace = []
    at_work: list[str] = []
    move = begin(plan)
    for _ in range(200):
        trace += [(_pass(plan, move, each), each, "acts") for each in move.starts]
        trace += [(_pass(plan, move, each), each, "skips") for each in move.skips]
        at_work += move.starts
        quiet = idle_loops(plan, move.progress)
        if quiet and (waits_least or not at_work):
            loop, _ = quiet[0]
            move = (follow if move.progress.iteration(loop) + 1 < PASSES_MAX else leave)(plan, move.progress, loop)
        elif at_work:
            chosen = choose(at_work)
            at_work.remove(chosen)
            move = finish(plan, move.progress, chosen, *_outcome(script, chosen, _pass(plan, move, chosen)))
        else:
            _require_all_decided(plan, move)
            return trace
    raise AssertionError(f"it does not end: {plan.edges}")


def _require_all_decided(plan: Plan, move: Move) -> None:
    assert set(move.progress.nodes) == set(IDS)
    undecided = [
        edge
        for edge in plan.edges
        if not plan.is_back(edge) and move.progress.decision(edge.source, edge.target) is None
    ]
    assert undecided == []
    for node_id in IDS:
        decisions = {move.progress.decision(edge.source, node_id) for edge in plan.forward_to[node_id]}
        is_called = any(target == node_id for _, target in move.progress.followed)
        acted = move.progress.nodes[node_id] not in {"skipped", "blocked"}
        assert acted == ("blocked" not in decisions and ("taken" in decisions or is_called))


@pytest.mark.parametrize("starts", ["a", "ab", "bc"])
def test_every_node_is_decided_once_in_each_pass_and_the_order_of_results_changes_nothing(starts: str) -> None:
    count = 0
    for definition in _definitions(*starts):
        plan = Plan(definition)
        for script in range(3):
            one = _played(plan, script, lambda at_work: at_work[0])
            other = _played(plan, script, lambda at_work: at_work[-1])
            patient = _played(plan, script, lambda at_work: at_work[0], waits_least=False)
            assert sorted(one) == sorted(other) == sorted(patient), plan.edges
            twice = [each for each, times in Counter((number, id_) for number, id_, _ in one).items() if times > 1]
            assert not twice, plan.edges
            count += 1
    assert count > 500


def test_the_order_of_declaration_changes_nothing() -> None:
    for definition in _definitions("a", "b"):
        plan = Plan(definition)
        turned = replace(definition, nodes=definition.nodes[::-1], edges=definition.edges[::-1])
        shifted = replace(definition, edges=(*definition.edges[2:], *definition.edges[:2]))
        for other in map(Plan, (turned, shifted)):
            assert other.back_edges == plan.back_edges
            for script in range(2):
                one, another = (_played(each, script, lambda at_work: at_work[0]) for each in (plan, other))
                assert sorted(one) == sorted(another), plan.edges
