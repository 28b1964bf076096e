"""Who acts next: pure functions from a plan and how far an execution has come to the next move.

A node is decided when each of its edges is that does not go back: it acts if one was taken, else it is skipped. Edges
that go back wait until nobody acts any more whom their loop depends on; then a further pass begins, or it is left.

In a further pass an edge from outside counts as data alone: it has let its target act once. Who comes after a loop that
may go on, and is led to by nothing of it yet, waits until it is over: a later pass may still lead there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from perdure.agent_workflows.definition import END, START
from perdure.agent_workflows.plan_backs import reached
from perdure.agent_workflows.progress import Progress
from perdure.agent_workflows.reasons import why_skipped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from perdure.agent_workflows.definition import Edge
    from perdure.agent_workflows.plan import Plan, Way
    from perdure.agent_workflows.progress import Decision, Standing

Outcome: TypeAlias = Literal["completed", "isolated", "failed"]


@dataclass(frozen=True, slots=True)
class Move:
    """What comes next: which edges were taken, who acts, who was skipped; and how far that is."""

    progress: Progress
    taken: tuple[Edge, ...] = ()
    acts: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether nobody acts."""
        return not self.progress.acting


def begin(plan: Plan, holding: Collection[str] | None = None) -> Move:
    """The first move. `holding` are the targets of edges from START whose conditions hold; by default, all."""
    targets = {edge.target for edge in plan.outgoing(START)} if holding is None else holding
    board = _Board(plan, Progress())
    board.decide_edges(START, targets)
    board.settle(edge.target for edge in plan.outgoing(START))
    return board.move()


def ended(
    plan: Plan,
    progress: Progress,
    node_id: str,
    outcome: Outcome,
    holding: Collection[str] = (),
    *,
    denied: str | None = None,
) -> Move:
    """The move after a node has ended. `holding` are the targets of those of its edges whose conditions hold.

    `denied` says who was denied and why, if that is how it has failed.
    """
    assert progress.nodes.get(node_id) == "acting", f"node {node_id!r} is not acting"
    others = {each: words for each, words in progress.denied.items() if each != node_id}
    board = _Board(plan, replace(progress, denied=others if denied is None else {**others, node_id: denied}))
    board.stand(node_id, outcome)
    if progress.halted is not None:
        board.close_edges(node_id, "not_taken")
    elif outcome == "failed":
        board.close_edges(node_id, "blocked")
    else:
        board.decide_edges(node_id, holding)
    board.settle(edge.target for edge in plan.forward_from(node_id))
    return board.move()


def quiet_loops(plan: Plan, progress: Progress) -> list[tuple[int, tuple[Way, ...]]]:
    """The loops whose pass has ended: by number, with the edges that hold and are to be followed.

    Nobody acts in them, or before them. Who acts elsewhere can change nothing about them, so nobody waits for that.
    """
    if not progress.held:
        return []
    acting = progress.acting
    found: dict[int, list[Way]] = {}
    for way in progress.held:
        loop = plan.loop_of(way[1])
        assert loop is not None, "what goes back makes a loop"
        if not plan.bearing_on[loop] & acting:
            found.setdefault(loop, []).append(way)
    return [(loop, _outermost(plan, tuple(ways))) for loop, ways in sorted(found.items())]


def _outermost(plan: Plan, held: tuple[Way, ...]) -> tuple[Way, ...]:
    """Of edges that hold and go back, those of which no other one lets the source be decided anew.

    If two do that to each other, the one that goes back further counts, and both if neither does.
    """
    again = {target: plan.again(target) for _, target in held}

    def outer_than(way: Way) -> list[Way]:
        return [other for other in held if way[0] in again[other[1]] and other[1] not in again[way[1]]]

    outer = {way: reached([way], outer_than) for way in held}
    return tuple(way for way in held if not any(way not in outer[other] for other in outer[way]))


