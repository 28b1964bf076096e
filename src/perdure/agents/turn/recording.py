"""Recorded calls: model and tool calls as steps of the activation, so that a resumed turn repeats none of them.

Outside a workflow the calls are made directly.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.agents.client.streaming import forward_stream, stream_updates
from perdure.agents.messages.message import Message
from perdure.graph import IfInterrupted, Numbering, StepCall, activation_at_work, begin_step
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence

    from perdure.engine import ActivationRecorder
    from perdure.streams import ResponseStream

T = TypeVar("T")
UpdateT = TypeVar("UpdateT")
FinalT = TypeVar("FinalT")


@dataclass(slots=True)
class Turn:
    """The identity of one turn of an agent. Its calls are named after it, so that a resumed run finds their records.

    A turn is identified by its `input_messages` and a number if they repeat: parallel turns may start in any order.
    `traits` identify an agent without a name.

    Attributes:
        returns_requests: True if the caller gets the agent's questions. Otherwise, in a workflow, the activation asks
            them.
        times_asked: How often the activation has asked questions of this turn.
        _has_failed: True if the last model call failed, so that another turn may continue from it.
    """

    name: str
    input_messages: InitVar[Iterable[object]] = ()
    traits: InitVar[Iterable[object]] = ()
    activation: ActivationRecorder | None = field(default_factory=activation_at_work)
    returns_requests: bool = False
    times_asked: int = field(default=0, init=False)
    key: str = field(default="", init=False)
    number: int = field(default=0, init=False)
    _turns: Numbering = field(default_factory=Numbering, init=False)
    _calls: Numbering = field(default_factory=Numbering, init=False)
    _has_failed: bool = field(default=False, init=False)

    def __post_init__(self, input_messages: Iterable[object], traits: Iterable[object]) -> None:
        if self.activation is not None:
            about = [list(input_messages), list(traits)]
            self.key = self.activation.turn_key(
                lambda path: f"{self.name}~{_digest(*about, *([[path]] if path else []))}"
            )
            self._turns = self.activation.numbering(f"turn of {self.key}")
            self.number = self._turns.take()

    @property
    def asks(self) -> bool:
        """Return True if the questions of this turn are requests of the activation."""
        return self.activation is not None and not self.returns_requests

    def next_model_call(self) -> int:
        """Return the number of the next model call."""
        if self._has_failed:
            self._has_failed = False
            self.number = self._turns.take_again(self.number)
        return self._calls.take()

    def tool_key(self, call_id: str, place: int) -> str:
        """Return the step key of a tool call; `place` is its position in the model's response."""
        # A call that has asked is made again after the answer.
        again = f"?{self.times_asked}" if self.times_asked else ""
        return f"{self.key}#{self.number}.{self._calls.used}/{place}:{call_id}{again}"

    async def call_model(
        self,
        name: str,
        model_call: int,
        make: Callable[[], Awaitable[T]],
        count: Callable[[T], None],
        resources: Collection[str] = (),
    ) -> T:
        """Call the model, or return its recorded response. A call that is made needs budget left.

        What it may spend of `resources` is reserved.
        """

        async def work() -> T:
            async with nullcontext() if self.activation is None else self.activation.reserve(resources):
                result = await make()
                count(result)
                return result

        try:
            key = f"{self.key}#{self.number}.{model_call}"
            event = "model_call_completed" if name == "model" else "step_completed"
            return await self.call(name, key, work, "rerun", event=event)
        except BaseException:
            # The next attempt, in this turn or another, gets the number of the failed call. In a resumed run the first
            # to make the call gets the recorded result.
            self._calls.give_back(model_call)
            if not self._has_failed:
                self._has_failed = True
                self._turns.give_back(self.number)
            raise

    def call(
        self,
        name: str,
        key: str,
        fn: Callable[[], Awaitable[T]],
        if_interrupted: IfInterrupted,
        has_failed: Callable[[T], bool] | None = None,
        *,
        event: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Awaitable[T]:
        """Make a call as a step that emits an event, or return its recorded result."""
        if self.activation is None:
            return fn()
        call = StepCall(
            name, fn, (), key, if_interrupted=if_interrupted, has_failed=has_failed, event=event, about=about or {}
        )
        return begin_step(self.activation, call)

    def spend(self, **amounts: float) -> None:
        """Report the cost of a call. Inside a step it is stored with the step's record, once."""
        if self.activation is not None and amounts:
            self.activation.spend(amounts)


class _NoMarkError(Exception):
    """Fails a step, so that it leaves no record."""


async def has_failed_here(activation: ActivationRecorder | None, key: str) -> bool:
    """Return True if an earlier attempt has failed here; otherwise leave a mark for the next one.

    Call it before raising an error that follows from recorded calls. They come back in each attempt, so without the
    mark each attempt would fail like the first.
    """

    async def read() -> None:
        raise _NoMarkError

    async def leave() -> None:
        """Leave a record."""

    if activation is None:
        return False
    try:
        await begin_step(activation, StepCall("give up", read, (), key, event=None))
    except _NoMarkError:
        await begin_step(activation, StepCall("give up", leave, (), key, event=None))
        return False
    return True


_turn: ContextVar[Turn | None] = ContextVar("perdure_turn", default=None)
_returning: ContextVar[object] = ContextVar("perdure_returning", default=None)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Generator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def use_turn(turn: Turn) -> AbstractContextManager[None]:
    """Make `turn` the current turn of calls that are started, not awaited, inside the block.

    A generator runs in its reader's context, so a call that runs later must capture the turn when it is started.
    """
    return _set(_turn, turn)


def return_requests(agent: object) -> AbstractContextManager[None]:
    """Let runs of this agent that start inside the block return their questions as `response.user_input_requests`.

    Without it, an agent that is run inside a handler or a workflow function asks them as requests of the run.
    """
    return _set(_returning, agent)


def is_returning_requests(agent: object) -> bool:
    """Return True inside `return_requests(agent)`."""
    return _returning.get() is agent


def current_turn(name: str, input_messages: Iterable[object] = ()) -> Turn:
    """Return the current turn, or a new one for a call outside any turn."""
    return _turn.get() or Turn(name, input_messages)


def _digest(*about: Iterable[object]) -> str:
    """Return what tells turns apart. Message ids are left out: each attempt may draw new ones."""
    plain = [
        [
            [each.role, [content.to_dict() for content in each.contents]] if isinstance(each, Message) else each
            for each in every
        ]
        for every in about
    ]
    return digest(json.dumps(plain, sort_keys=True, default=lambda value: type(value).__name__).encode())[:16]


def record_stream(
    turn: Turn,
    make: Callable[[], ResponseStream[UpdateT, FinalT]],
    *,
    name: str,
    count: Callable[[FinalT], None],
    split: Callable[[FinalT], Sequence[UpdateT]],
    rebuild: Callable[[Sequence[UpdateT]], FinalT] | None = None,
    resources: Collection[str] = (),
) -> ResponseStream[UpdateT, FinalT]:
    """Stream a call as a step of the turn: updates are sent as they come, the final response is recorded.

    `split` turns a recorded response into updates. If hooks replace updates, `rebuild` makes the final response that
    their author sees.
    """
    if turn.activation is None:
        return make() if rebuild is None else forward_stream(make(), rebuild=rebuild)
    number = turn.next_model_call()
    final: list[FinalT] = []
    queue: asyncio.Queue[UpdateT | None] = asyncio.Queue()
    is_asked = False

    async def ask() -> FinalT:
        nonlocal is_asked
        is_asked = True
        stream = make()
        try:
            async for update in stream:
                queue.put_nowait(update)
            return await stream.get_final_response()
        finally:
            # A cancelled call must release its connection at once.
            await stream.aclose()

    async def updates() -> AsyncGenerator[UpdateT]:
        task = asyncio.ensure_future(turn.call_model(name, number, ask, count, resources))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (update := await queue.get()) is not None:
                yield update
            final.append(await task)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if not is_asked:
            for update in split(final[0]):
                yield update

    return stream_updates(updates(), final=lambda: final[0], rebuild=rebuild or (lambda _: final[0]))
