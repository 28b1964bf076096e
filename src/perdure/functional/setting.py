"""What one call sets in the state of a function, try by try: what its record says, and what a failed try takes back."""

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
from perdure.functional.board import writing
from perdure.functional.context import get_run_context
from perdure.functional.past import StepOutcome, place_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable

    from perdure.functional.board import Writer
    from perdure.functional.context import RunContext
    from perdure.graph import ActivationPort, IfInterrupted, StepCall


@dataclass(slots=True)
class Setting:
    """A call that is recorded, as far as it sets state, for as often as it is tried."""

    context: RunContext
    writer: Writer
    """What sets its state: anew for each try, since one that is late may still be running in its thread."""

    @contextmanager
    def trying(self) -> Generator[Writer]:
        """A try begins. The last one may still be running in a thread, and sets nothing any more."""
        self._retreat(self.writer)
        self.writer = replace(
            self.writer,
            place=place_in(self.context.activation),
            calls=Counter(),
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
            self._retreat(writer)
            raise

    def _retreat(self, writer: Writer) -> None:
        writer.has_ended = True
        if self._is_of_use:
            self.context.board.retreat(writer)

    async def awaited(self, result: Awaitable[Any], writer: Writer) -> Any:
        """The rest of a function that could not be seen to be async."""
        with self.going_on(writer):
            return self.outcome(await result, writer)

    def finding(self, policy: IfInterrupted) -> IfInterrupted:
        """What becomes of a call that was interrupted. A function that finds out may set state in its place."""
        if not callable(policy):
            return policy

        def find(key: str) -> Any:
            with self.trying() as writer:
                found = policy(key)
                return rest(found, writer) if inspect.isawaitable(found) else found

        async def rest(found: Awaitable[Any], writer: Writer) -> Any:
            with self.going_on(writer):
                return await found

        async def find_in_loop(key: str) -> Any:
            with self.trying():
                return await policy(key)

        return find_in_loop if is_async(policy) else find

    def outcome(self, result: Any, writer: Writer) -> Any:
        """What is recorded of a try that went well."""
        return _shortest(self.context.board.settled(writer, result))

    def found(self, result: Any, place: str) -> Any:
        """What is recorded of a call that was interrupted and is not made again: the steps in it have been done."""
        self.writer.place = place
        return _shortest(self.context.board.found(self.writer, result))

    def withdraw(self, *, has_failed: bool) -> None:
        """What the call has set is not kept: it has failed, or was cut off."""
        self.writer.has_ended = True
        if self._is_of_use:
            warnings = self.context.board.withdraw(self.writer)
            self._warn(warnings if has_failed else ())

    @property
    def _is_of_use(self) -> bool:
        """Whether there is a state: a function that was left, or has returned, has none that could be put back."""
        return self.context.activation.is_running

    def restore(self, recorded: Any) -> Any:
        """The result, of what was recorded. What it has set is set, whoever has done it; others who have are told."""
        outcome = recorded if isinstance(recorded, StepOutcome) else StepOutcome(recorded)
        self.context.board.restore(self.writer, outcome)
        self._warn(self.writer.conflicts)
        return outcome.result

    def _warn(self, texts: Iterable[str]) -> None:
        for text in dict.fromkeys(texts):
            self.context.activation.tell(WorkflowEvent("warning", text, origin=WorkflowEventSource.FRAMEWORK))


def _shortest(outcome: StepOutcome) -> Any:
    """As it is recorded. One that was given as a result can't be taken for what is said here."""
    return outcome if outcome.state or isinstance(outcome.result, StepOutcome) else outcome.result


def begin_heard(activation: ActivationPort, call: StepCall) -> Coroutine[Any, Any, Any]:
    """A step that is no `@step`, such as a call of an agent's tool: what is set inside of it is in its record."""
    context = get_run_context()
    if context is None or context.activation is not activation:
        return activation.step(call)
    setting = Setting(context, context.board.called(call.name, activation.branch))
    finding = setting.finding(call.if_interrupted)
    heard = replace(call, fn=_heard(setting, call), if_interrupted=finding, found=setting.found)
    return _followed(setting, activation.step(heard))


async def _followed(setting: Setting, step: Coroutine[Any, Any, Any]) -> Any:
    try:
        recorded = await step
    except BaseException as error:
        setting.withdraw(has_failed=isinstance(error, Exception))
        raise
    return setting.restore(recorded)


def _heard(setting: Setting, call: StepCall) -> Callable[..., Any]:
    fn = call.fn

    def recorded(result: Any, writer: Writer) -> Any:
        if call.has_failed is not None and call.has_failed(result):
            setting.withdraw(has_failed=True)
        return setting.outcome(result, writer)

    @functools.wraps(fn)
    async def work(*args: Any) -> Any:
        with setting.trying() as writer:
            result = fn(*args) if is_async(fn) else await asyncio.to_thread(fn, *args)
            return recorded(await result if inspect.isawaitable(result) else result, writer)

    return work
