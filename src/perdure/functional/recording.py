"""Calls that may set state: each attempt's changes are recorded with its result, or taken back if it fails."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perdure.engine import is_async
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.functional.context import get_run_context
from perdure.functional.state import writing
from perdure.functional.step_state import StepOutcome, place_of_step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable

    from perdure.functional.context import RunContext
    from perdure.functional.state import Writer
    from perdure.graph import ActivationPort, IfInterrupted, StepCall


@dataclass(slots=True)
class RecordedCall:
    """A call of a step, over all its attempts."""

    context: RunContext
    writer: Writer
    """Each attempt has a new one: an attempt that is late may still run in its thread."""

    @classmethod
    def of(cls, context: RunContext, name: str) -> RecordedCall:
        """Note that a step is called."""
        return cls(context, context.state.begin_call(name))

    @contextmanager
    def attempt(self) -> Generator[Writer]:
        """Start an attempt. An earlier one that still runs in a thread sets nothing any more."""
        self._roll_back(self.writer)
        self.writer = replace(
            self.writer,
            place=place_of_step(self.context.activation),
            calls=0,
            seen={},
            sets=Counter(),
            conflicts=[],
            has_ended=False,
        )
        with self.continue_attempt(self.writer):
            yield self.writer

    @contextmanager
    def continue_attempt(self, writer: Writer) -> Generator[None]:
        """Let this attempt set state; take it back if it fails."""
        try:
            with writing(writer):
                yield
        except BaseException:
            self._roll_back(writer)
            raise

    def _roll_back(self, writer: Writer) -> None:
        writer.has_ended = True
        if self._has_state:
            self.context.state.roll_back(writer)

    async def finish_awaitable(self, result: Awaitable[Any], writer: Writer) -> Any:
        """Await the rest of a function that could not be seen to be async."""
        with self.continue_attempt(writer):
            return self.outcome(await result, writer)

    def reconciling(self, policy: IfInterrupted) -> IfInterrupted:
        """Return the policy for interruptions. A function for it may set state in place of the step."""
        if not callable(policy):
            return policy

        def find(key: str) -> Any:
            with self.attempt() as writer:
                found = policy(key)
                return rest(found, writer) if inspect.isawaitable(found) else found

        async def rest(found: Awaitable[Any], writer: Writer) -> Any:
            with self.continue_attempt(writer):
                return await found

        async def find_in_loop(key: str) -> Any:
            with self.attempt():
                return await policy(key)

        return find_in_loop if is_async(policy) else find

    def outcome(self, result: Any, writer: Writer) -> Any:
        """Return what is recorded of an attempt that has succeeded."""
        return _shortest(self.context.state.finish(writer, result))

    def reconciled(self, result: Any, place: str) -> Any:
        """Return what is recorded of an interrupted call that does not run again."""
        self.writer.place = place
        return _shortest(self.context.state.reconcile(self.writer, result))

    def withdraw(self, *, has_failed: bool) -> None:
        """Take back what the call has set: it has failed, or was cut off."""
        self.writer.has_ended = True
        if self._has_state:
            warnings = self.context.state.withdraw(self.writer)
            self._warn(warnings if has_failed else ())

    @property
    def _has_state(self) -> bool:
        """Return whether there is a state: a function that was suspended or has returned has none."""
        return self.context.activation.is_running

    def restore(self, recorded: Any) -> Any:
        """Apply what a recorded call has set, and return its result."""
        outcome = recorded if isinstance(recorded, StepOutcome) else StepOutcome(recorded)
        self.context.state.restore(self.writer, outcome)
        self._warn(self.writer.conflicts)
        return outcome.result

    def _warn(self, texts: Iterable[str]) -> None:
        for text in dict.fromkeys(texts):
            self.context.activation.emit(WorkflowEvent("warning", text, origin=WorkflowEventSource.FRAMEWORK))


def _shortest(outcome: StepOutcome) -> Any:
    # A result that is a StepOutcome itself must not be taken for this one.
    return outcome if outcome.state or isinstance(outcome.result, StepOutcome) else outcome.result


def begin_foreign_step(activation: ActivationPort, call: StepCall) -> Coroutine[Any, Any, Any]:
    """Call a step that is no `@step`, such as a tool call of an agent: its record has the state that it sets."""
    context = get_run_context()
    if context is None or context.activation is not activation:
        return activation.step(call)
    recorded = RecordedCall.of(context, call.name)
    policy = recorded.reconciling(call.if_interrupted)
    call = replace(call, fn=_with_state(recorded, call), if_interrupted=policy, found=recorded.reconciled)
    return _follow(recorded, activation.step(call))


async def _follow(recorded: RecordedCall, step: Coroutine[Any, Any, Any]) -> Any:
    try:
        result = await step
    except BaseException as error:
        recorded.withdraw(has_failed=isinstance(error, Exception))
        raise
    return recorded.restore(result)


def _with_state(recorded: RecordedCall, call: StepCall) -> Callable[..., Any]:
    fn = call.fn

    def outcome(result: Any, writer: Writer) -> Any:
        if call.has_failed is not None and call.has_failed(result):
            recorded.withdraw(has_failed=True)
        return recorded.outcome(result, writer)

    @functools.wraps(fn)
    async def work(*args: Any) -> Any:
        with recorded.attempt() as writer:
            result = fn(*args) if is_async(fn) else await asyncio.to_thread(fn, *args)
            return outcome(await result if inspect.isawaitable(result) else result, writer)

    return work
