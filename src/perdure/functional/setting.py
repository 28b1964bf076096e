"""What one call sets in the state of a function, try by try: what its record says, and what a failed try takes back."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.functional.board import writing
from perdure.functional.context import get_run_context
from perdure.functional.past import StepOutcome, place_in
from perdure.runtime.flight import is_async, step_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from perdure.functional.board import Writer
    from perdure.functional.context import RunContext
    from perdure.graph.port import ActivationPort, StepCall


@dataclass(slots=True)
class Setting:
    """A call that is recorded, as far as it sets state, for as often as it is tried."""

    context: RunContext
    writer: Writer
    """What sets its state: anew for each try, since one that is late may still be running in its thread."""

    @contextmanager
    def trying(self) -> Generator[Writer]:
        """A try begins: what the last one has set is not kept."""
        self.withdraw()
        self.writer = replace(
            self.writer,
            place=place_in(self.context.activation),
            key=step_key(),
            seen={},
            sets=Counter(),
            conflicts=[],
            has_ended=False,
        )
        with self.going_on(self.writer):
            yield self.writer

    @contextmanager
    def going_on(self, writer: Writer) -> Generator[None]:
        """What is set meanwhile is set by this try, unless it fails."""
        try:
            with writing(writer):
                yield
        except BaseException:
            self._withdraw(writer)
            raise

    async def awaited(self, result: Awaitable[Any], writer: Writer) -> Any:
        """The rest of a function that could not be seen to be async."""
        with self.going_on(writer):
            return self.outcome(await result, writer)

    def outcome(self, result: Any, writer: Writer) -> Any:
        """What is recorded of a try that went well."""
        return _shortest(self.context.board.settled(writer, result))

    def found(self, result: Any, place: str) -> Any:
        """What is recorded of a call that was interrupted and is not made again: the steps in it have been done."""
        self.writer.place = place
        return _shortest(self.context.board.found(self.writer, result))

    def withdraw(self) -> None:
        """What the last try has set is not kept."""
        self._withdraw(self.writer)

    def _withdraw(self, writer: Writer) -> None:
        writer.has_ended = True
        # A function that was left, or has returned, has no state any more that could be put back.
        if self.context.activation.is_running:
            self.context.board.withdraw(writer)

    def restore(self, recorded: Any) -> Any:
        """The result, of what was recorded. What it has set is set, whoever has done it; others who have are told."""
        outcome = recorded if isinstance(recorded, StepOutcome) else StepOutcome(recorded)
        self.context.board.restore(self.writer, outcome)
        for text in dict.fromkeys(self.writer.conflicts):
            warning = WorkflowEvent("warning", text, origin=WorkflowEventSource.FRAMEWORK)
            self.context.activation.tell(warning)
        return outcome.result


def _shortest(outcome: StepOutcome) -> Any:
    """As it is recorded. One that was given as a result can't be taken for what is said here."""
    return outcome if outcome.state or isinstance(outcome.result, StepOutcome) else outcome.result


def begin_heard(activation: ActivationPort, call: StepCall) -> Coroutine[Any, Any, Any]:
    """A step that is no `@step`, such as a call of an agent's tool: what is set inside of it is in its record."""
    context = get_run_context()
    if context is None or context.activation is not activation:
        return activation.step(call)
    setting = Setting(context, context.board.called(call.name))
    return _followed(setting, activation.step(replace(call, fn=_heard(setting, call.fn), found=setting.found)))


async def _followed(setting: Setting, step: Coroutine[Any, Any, Any]) -> Any:
    try:
        recorded = await step
    except BaseException:
        setting.withdraw()
        raise
    return setting.restore(recorded)


def _heard(setting: Setting, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def work(*args: Any) -> Any:
        with setting.trying() as writer:
            return setting.outcome(await fn(*args), writer)

    @functools.wraps(fn)
    def plain_work(*args: Any) -> Any:
        with setting.trying() as writer:
            result = fn(*args)
            return setting.awaited(result, writer) if inspect.isawaitable(result) else setting.outcome(result, writer)

    return work if is_async(fn) else plain_work
