"""Calls of tools, each a step of the turn: what came back is recorded, failures too, and never called for again."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.client.middleware import run_function_middleware
from perdure.agents.messages.content import Content
from perdure.agents.messages.conversation import INTERRUPTED, tool_question_id
from perdure.agents.sessions.session import apply, changes, copied
from perdure.agents.tools.added_tools import LostTool, changed_again, recorded_changes
from perdure.agents.tools.context import FunctionInvocationContext
from perdure.agents.tools.results import error_of, result_of
from perdure.agents.tools.schema import ArgumentsError
from perdure.agents.tools.tool import FunctionTool, in_thread
from perdure.agents.tools.tool_list import expanded_tools
from perdure.clock import SystemClock
from perdure.data import frozen
from perdure.engine import NOT_DONE, OutOfTimeError, is_async, is_final, is_inside_step, step_key, within
from perdure.errors import (
    MiddlewareTermination,
    StepMismatchError,
    StepTimeoutError,
    StepUnsettledError,
    UserInputRequiredException,
)
from perdure.graph import NO_POLICY, StepCall, begin_step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from perdure.agents.turn.approvals import Decision
    from perdure.agents.turn.call_ids import MadeCalls
    from perdure.agents.turn.recording import Turn
    from perdure.graph import IfInterrupted, Policy


def without_asking(policy: Policy) -> Policy:
    """A tool that asks has not failed: it is not tried again."""
    retry = policy.retry
    if retry is None:
        return policy

    def is_covered(error: Exception) -> bool:
        return not isinstance(error, UserInputRequiredException) and retry.covers(error)

    return replace(policy, retry=replace(retry, on=is_covered))


async def tried_in_place(work: Callable[[], Awaitable[Any]], policy: Policy, name: str) -> Any:
    """Do something as often and as long as a policy says, where no step does that: outside of a workflow."""
    clock, attempt = SystemClock(), 1
    while True:
        try:
            return await _timed(work, policy.timeout, name)
        except Exception as error:
            retry = policy.retry
            if retry is None or attempt >= retry.attempts or not retry.covers(error):
                raise
            await clock.sleep(retry.wait_after(attempt))
            attempt += 1


async def _timed(work: Callable[[], Awaitable[Any]], seconds: float | None, name: str) -> Any:
    if seconds is None:
        return await work()

    async def working() -> Any:
        return await work()

    try:
        return await within(SystemClock(), seconds, working())
    except OutOfTimeError as error:
        raise StepTimeoutError(name, seconds=seconds) from error.__cause__


logger = logging.getLogger(__name__)

_CONTENTS: Final = "perdure:contents"


@dataclass(slots=True)
class Outcome:
    """What calls came to: results and questions in the order of the calls, and whether a middleware ended the turn."""

    contents: list[Content] = field(default_factory=list[Content])
    ends: bool = False
    changed: list[Any] = field(default_factory=list[Any])
    """What a tool did to the session."""
    tools: list[Any] = field(default_factory=list[Any])
    """What a tool did to the list of tools."""

    def recorded(self) -> dict[str, Any]:
        """As it stands in a record."""
        found = {_CONTENTS: self.contents, "ends": self.ends, "changed": self.changed}
        return {**found, "tools": self.tools} if self.tools else found

    @property
    def has_failed(self) -> bool:
        """Whether a result is a failure."""
        return any(content.exception is not None for content in self.contents)


def outcome_of(call: Content, tool: FunctionTool | None, found: Any) -> Outcome:
    """What a record holds. Somebody who was asked about an interrupted call may have given any value."""
    if isinstance(found, Mapping) and _CONTENTS in found:
        record = cast("Mapping[str, Any]", found)
        changed, tools = list(record["changed"]), list(record.get("tools", ()))
        return Outcome(list(record[_CONTENTS]), record["ends"], changed, tools)
    return Outcome([result_of(call, found if tool is None else tool.parse(found))])


def if_interrupted(call: Content, tool: FunctionTool | None) -> IfInterrupted:
    """What becomes of a call that a crash cut off, as a step takes it."""
    policy = "rerun" if tool is None else tool.if_interrupted
    if policy == "ask" and is_inside_step():
        # The step around it can't be left to ask: the model is told instead.
        policy = "tell"
    if policy in {"rerun", "ask"}:
        return cast("IfInterrupted", policy)

    async def told(_: str) -> dict[str, Any]:
        return Outcome([error_of(call, INTERRUPTED, "interrupted")]).recorded()

    async def found_out(key: str) -> Any:
        find = cast("Callable[[str], Any]", policy)
        found = find(key) if is_async(find) else await in_thread(lambda: find(key))
        found = await found if inspect.isawaitable(found) else found
        return found if found is NOT_DONE else outcome_of(call, tool, found).recorded()

    return told if policy == "tell" else found_out


@dataclass(slots=True)
class ToolRun:
    """One call that is really made, inside of its step."""

    caller: Caller
    decision: Decision
    tool: FunctionTool | None

    @property
    def call(self) -> Content:
        """What the model has asked for."""
        return self.decision.call

    async def outcome(self) -> Outcome:
        """What it came to. Only errors of the run itself are raised."""
        tool = self.tool
        if tool is None:
            return self._failed(f"there is no tool named {self.call.name!r}", "unknown tool")
        if isinstance(tool, LostTool):
            tool.require_found()
        try:
            arguments = tool.checked(_arguments(self.call))
        except ArgumentsError as error:
            return self._failed(str(error), error)
        session = self._own_session(tool)
        context = FunctionInvocationContext(
            tool,
            arguments,
            session,
            {"call_id": self.call.call_id},
            kwargs=self._kwargs(session),
            tools=self.caller.tools,
            # Permission to call a tool is no answer to what it has asked.
            answers=self.decision.answers if self.decision.is_for_tool else (),
            idempotency_key=step_key() if is_inside_step() else SystemClock().new_id(),
        )
        if len(self.decision.answers) == 1:
            context.metadata["approval_response"] = self.decision.answers[0]
        before = None if session is self.caller.session else copied(session.state)
        outcome = await self._settled(tool, context)
        if before is not None:
            outcome.changed = list(changes(before, session.state))
        outcome.tools = recorded_changes(tool.name, context.added_tools, context.removed_tools)
        return outcome

    def _own_session(self, tool: FunctionTool) -> Any:
        """The session as the call sees it.

        In a workflow that is a copy, so that what this call does to it can be recorded, and be done again without it.
        """
        session = self.caller.session
        is_seen = tool.sees_context or bool(self.caller.middleware)
        if session is None or self.caller.turn.activation is None or not is_seen:
            return session
        own = copy.copy(session)
        own.state = copied(session.state)
        return own

    def _kwargs(self, session: Any) -> dict[str, Any]:
        more = {} if session is None else {"session": session}
        return {**self.caller.kwargs, **more}

    async def _settled(self, tool: FunctionTool, context: FunctionInvocationContext) -> Outcome:
        try:
            result = await run_function_middleware(
                self.caller.middleware, context, lambda: self._attempted(tool, context)
            )
        except MiddlewareTermination as ended:
            result = context.result if ended.result is None else ended.result
            return Outcome([self._result(tool, result)], ends=True)
        except UserInputRequiredException as asking:
            return self._asking(asking)
        except asyncio.CancelledError as error:
            task, activation = asyncio.current_task(), self.caller.turn.activation
            if (task is not None and task.cancelling()) or (activation is not None and activation.is_left):
                raise
            return self._broken(tool, error)
        except Exception as error:
            if _is_of_the_run(error):
                raise
            return self._broken(tool, error)
        return Outcome([self._result(tool, result)])

    def _result(self, tool: FunctionTool, result: Any) -> Content:
        """What the model is told. A middleware may have asked a question in place of a result, or given any value."""
        if isinstance(result, Content) and result.type in {"function_approval_request", "function_result"}:
            return result
        return result_of(self.call, result if _are_contents(result) else tool.parse(result))

    async def _attempted(self, tool: FunctionTool, context: FunctionInvocationContext) -> Any:
        """Call the function, as often and as long as the tool says."""

        async def invoked() -> Any:
            return await tool.invoke(arguments=context.arguments, context=context, tool_call_id=self.call.call_id)

        policy = without_asking(tool.policy)
        if policy is NO_POLICY:
            return await invoked()
        activation = self.caller.turn.activation
        if activation is None:
            return await tried_in_place(invoked, policy, tool.name)
        attempt = StepCall("attempt", invoked, (), retry=policy.retry, timeout=policy.timeout, is_stable=True)
        return await begin_step(activation, attempt)

    def _asking(self, asking: UserInputRequiredException) -> Outcome:
        asked = [content for content in asking.contents if isinstance(content, Content)]
        if not asked:
            return self._failed("the tool needs an answer, and did not say what it asks", asking)
        ids = _distinct([each.id or str(place) for place, each in enumerate(asked)])
        return Outcome(
            [
                replace(each, call_id=self.call.call_id, id=tool_question_id(self.call, own), user_input_request=True)
                for each, own in zip(asked, ids, strict=True)
            ]
        )

    def _broken(self, tool: FunctionTool, error: BaseException) -> Outcome:
        # The message of the error may hold what no log should, unless somebody looks for what went wrong.
        logger.warning("tool %r failed with %s; the model is told", tool.name, type(error).__name__)
        logger.debug("tool %r failed", tool.name, exc_info=error)
        details = f": {error}" if self.caller.tells_details else ""
        return self._failed(f"Error: the tool failed{details}", error)

    def _failed(self, text: str, error: BaseException | str) -> Outcome:
        return Outcome([error_of(self.call, text, error)])


def _arguments(call: Content) -> Mapping[str, Any]:
    """The arguments of a call. Raises ArgumentsError if they are no JSON object."""
    if call.arguments is None or isinstance(call.arguments, Mapping):
        return call.arguments or {}
    try:
        parsed: Any = json.loads(call.arguments) if call.arguments.strip() else {}
    except ValueError as error:
        raise ArgumentsError(f"the arguments are no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ArgumentsError("the arguments are no JSON object")
    return cast("dict[str, Any]", parsed)


def _distinct(ids: Sequence[str]) -> list[str]:
    """Ids, each another: two questions are never one."""
    return [each if each not in ids[:place] else f"{each}.{place}" for place, each in enumerate(ids)]


def _are_contents(result: object) -> bool:
    return isinstance(result, list) and all(isinstance(each, Content) for each in cast("list[object]", result))


def _is_of_the_run(error: Exception) -> bool:
    """Whether an error is none of the tool: a run that can't go on, or a step inside of it that nobody can settle."""
    return is_final(error) or isinstance(error, (StepUnsettledError, StepMismatchError))


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