def follow(plan: Plan, progress: Progress, loop: int) -> Move:
    """A further pass of a loop: its edges that go back and hold are followed. Who comes after is undecided again.

    So is what an edge rests on whose source comes after: it is not followed, and does not hold any more.
    """
    ways = _held_in(plan, progress, loop)
    assert ways, "something leads back"
    assert not plan.bearing_on[loop] & progress.acting, "a pass begins when nobody acts who has a part in it"
    targets = {target for _, target in ways}
    again = frozenset[str]().union(*map(plan.again, targets))
    rounds = {str(circle): progress.round(circle) + 1 for circle in sorted({plan.circle_of(way) for way in ways})}
    others = tuple(way for way in progress.followed if way[1] not in again)
    board = _Board(
        plan,
        replace(
            progress,
            passes={**progress.passes, str(loop): progress.iteration(loop) + 1},
            rounds={**progress.rounds, **rounds},
            nodes={each: standing for each, standing in progress.nodes.items() if each not in again},
            edges={
                source: _spent(decisions, progress, again)
                for source, decisions in progress.edges.items()
                if source not in again
            },
            skipped={each: reason for each, reason in progress.skipped.items() if each not in again},
            held=tuple(way for way in progress.held if way[0] not in again and way not in ways),
            followed=(*others, *ways),
        ),
    )
    board.taken.extend(edge for edge in plan.edges if (edge.source, edge.target) in ways)
    # A source that is not decided anew has gone this way, and so not the one for any other case.
    passed = _waiting(plan, progress, [source for source, _ in ways if source not in again])
    for edge in passed:
        board.decide(edge, "not_taken")
    board.settle((*targets, *(edge.target for edge in passed)))
    return board.move()


def _waiting(plan: Plan, progress: Progress, sources: Iterable[str]) -> list[Edge]:
    """The edges of nodes that wait until it is known whether something goes back."""
    return [
        edge
        for source in dict.fromkeys(sources)
        for edge in plan.forward_from(source)
        if progress.decision(edge.source, edge.target) is None
    ]


def _spent(decisions: Mapping[str, str], progress: Progress, again: Collection[str]) -> Mapping[str, str]:
    """The decisions about the edges of a node outside of a pass: those that have let a node act which is in it."""
    spent = {
        target: "spent"
        for target, decision in decisions.items()
        if decision == "taken" and target in again and progress.has_acted(target)
    }
    return {**decisions, **spent} if spent else decisions


def leave(plan: Plan, progress: Progress, loop: int, circle: int | None = None) -> Move:
    """The move if edges that go back don't count any more: what is there for that case is taken.

    They are those of a loop that would be followed; of these, those of one circle if it is named.
    """
    ways = [way for way in _held_in(plan, progress, loop) if circle in {None, plan.circle_of(way)}]
    board = _Board(plan, replace(progress, held=tuple(way for way in progress.held if way not in ways)))
    waiting = _waiting(plan, progress, [source for source, _ in ways])
    for edge in waiting:
        board.decide(edge, "taken")
    board.settle(edge.target for edge in waiting)
    return board.move()


def _held_in(plan: Plan, progress: Progress, loop: int) -> tuple[Way, ...]:
    """The edges of a loop that hold and are to be followed."""
    return _outermost(plan, tuple(way for way in progress.held if plan.loop_of(way[1]) == loop))


def halt(plan: Plan, progress: Progress, node_ids: Iterable[str], reason: str) -> Move:
    """The move after nodes have ended in a way that lets nobody else begin: who is undecided is skipped.

    Who is acting may end. Of several reasons the first stands.
    """
    board = _Board(plan, replace(progress, held=(), halted=progress.halted or reason))
    for node_id in node_ids:
        board.stand(node_id, "failed")
        board.close_edges(node_id, "not_taken")
    undecided = [each for layer in plan.layers for each in layer if each not in progress.nodes]
    for each in undecided:
        board.skip(each, reason, "skipped")
    return board.move()


