"""Calls of tools, each a step of the turn: what came back is recorded, failures too, and never called for again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.agents.invocation_call import Outcome, ToolRun, if_interrupted, outcome_of
from perdure.agents.session_changes import apply
from perdure.agents.tool_changes import changed_again
from perdure.agents.tool_list import expanded_tools
from perdure.agents.tools import FunctionTool
from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents.approvals import Decision
    from perdure.agents.made import MadeCalls
    from perdure.agents.recording import Turn


@frozen
class Caller:
    """Makes the calls of one turn. `tools` is the live list that the model is told of."""

    turn: Turn
    tools: list[Any]
    hidden: Sequence[FunctionTool]
    """Tools that the model is not told of."""
    middleware: Sequence[Any]
    kwargs: Mapping[str, Any]
    session: Any
    tells_details: bool

    def by_name(self) -> dict[str, FunctionTool]:
        """The tools that can be called here. Raises ValueError if two have one name."""
        every = [*expanded_tools(self.tools), *self.hidden]
        return {each.name: each for each in every if isinstance(each, FunctionTool)}

    @property
    def owner(self) -> str:
        """Who asks about calls: the same in every life, and another for each executor of a workflow."""
        activation = self.turn.activation
        return self.turn.name if activation is None else f"{activation.private_scope()}/{self.turn.name}"

    async def made(self, decisions: Sequence[Decision], noted: MadeCalls | None = None) -> Outcome:
        """Make calls, side by side. An error of the run itself is raised when all of them have ended."""
        tools = self.by_name()
        calls = [_Planned(each, place, tools.get(each.call.name or ""), noted) for place, each in enumerate(decisions)]
        lone = [each for each in calls if self._changes_session(each.tool)]
        others = [each for each in calls if each not in lone]
        work = [*(self._made(each) for each in others), self._made_in_turn(lone)]
        found: list[Any] = await asyncio.gather(*work, return_exceptions=True)
        last = found.pop()
        if isinstance(last, BaseException):
            raise last
        places = [each.place for each in (*others, *lone)]
        by_place = dict(zip(places, [*found, *last], strict=True))
        return self._joined([by_place[place] for place in range(len(calls))])

    def _changes_session(self, tool: FunctionTool | None) -> bool:
        """Whether a call may change the session that others see.

        In a workflow each sees a copy: side by side, one would undo what another did. Those that come only through
        middleware are called side by side nevertheless, and so are agents, which keep to themselves.
        """
        is_copied = self.session is not None and self.turn.activation is not None
        return is_copied and tool is not None and tool.sees_context and not getattr(tool, "keeps_to_itself", False)

    async def _made_in_turn(self, calls: Sequence[_Planned]) -> list[Outcome | BaseException]:
        """Make calls one after the other, each with the session as the one before has left it."""
        outcomes: list[Outcome | BaseException] = []
        for each in calls:
            try:
                outcome = await self._made(each)
            except Exception as error:  # noqa: BLE001 - it is raised when all have ended
                outcomes.append(error)
                continue
            self._change_session(outcome.changed)
            outcome.changed = []
            outcomes.append(outcome)
        return outcomes

    def _joined(self, outcomes: Sequence[Any]) -> Outcome:
        whole = Outcome()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            whole.contents += outcome.contents
            whole.ends |= outcome.ends
            self._change_session(outcome.changed)
        return whole

    def _change_session(self, changed: list[Any]) -> None:
        if changed:
            apply(changed, self.session.state)

    async def _made(self, planned: _Planned) -> Outcome:
        """Make one call, or find what it came to in an earlier life."""
        decision, tool = planned.decision, planned.tool
        if not decision.is_approved:
            return Outcome([decision.rejection()])
        is_called = False
        call = decision.call

        async def work() -> dict[str, Any]:
            nonlocal is_called
            is_called = True
            planned.begin()
            return (await ToolRun(self, decision, tool).outcome()).recorded()

        key = self.turn.tool_key(call.call_id or "", planned.place)

        def has_failed(found: dict[str, Any]) -> bool:
            return outcome_of(call, tool, found).has_failed

        found = await self.turn.call(f"tool {call.name}", key, work, if_interrupted(call, tool), has_failed)
        outcome = outcome_of(call, tool, found)
        if tool is not None and not is_called:
            tool.recall(has_failed=outcome.has_failed)
            if outcome.tools:
                changed_again(self.tools, self.hidden, tool.name, outcome.tools)
        planned.finish(outcome)
        return outcome


@frozen
class _Planned:
    """A call that is to be made: where it stands, its tool, and who notes that it is made."""

    decision: Decision
    place: int
    tool: FunctionTool | None
    noted: MadeCalls | None

    def begin(self) -> None:
        # What may simply be done again need not be remembered.
        if self.noted is not None and self.tool is not None and self.tool.if_interrupted != "rerun":
            self.noted.begin(self.decision.call)

    def finish(self, outcome: Outcome) -> None:
        if self.noted is not None:
            self.noted.finish(self.decision.call, outcome.contents)
