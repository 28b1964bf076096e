"""Whether the loops of an execution go round once more: how many passes they have had, and what has changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.agent_workflows import scheduling
from perdure.agent_workflows.errors import IterationLimitError

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.agent_workflows.conductor_state import Book
    from perdure.agent_workflows.conductor_telling import Telling
    from perdure.agent_workflows.plan import Plan, Way
    from perdure.agent_workflows.scheduling import Move


class Loops:
    """Lets loops go round or be left, in one handler call."""

    def __init__(self, plan: Plan, book: Book, telling: Telling) -> None:
        self._plan = plan
        self._book = book
        self._telling = telling

    async def turned(self, loop: int, held: tuple[Way, ...]) -> Move:
        """Follow edges that go back, unless the circle of one is to be left first. Raises IterationLimitError."""
        plan, record = self._plan, self._book.record
        for circle in sorted({plan.circle_of(way) for way in held}):
            if await self._is_left(circle, [way for way in held if plan.circle_of(way) == circle]):
                return scheduling.leave(plan, self._book.progress, loop, circle)
        self._book.note(unchanged=tuple(dict.fromkeys((*record.unchanged, *held))))
        return scheduling.follow(plan, self._book.progress, loop)

    def note_change(self, node_id: str) -> None:
        """Keep that no edge has brought nothing new that went back in a circle which the node is in or before."""
        plan, unchanged = self._plan, self._book.record.unchanged
        if unchanged:
            left = tuple(way for way in unchanged if node_id not in plan.deciding[plan.circle_of(way)])
            self._book.note(unchanged=left)

    async def _is_left(self, circle: int, held: Collection[Way]) -> bool:
        """Whether a circle is left though these edges of it hold. It is told why. Raises IterationLimitError."""
        iterations, passes = self._plan.definition.iterations, self._book.progress.round(circle) + 1
        ways = ", ".join(f"{source!r} -> {target!r}" for source, target in held)
        if iterations.converges and set(held) <= set(self._book.record.unchanged):
            await self._telling.diagnostic(f"the loop {ways} is left: pass {passes} has changed nothing")
            return True
        if passes < iterations.limit:
            return False
        if iterations.then == "leave":
            await self._telling.diagnostic(f"the loop {ways} is left: it has had {passes} passes", level="warning")
            return True
        raise IterationLimitError(
            f"the loop {ways} would go on after {passes} passes, and its limit is {iterations.limit}: resume the "
            "execution with a larger limit, and it goes on from here; or let the loop be left then, with "
            "with_max_iterations(..., then='leave')"
        )