class _Board:
    """A progress at work. What it was made of does not change."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._before = progress
        self._nodes = dict(progress.nodes)
        self._edges: dict[str, Mapping[str, str]] = dict(progress.edges)
        self._decided: dict[str, dict[str, str]] = {}
        self._skipped = dict(progress.skipped)
        self._held = list(progress.held)
        self.taken: list[Edge] = []
        self._acts: list[str] = []
        self._skips: list[str] = []

    def stand(self, node_id: str, standing: Standing) -> None:
        """Say what has become of a node."""
        self._nodes[node_id] = standing

    def decide(self, edge: Edge, decision: Decision) -> None:
        """Decide an edge. One that goes back is only held, if it is taken."""
        if self._plan.is_back(edge):
            if decision == "taken":
                self._held.append((edge.source, edge.target))
            return
        self._of_its_own(edge.source)[edge.target] = decision
        if decision == "taken":
            self.taken.append(edge)

    def _of_its_own(self, source: str) -> dict[str, str]:
        """The decisions about the edges of a node, as they are changed here."""
        if source not in self._decided:
            self._edges[source] = self._decided[source] = dict(self._edges.get(source, {}))
        return self._decided[source]

    def decide_edges(self, source: str, holding: Collection[str]) -> None:
        """Decide the edges of a node that has ended.

        If only edges that go back hold, those for any other case wait: they are taken if the loop is left.
        """
        edges = self._plan.outgoing(source)
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
        for edge in self._plan.outgoing(source):
            self.decide(edge, decision)

    def skip(self, node_id: str, reason: str, standing: Standing) -> None:
        """Let a node not act."""
        self.stand(node_id, standing)
        self._skipped[node_id] = reason
        self._skips.append(node_id)
        self.close_edges(node_id, "blocked" if standing == "blocked" else "not_taken")

    def settle(self, candidates: Iterable[str]) -> None:
        """Decide each of these nodes that can be decided now, and what follows from it."""
        self._settle(candidates)
        while freed := self._freed():
            self._settle(freed)

    def _settle(self, candidates: Iterable[str]) -> None:
        open_ = deque(each for each in dict.fromkeys(candidates) if each != END)
        while open_:
            node_id = open_.popleft()
            if node_id in self._nodes or not self._is_decided(node_id):
                continue
            self._decide_node(node_id)
            if self._nodes.get(node_id, "acting") != "acting":
                open_.extend(edge.target for edge in self._plan.forward_from(node_id) if edge.target != END)

    def _freed(self) -> list[str]:
        """The nodes that wait for loops which are over by now."""
        undecided = [each for each in self._plan.after_circles if each not in self._nodes]
        if not undecided:
            return []
        going_on = frozenset(number for number in range(len(self._plan.circles)) if self._goes_on(number))
        return [each for each in undecided if not going_on & self._plan.circles_before(each) and self._is_decided(each)]

    def _goes_on(self, circle: int) -> bool:
        """Whether something may still happen in a circle: not all is decided there and before it, or leads back."""
        nodes = self._plan.leading_to_circle[circle]
        return any(target in nodes for _, target in self._held) or any(
            self._nodes.get(each, "acting") == "acting" for each in nodes
        )

    def _is_decided(self, node_id: str) -> bool:
        return all(self._decision(edge) is not None for edge in self._plan.forward_to(node_id))

    def _decide_node(self, node_id: str) -> None:
        edges = self._plan.forward_to(node_id)
        decisions = {self._decision(edge) for edge in edges}
        taken = [edge.source for edge in edges if self._decision(edge) == "taken"]
        is_called = any(target == node_id for _, target in self._before.followed)
        if "blocked" not in decisions and is_called:
            self._let_act(node_id)
        elif self._is_to_wait(node_id, () if "blocked" in decisions else taken):
            return
        elif "blocked" in decisions:
            self.skip(node_id, self._why_skipped(node_id), "blocked")
        elif taken:
            self._let_act(node_id)
        else:
            self.skip(node_id, self._why_skipped(node_id), "skipped")

    def _let_act(self, node_id: str) -> None:
        self.stand(node_id, "acting")
        self._acts.append(node_id)

    def _is_to_wait(self, node_id: str, taken: Iterable[str]) -> bool:
        """Whether a node comes after loops that may go on, and none of the nodes that lead to it is of one of them."""
        going_on = {circle for circle in self._plan.circles_before(node_id) if self._goes_on(circle)}
        return bool(going_on) and not any(self._plan.circles_to(source) & going_on for source in taken)

    def _why_skipped(self, node_id: str) -> str:
        # It is read at once, so nothing of the board is copied for it.
        so_far = Progress(nodes=self._nodes, edges=self._edges, denied=self._before.denied)
        return why_skipped(self._plan, so_far, node_id)

    def _decision(self, edge: Edge) -> str | None:
        return self._edges.get(edge.source, {}).get(edge.target)

    def progress(self) -> Progress:
        """How far it is now."""
        return replace(
            self._before,
            nodes=dict(self._nodes),
            edges=dict(self._edges),
            skipped=dict(self._skipped),
            held=tuple(self._held),
        )

    def move(self) -> Move:
        """What has come of it, in the order of the plan."""
        in_order = self._plan.in_order
        return Move(self.progress(), tuple(self.taken), in_order(self._acts), in_order(self._skips))
