"""Scheduling of nodes: pure functions from a plan and the progress of an execution to the next move.

A node is decided when all its edges that do not go back are decided: it runs if one was taken, else it is skipped. Back
edges wait until no node runs on which their loop depends; then another pass begins, or the loop is left.

In a further pass an edge from outside the loop only carries data: it has started its target once. A node after a loop
that may go on, to which nothing in the loop leads yet, waits until the loop is over: a later pass may still lead there.

A cycle is a largest set of nodes that all lead to each other. A loop is one or more cycles with all nodes after them:
they run again together. One time through a loop is a pass; `iteration` is its number, from 0. A round of a cycle is one
time that its back edges were followed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from perdure.agent_workflows.definition.values import END, START, Edge
from perdure.agent_workflows.plan import EdgeKey, Plan, reach

Decision: TypeAlias = Literal["taken", "not_taken", "blocked", "spent"]
"""`spent` was taken in an earlier pass and has started its target then: it still carries data, but starts nothing."""
Status: TypeAlias = Literal["acting", "completed", "isolated", "failed", "skipped", "blocked"]
"""`acting` has a task. `isolated` failed, and all goes on. `failed` makes the nodes that depend on it `blocked`."""
Outcome: TypeAlias = Literal["completed", "isolated", "failed"]
"""The status of a node that has run."""

# How many edges a reason names.
_REASONS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an execution. A node or edge that is not in it is not decided yet. The field names are stored.

    Attributes:
        passes: The number of further passes, by loop.
        rounds: The number of times that back edges were followed, by cycle.
        nodes: The status of each node.
        edges: The decision of each edge, by source and target.
        skipped: The reasons why nodes were skipped.
        held: The back edges that hold and were not followed yet.
        followed: The back edges that started the current pass of each loop.
        denied: The denials by node, as texts.
        halted: The reason why no further task is started.
    """

    passes: Mapping[str, int] = field(default_factory=dict[str, int])
    rounds: Mapping[str, int] = field(default_factory=dict[str, int])
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    edges: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    held: tuple[tuple[str, str], ...] = ()
    followed: tuple[tuple[str, str], ...] = ()
    denied: Mapping[str, str] = field(default_factory=dict[str, str])
    halted: str | None = None

    def decision(self, source: str, target: str) -> str | None:
        """Return the decision of an edge; None if there is none yet."""
        return self.edges.get(source, {}).get(target)

    def iteration(self, loop: int | None) -> int:
        """Return the number of the pass that a loop is in, from 0; 0 without a loop."""
        return 0 if loop is None else self.passes.get(str(loop), 0)

    def round(self, cycle: int) -> int:
        """Return how often the back edges of a cycle were followed."""
        return self.rounds.get(str(cycle), 0)

    @property
    def active(self) -> frozenset[str]:
        """Return the nodes that have a task."""
        return frozenset(node_id for node_id, status in self.nodes.items() if status == "acting")

    def to_text(self) -> str:
        """Return the progress as JSON. It is stored after each result; one text is faster to store than many values."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Progress:
        """Read what `to_text` wrote."""
        found: dict[str, Any] = json.loads(text)
        for name in ("held", "followed"):
            found[name] = tuple((source, target) for source, target in found[name])
        return cls(**found)


@dataclass(frozen=True, slots=True)
class Move:
    """The next move: the edges taken, the nodes to start, the nodes skipped, and the progress after it."""

    progress: Progress
    taken: tuple[Edge, ...] = ()
    starts: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()


def begin(plan: Plan, holding: Collection[str] | None = None) -> Move:
    """Return the first move. `holding` are the targets of edges from START whose conditions hold; by default all."""
    targets = set(plan.outgoing.targets(START)) if holding is None else holding
    change = _Change(plan, Progress())
    change.decide_edges(START, targets)
    change.settle(plan.outgoing.targets(START))
    return change.move()


def finish(
    plan: Plan,
    progress: Progress,
    node_id: str,
    outcome: Outcome,
    holding: Collection[str] = (),
    *,
    denied: str | None = None,
) -> Move:
    """Return the move after a node has ended. `holding` are the targets of its edges whose conditions hold.

    `denied` is the text of the denial, if the node failed by one.
    """
    assert progress.nodes.get(node_id) == "acting", f"node {node_id!r} has no task"
    others = {each: text for each, text in progress.denied.items() if each != node_id}
    change = _Change(plan, replace(progress, denied=others if denied is None else {**others, node_id: denied}))
    change.nodes[node_id] = outcome
    if progress.halted is not None:
        change.close_edges(node_id, "not_taken")
    elif outcome == "failed":
        change.close_edges(node_id, "blocked")
    else:
        change.decide_edges(node_id, holding)
    change.settle(plan.forward_from.targets(node_id))
    return change.move()


def idle_loops(plan: Plan, progress: Progress) -> list[tuple[int, tuple[EdgeKey, ...]]]:
    """Return the loops whose pass has ended, each with the back edges that are to be followed.

    No node runs in them or before them. Nodes that run elsewhere cannot influence them.
    """
    if not progress.held:
        return []
    active = progress.active
    found: dict[int, list[EdgeKey]] = {}
    for key in progress.held:
        loop = plan.loop_of(key[1])
        assert loop is not None, "a back edge is part of a loop"
        if not plan.influencing[loop] & active:
            found.setdefault(loop, []).append(key)
    return [(loop, _outermost(plan, tuple(keys))) for loop, keys in sorted(found.items())]


def _outermost(plan: Plan, held: tuple[EdgeKey, ...]) -> tuple[EdgeKey, ...]:
    """Return the back edges whose source no other one decides again.

    If two do that to each other, the one that goes back further counts, or both if neither does.
    """
    rerun = {target: plan.rerun_from(target) for _, target in held}

    def outer_than(key: EdgeKey) -> list[EdgeKey]:
        return [other for other in held if key[0] in rerun[other[1]] and other[1] not in rerun[key[1]]]

    outer = {key: reach([key], outer_than) for key in held}
    return tuple(key for key in held if not any(key not in outer[other] for other in outer[key]))


def follow(plan: Plan, progress: Progress, loop: int) -> Move:
    """Return the first move of a further pass: the back edges of a loop that hold are followed.

    All nodes after their targets are undecided again. A held back edge from one of these nodes does not hold any more.
    """
    keys = _held_in(plan, progress, loop)
    assert keys, "a back edge holds"
    assert not plan.influencing[loop] & progress.active, "a pass begins when no node runs that can influence it"
    targets = {target for _, target in keys}
    again = frozenset[str]().union(*map(plan.rerun_from, targets))
    rounds = {str(cycle): progress.round(cycle) + 1 for cycle in sorted({plan.cycle_of(key) for key in keys})}
    change = _Change(
        plan,
        replace(
            progress,
            passes={**progress.passes, str(loop): progress.iteration(loop) + 1},
            rounds={**progress.rounds, **rounds},
            nodes={each: status for each, status in progress.nodes.items() if each not in again},
            edges={
                source: _spend(decisions, progress, again)
                for source, decisions in progress.edges.items()
                if source not in again
            },
            skipped={each: reason for each, reason in progress.skipped.items() if each not in again},
            held=tuple(key for key in progress.held if key[0] not in again and key not in keys),
            followed=(*(key for key in progress.followed if key[1] not in again), *keys),
        ),
    )
    change.taken.extend(edge for edge in plan.edges if (edge.source, edge.target) in keys)
    # A source that is not decided again has taken its back edge, and so not its default edge.
    passed = _undecided_from(plan, progress, [source for source, _ in keys if source not in again])
    for edge in passed:
        change.decide(edge, "not_taken")
    change.settle((*targets, *(edge.target for edge in passed)))
    return change.move()


def _undecided_from(plan: Plan, progress: Progress, sources: Iterable[str]) -> list[Edge]:
    return [
        edge
        for source in dict.fromkeys(sources)
        for edge in plan.forward_from[source]
        if progress.decision(edge.source, edge.target) is None
    ]


def _spend(decisions: Mapping[str, str], progress: Progress, again: Collection[str]) -> Mapping[str, str]:
    """Mark the edges from outside a pass as spent that have started a node in it."""
    spent = {
        target: "spent"
        for target, decision in decisions.items()
        if decision == "taken" and target in again and progress.nodes.get(target) in get_args(Outcome)
    }
    return {**decisions, **spent} if spent else decisions


def leave(plan: Plan, progress: Progress, loop: int, cycle: int | None = None) -> Move:
    """Return the move that leaves a loop, or one cycle of it: its back edges no longer hold, and defaults are taken."""
    keys = [key for key in _held_in(plan, progress, loop) if cycle in {None, plan.cycle_of(key)}]
    change = _Change(plan, replace(progress, held=tuple(key for key in progress.held if key not in keys)))
    waiting = _undecided_from(plan, progress, [source for source, _ in keys])
    for edge in waiting:
        change.decide(edge, "taken")
    change.settle(edge.target for edge in waiting)
    return change.move()


def _held_in(plan: Plan, progress: Progress, loop: int) -> tuple[EdgeKey, ...]:
    return _outermost(plan, tuple(key for key in progress.held if plan.loop_of(key[1]) == loop))


def halt(plan: Plan, progress: Progress, node_ids: Iterable[str], reason: str) -> Move:
    """Return the move after a failure that starts no further node: undecided nodes are skipped, running ones may end.

    If there are several reasons, the first counts.
    """
    change = _Change(plan, replace(progress, held=(), halted=progress.halted or reason))
    for node_id in node_ids:
        change.nodes[node_id] = "failed"
        change.close_edges(node_id, "not_taken")
    for node_id in [each for layer in plan.layers for each in layer if each not in progress.nodes]:
        change.skip(node_id, reason, "skipped")
    return change.move()


class _Change:
    """A progress being changed. The one that it starts from stays as it is."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self.nodes = dict(progress.nodes)
        self._edges: dict[str, Mapping[str, str]] = dict(progress.edges)
        # The decisions of sources that were copied to be changed.
        self._own_edges: dict[str, dict[str, str]] = {}
        self._skipped = dict(progress.skipped)
        self._progress = replace(progress, nodes=self.nodes, edges=self._edges, skipped=self._skipped)
        self._held = list(progress.held)
        self.taken: list[Edge] = []
        self._starts: list[str] = []
        self._skips: list[str] = []

    def decide(self, edge: Edge, decision: Decision) -> None:
        """Decide an edge. A back edge that is taken is only held."""
        if self._plan.is_back(edge):
            if decision == "taken":
                self._held.append((edge.source, edge.target))
            return
        if edge.source not in self._own_edges:
            self._edges[edge.source] = self._own_edges[edge.source] = dict(self._edges.get(edge.source, {}))
        self._own_edges[edge.source][edge.target] = decision
        if decision == "taken":
            self.taken.append(edge)

    def decide_edges(self, source: str, holding: Collection[str]) -> None:
        """Decide the edges of a node that has ended.

        If only back edges hold, the default edges wait: they are taken if the loop is left.
        """
        edges = self._plan.outgoing[source]
        held = [edge for edge in edges if edge.is_conditional and edge.target in holding]
        only_back = bool(held) and all(self._plan.is_back(edge) for edge in held)
        for edge in edges:
            if edge.is_default:
                if not only_back or self._plan.is_back(edge):
                    self.decide(edge, "not_taken" if held else "taken")
            else:
                is_taken = not edge.is_conditional or edge.target in holding
                self.decide(edge, "taken" if is_taken else "not_taken")

    def close_edges(self, source: str, decision: Decision) -> None:
        """Decide all edges of a node in the same way."""
        for edge in self._plan.outgoing[source]:
            self.decide(edge, decision)

    def skip(self, node_id: str, reason: str, status: Status) -> None:
        """Skip a node."""
        self.nodes[node_id] = status
        self._skipped[node_id] = reason
        self._skips.append(node_id)
        self.close_edges(node_id, "blocked" if status == "blocked" else "not_taken")

    def settle(self, candidates: Iterable[str]) -> None:
        """Decide the candidates that can be decided now, and all nodes that follow from them."""
        self._settle(candidates)
        while freed := self._find_freed():
            self._settle(freed)

    def _settle(self, candidates: Iterable[str]) -> None:
        pending = deque(each for each in dict.fromkeys(candidates) if each != END)
        while pending:
            node_id = pending.popleft()
            if node_id in self.nodes or None in self._decisions(node_id).values():
                continue
            self._decide_node(node_id)
            if self.nodes.get(node_id, "acting") != "acting":
                pending.extend(edge.target for edge in self._plan.forward_from[node_id] if edge.target != END)

    def _find_freed(self) -> list[str]:
        """Return the nodes that waited for loops which are over now."""
        undecided = [each for each in self._plan.after_cycles if each not in self.nodes]
        if not undecided:
            return []
        open_ = frozenset(number for number in range(len(self._plan.cycles)) if self._is_open(number))
        freed = [each for each in undecided if not open_ & self._plan.cycles_before(each)]
        return [each for each in freed if None not in self._decisions(each).values()]

    def _is_open(self, cycle: int) -> bool:
        """Return True if a cycle may go on: a node in it or before it is undecided or runs, or a back edge holds."""
        nodes = self._plan.leading_to_cycle[cycle]
        return any(target in nodes for _, target in self._held) or any(
            self.nodes.get(each, "acting") == "acting" for each in nodes
        )

    def _decisions(self, node_id: str) -> dict[str, str | None]:
        return {each: self._progress.decision(each, node_id) for each in self._plan.forward_to.sources(node_id)}

    def _decide_node(self, node_id: str) -> None:
        decisions = self._decisions(node_id)
        is_blocked = "blocked" in decisions.values()
        taken = [] if is_blocked else [source for source, decision in decisions.items() if decision == "taken"]
        is_followed = any(target == node_id for _, target in self._progress.followed)
        if is_blocked or not is_followed:
            if self._must_wait(node_id, taken):
                return
            if not taken:
                reason = skip_reason(self._plan, self._progress, node_id)
                self.skip(node_id, reason, "blocked" if is_blocked else "skipped")
                return
        self.nodes[node_id] = "acting"
        self._starts.append(node_id)

    def _must_wait(self, node_id: str, taken: Iterable[str]) -> bool:
        """Return True if a node is after open cycles, and none of the edges taken to it comes from one of them."""
        open_ = {cycle for cycle in self._plan.cycles_before(node_id) if self._is_open(cycle)}
        return bool(open_) and not any(self._plan.cycles_up_to(source) & open_ for source in taken)

    def move(self) -> Move:
        """Return the move, in the order of the plan."""
        progress, in_order = replace(self._progress, held=tuple(self._held)), self._plan.in_order
        return Move(progress, tuple(self.taken), in_order(self._starts), in_order(self._skips))


