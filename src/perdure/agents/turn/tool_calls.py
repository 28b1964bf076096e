"""Tool calls. Each is a step of the turn: its result is recorded, also a failure, and a resumed turn reuses it."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

from perdure import errors
from perdure.agents.client.middleware import call_chain
from perdure.agents.messages.content import Content, function_error, function_result
from perdure.agents.messages.conversation import INTERRUPTED, tool_question_id
from perdure.agents.sessions.session import apply_changes, copy_state, find_changes
from perdure.agents.tools.context import FunctionInvocationContext, expand_tools, join_tools, tool_name
from perdure.agents.tools.schema import ArgumentsError
from perdure.agents.tools.tool import FunctionTool, run_in_thread
from perdure.agents.turn.approvals import REJECTED, ApprovedCalls, Decision
from perdure.clock import SystemClock
from perdure.engine import NOT_DONE, is_async, is_final, is_inside_step, within
from perdure.graph import NO_POLICY, IfInterrupted, Policy, StepCall, begin_step

if TYPE_CHECKING:
    from perdure.agents.turn.recording import Turn

logger = logging.getLogger(__name__)

_CONTENTS: Final = "perdure:contents"


@dataclass(slots=True)
class CallOutcome:
    """The outcome of calls: results and questions in the order of the calls."""

    contents: list[Content] = field(default_factory=list[Content])
    ends_turn: bool = False
    """True if middleware ended the turn."""
    session_changes: list[Any] = field(default_factory=list[Any])
    tool_changes: list[Any] = field(default_factory=list[Any])

    def to_record(self) -> dict[str, Any]:
        """Return the outcome as it is stored."""
        record = {_CONTENTS: self.contents, "ends": self.ends_turn, "changed": self.session_changes}
        return {**record, "tools": self.tool_changes} if self.tool_changes else record

    @staticmethod
    def from_record(call: Content, tool: FunctionTool | None, found: Any) -> CallOutcome:
        """Read a record. Somebody who was asked about an interrupted call may have given any value."""
        if isinstance(found, Mapping) and _CONTENTS in found:
            record = cast("Mapping[str, Any]", found)
            changes, tools = list(record["changed"]), list(record.get("tools", ()))
            return CallOutcome(list(record[_CONTENTS]), record["ends"], changes, tools)
        return CallOutcome([function_result(call, found if tool is None else tool.parse(found))])

    @property
    def has_failed(self) -> bool:
        """Return True if any result is a failure."""
        return any(content.exception is not None for content in self.contents)


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """Make the tool calls of one turn.

    Attributes:
        tools: The model's tools. Tools may change this list during the turn.
        hidden: Tools that can be called without being shown to the model.
    """

    turn: Turn
    tools: list[Any]
    hidden: Sequence[FunctionTool]
    middleware: Sequence[Any]
    kwargs: Mapping[str, Any]
    session: Any
    include_detailed_errors: bool
    is_concurrent: bool

    def by_name(self) -> dict[str, FunctionTool]:
        """Return the tools that can be called. Raises ValueError for two tools of one name."""
        every = [*expand_tools(self.tools), *self.hidden]
        return {each.name: each for each in every if isinstance(each, FunctionTool)}

    @property
    def owner(self) -> str:
        """Return who asks for approvals: the same in every attempt, and different for each executor."""
        activation = self.turn.activation
        return self.turn.name if activation is None else f"{activation.private_scope()}/{self.turn.name}"

    async def call_all(self, decisions: Sequence[Decision], approved: ApprovedCalls | None = None) -> CallOutcome:
        """Make calls, in parallel if allowed. An error of the run itself is raised after all calls have ended."""
        whole, tools = CallOutcome(), self.by_name() if decisions else {}
        lock = asyncio.Lock()

        async def call_one(place: int, decision: Decision) -> CallOutcome:
            tool = tools.get(decision.call.name or "")
            if not self._is_serial(tool):
                return await self._call(place, decision, tool, approved)
            async with lock:
                outcome = await self._call(place, decision, tool, approved)
                self._change_session(outcome)
                return outcome

        calls = [call_one(place, decision) for place, decision in enumerate(decisions)]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            whole.contents += outcome.contents
            whole.ends_turn |= outcome.ends_turn
            self._change_session(outcome)
        return whole

    def _is_serial(self, tool: FunctionTool | None) -> bool:
        """Return True for a tool that changes the session, and for all if nothing may run in parallel.

        In a workflow each call sees a copy of the session, so parallel calls would undo each other's changes. Agents as
        tools keep to their own part of it.
        """
        if not self.is_concurrent:
            return True
        is_copied = self.session is not None and self.turn.activation is not None
        return is_copied and tool is not None and tool.sees_context and not getattr(tool, "keeps_to_itself", False)

    def _change_session(self, outcome: CallOutcome) -> None:
        if outcome.session_changes:
            apply_changes(outcome.session_changes, self.session.state)
            outcome.session_changes = []

    async def _call(
        self, place: int, decision: Decision, tool: FunctionTool | None, approved: ApprovedCalls | None
    ) -> CallOutcome:
        """Make one call as a step, or return its recorded outcome."""
        call = decision.call
        if not decision.is_approved:
            return CallOutcome([function_result(call, REJECTED)])
        is_called = False

        async def work() -> dict[str, Any]:
            nonlocal is_called
            is_called = True
            # A call that may simply be repeated need not be remembered before it is made.
            if approved is not None and tool is not None and tool.if_interrupted != "rerun":
                approved.begin(call)
            outcome = await self._run(decision, tool)
            if self.turn.activation is not None:
                asks = any(content.user_input_request for content in outcome.contents)
                how = "failed" if outcome.has_failed else "asked" if asks else "completed"
                self.turn.activation.describe_step(outcome=how, result=outcome.contents)
            return outcome.to_record()

        def has_failed(record: dict[str, Any]) -> bool:
            return CallOutcome.from_record(call, tool, record).has_failed

        key = self.turn.tool_key(call.call_id or "", place)
        policy, about = _if_interrupted(call, tool), {"name": call.name, "call_id": call.call_id}
        if self.turn.activation is not None:
            about |= {"arguments": call.arguments, "digest": self.turn.activation.digest(call.arguments)}
        record = await self.turn.call(
            f"tool {call.name}", key, work, policy, has_failed, event="tool_call_completed", about=about
        )
        outcome = CallOutcome.from_record(call, tool, record)
        if tool is not None and not is_called:
            tool.recall(has_failed=outcome.has_failed)
            if outcome.tool_changes:
                _apply_tool_changes(self.tools, self.hidden, tool.name, outcome.tool_changes)
        if approved is not None:
            approved.finish(call, outcome.contents)
        return outcome

    async def _run(self, decision: Decision, tool: FunctionTool | None) -> CallOutcome:
        """Call the function with its middleware, inside the step. Raises only errors of the run itself."""
        call = decision.call
        if tool is None:
            return CallOutcome([function_error(call, f"there is no tool named {call.name!r}", "unknown tool")])
        if tool.func is _never_called:
            adder = tool.additional_properties["adder"]
            raise errors.ToolException(
                f"tool {tool.name!r} was added by tool {adder!r} before this run was resumed, and is unknown now; "
                "list it in additional_tools of the client's function_invocation_configuration"
            )
        try:
            arguments = tool.validate_arguments(_parse_arguments(call))
        except ArgumentsError as error:
            return CallOutcome([function_error(call, str(error), error)])
        session, before = self.session, None
        if session is not None and self.turn.activation is not None and (tool.sees_context or self.middleware):
            # A copy, so that the changes of this call can be recorded and applied again after a restart.
            session, before = copy.copy(session), copy_state(session.state)
            session.state = copy_state(before)
        context = FunctionInvocationContext(
            tool,
            arguments,
            session,
            {"call_id": call.call_id},
            kwargs=self.kwargs,
            tools=self.tools,
            # Approval of a call is not an answer to a question of the tool.
            answers=decision.answers if decision.is_for_tool else (),
        )
        if len(decision.answers) == 1:
            context.metadata["approval_response"] = decision.answers[0]
        outcome = await self._invoke(call, tool, context)
        if before is not None:
            outcome.session_changes = list(find_changes(before, context.session.state))
        if context.added_tools or context.removed_tools:
            outcome.tool_changes = _describe_tool_changes(tool.name, context.added_tools, context.removed_tools)
        return outcome

    async def _invoke(self, call: Content, tool: FunctionTool, context: FunctionInvocationContext) -> CallOutcome:
        """Run the middleware around the function and turn errors into results."""
        try:
            await call_chain(self.middleware, context, functools.partial(self._attempt, tool, context))
        except errors.MiddlewareTermination as termination:
            result = context.result if termination.result is None else termination.result
            return CallOutcome([_to_result(call, tool, result)], ends_turn=True)
        except errors.UserInputRequiredException as asking:
            return _to_questions(call, asking)
        except asyncio.CancelledError as error:
            task, activation = asyncio.current_task(), self.turn.activation
            if (task is not None and task.cancelling()) or (activation is not None and activation.is_suspending):
                raise
            return self._to_failure(call, error)
        except Exception as error:
            # A run that can't continue, or a step that nobody can settle, is no failure of the tool.
            if is_final(error) or isinstance(
                error, (errors.StepUnsettledError, errors.StepMismatchError, errors.MiddlewareFailure)
            ):
                raise
            return self._to_failure(call, error)
        return CallOutcome([_to_result(call, tool, context.result)])

    async def _attempt(self, tool: FunctionTool, context: FunctionInvocationContext) -> Any:
        """Call the function with the tool's retries and timeout."""
        call_id = context.metadata.get("call_id")
        invoke = functools.partial(tool.invoke, arguments=context.arguments, context=context, tool_call_id=call_id)
        if tool.policy is NO_POLICY:
            return await invoke()
        policy, activation = _without_questions(tool.policy), self.turn.activation
        if activation is None:
            return await _retry_in_place(invoke, policy, tool.name)
        step = StepCall("attempt", invoke, (), retry=policy.retry, timeout=policy.timeout, is_stable=True, event=None)
        return await begin_step(activation, step)

    def _to_failure(self, call: Content, error: BaseException) -> CallOutcome:
        # The error's message may contain secrets, so it is logged at debug level only. That of a ToolException was
        # written for the model.
        logger.warning("tool %r failed with %s; the model is told", call.name, type(error).__name__)
        logger.debug("tool %r failed", call.name, exc_info=error)
        details = f": {error}" if self.include_detailed_errors or isinstance(error, errors.ToolException) else ""
        return CallOutcome([function_error(call, f"Error: the tool failed{details}", error)])


def _to_result(call: Content, tool: FunctionTool, result: Any) -> Content:
    """Return the content for the model. Middleware may have set a question or any value as the result."""
    if isinstance(result, Content) and result.type in {"function_approval_request", "function_result"}:
        return result
    several = cast("list[object]", result) if isinstance(result, list) else [None]
    return function_result(call, result if all(isinstance(each, Content) for each in several) else tool.parse(result))


def _to_questions(call: Content, asking: errors.UserInputRequiredException) -> CallOutcome:
    """Return the questions of a tool, under ids that are unique in the conversation."""
    asked = [content for content in asking.contents if isinstance(content, Content)]
    if not asked:
        return CallOutcome([function_error(call, "the tool needs an answer, but asked nothing", asking)])
    ids = [each.id or str(place) for place, each in enumerate(asked)]
    distinct = [each if each not in ids[:place] else f"{each}.{place}" for place, each in enumerate(ids)]
    return CallOutcome(
        [
            replace(each, call_id=call.call_id, id=tool_question_id(call, own_id), user_input_request=True)
            for each, own_id in zip(asked, distinct, strict=True)
        ]
    )


def _parse_arguments(call: Content) -> Mapping[str, Any]:
    if not isinstance(call.arguments, str):
        return call.arguments or {}
    try:
        parsed: Any = json.loads(call.arguments.strip() or "{}")
    except ValueError as error:
        raise ArgumentsError(f"the arguments are not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ArgumentsError("the arguments are not a JSON object")
    return cast("dict[str, Any]", parsed)


def _if_interrupted(call: Content, tool: FunctionTool | None) -> IfInterrupted:
    """Return the policy for an interrupted call in the form that a step takes."""
    policy = "rerun" if tool is None else tool.if_interrupted
    if policy == "ask" and is_inside_step():
        # The enclosing step can't be suspended to ask, so the model is told instead.
        policy = "tell"
    if policy in {"rerun", "ask"}:
        return cast("IfInterrupted", policy)

    async def tell(_: str) -> dict[str, Any]:
        return CallOutcome([function_error(call, INTERRUPTED, "interrupted")]).to_record()

    async def reconcile(key: str) -> Any:
        find = cast("Callable[[str], Any]", policy)
        found = find(key) if is_async(find) else await run_in_thread(lambda: find(key))
        found = await found if inspect.isawaitable(found) else found
        return found if found is NOT_DONE else CallOutcome.from_record(call, tool, found).to_record()

    return tell if policy == "tell" else reconcile


def _without_questions(policy: Policy) -> Policy:
    """Exclude questions from retries: a tool that asks has not failed."""
    retry = policy.retry
    if retry is None:
        return policy

    def covers(error: Exception) -> bool:
        return not isinstance(error, errors.UserInputRequiredException) and retry.covers(error)

    return replace(policy, retry=replace(retry, on=covers))


async def _retry_in_place(work: Callable[[], Coroutine[Any, Any, Any]], policy: Policy, name: str) -> Any:
    """Apply retries and timeout outside a workflow, where no step does it."""
    clock, retry, attempt = SystemClock(), policy.retry, 1

    while True:
        try:
            if policy.timeout is None:
                return await work()
            return await within(clock, policy.timeout, work(), errors.StepTimeoutError(name, seconds=policy.timeout))
        except Exception as error:
            if retry is None or attempt >= retry.attempts or not retry.covers(error):
                raise
            await clock.sleep(retry.wait_after(attempt))
            attempt += 1


_HOSTED: Final = "told"
_added: WeakValueDictionary[tuple[str, str], FunctionTool] = WeakValueDictionary()
"""Tools that were added in this process, by the tool that added them and their name."""


async def _never_called(**_: Any) -> None:
    """Stand in for the function of a tool that was added before a restart and is not found now."""


def _describe_tool_changes(adder: str, added: Sequence[Any], removed: Sequence[str]) -> list[Any]:
    """Return the changes of a tool to the list of tools, for its record."""
    specs: list[Any] = []
    for each in expand_tools(added):
        if isinstance(each, FunctionTool):
            _added[adder, each.name] = each
            spec = {"name": each.name, "description": each.description, "parameters": each.parameters()}
            specs.append({**spec, "approval_mode": each.approval_mode, "is_declared": each.declaration_only})
        else:
            kind: str = type(each).__name__
            hosted = {_HOSTED: dict(cast("Mapping[str, Any]", each))} if isinstance(each, Mapping) else None
            specs.append(hosted or {"type": kind})
    return [specs, list(removed)]


def _apply_tool_changes(tools: list[Any], hidden: Sequence[FunctionTool], adder: str, changed: Sequence[Any]) -> None:
    """Apply recorded changes to the list of tools."""
    specs, removed = changed
    kept = [each for each in tools if tool_name(each) not in removed]
    known = {tool_name(each) for each in expand_tools(kept)}
    found = [_restore_tool(spec, hidden, adder) for spec in specs if "name" not in spec or spec["name"] not in known]
    tools[:] = join_tools(kept, [each for each in found if each is not None])


def _restore_tool(spec: Mapping[str, Any], hidden: Sequence[FunctionTool], adder: str) -> Any:
    if _HOSTED in spec:
        return spec[_HOSTED]
    if "name" not in spec:
        kind = spec["type"]
        logger.warning("tool %r had added a %s, which can't be restored; the turn continues without it", adder, kind)
        return None
    for each in (*hidden, _added.get((adder, spec["name"]))):
        if each is not None and each.name == spec["name"]:
            return each
    return FunctionTool(
        name=spec["name"],
        description=spec["description"],
        input_model=spec["parameters"],
        approval_mode=spec["approval_mode"],
        func=None if spec["is_declared"] else _never_called,
        additional_properties={"adder": adder},
    )