def skip_reason(plan: Plan, progress: Progress, node_id: str) -> str:
    """Explain why a node is skipped, by the first few of its edges."""
    edges = plan.forward_to[node_id]
    blocked = [edge for edge in edges if progress.decision(edge.source, edge.target) == "blocked"]
    reasons = [_blocked_reason(plan, progress, edge.source) for edge in blocked[:_REASONS_MAX]]
    reasons = reasons or [_not_taken_reason(progress, edge) for edge in edges[:_REASONS_MAX]]
    more = len(blocked or edges) - len(reasons)
    return "; ".join([*reasons, *([f"and the same with {more} more"] if more else [])]) or "nothing leads to it"


def _blocked_reason(plan: Plan, progress: Progress, source: str) -> str:
    """Name the failed node because of which edges are blocked, over any number of skipped ones."""
    failed: str | None = source
    while failed is not None and progress.nodes.get(failed) != "failed":
        sources = plan.forward_to.sources(failed)
        failed = next((each for each in sources if progress.decision(each, failed) == "blocked"), None)
    why = "a node before it has failed" if failed is None else progress.denied.get(failed, f"{failed!r} has failed")
    return why if failed == source else f"{source!r} was skipped: {why}"


def denial_text(actor: str, reason: str) -> str:
    """Return the text of a person's denial."""
    return f"{actor!r} was denied: {reason}"


def _not_taken_reason(progress: Progress, edge: Edge) -> str:
    if progress.decision(edge.source, edge.target) == "spent":
        return f"{edge.name} has counted in an earlier pass"
    if edge.source != START and progress.nodes.get(edge.source) == "skipped":
        return f"{edge.source!r} was skipped"
    if edge.is_default:
        return f"{edge.name} was not needed: another condition of {edge.source!r} holds"
    return f"{edge.name} was not taken: it needs {edge.requirement}"
