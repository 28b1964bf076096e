"""Calls of models and tools, as steps of the handler call that they are made in: what came back is not asked for again.

Outside of a workflow they are simply made.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.agents.client.streaming import Told, retold
from perdure.agents.messages.message import Message
from perdure.graph import Numbering, StepCall, activation_at_work, begin_step
from perdure.records import digest
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence

    from perdure.graph import ActivationPort, IfInterrupted

T = TypeVar("T")
UpdateT = TypeVar("UpdateT")
FinalT = TypeVar("FinalT")


@dataclass(slots=True)
class Turn:
    """One turn of an agent: what its calls are named after, so that another life finds them again.

    Turns are known by what the agent was `told`, and by a number if it was told the same before: side by side they may
    begin in any order. Its `traits` are for an agent that has no name of its own.
    """

    name: str
    told: InitVar[Iterable[object]] = ()
    traits: InitVar[Iterable[object]] = ()
    activation: ActivationPort | None = field(default_factory=activation_at_work)
    key: str = field(default="", init=False)
    number: int = field(default=0, init=False)
    _turns: Numbering = field(default_factory=Numbering, init=False)
    _calls: Numbering = field(default_factory=Numbering, init=False)
    _is_broken: bool = field(default=False, init=False)
    """Whether its last call of the model came to nothing, so that another turn may go on with it."""

    def __post_init__(self, told: Iterable[object], traits: Iterable[object]) -> None:
        if self.activation is not None:
            about = [list(told), list(traits)]
            self.key = self.activation.turn_key(
                lambda path: f"{self.name}~{_digest(*about, *([[path]] if path else []))}"
            )
            self._turns = self.activation.numbering(f"turn of {self.key}")
            self.number = self._turns.take()

    def model_call(self) -> int:
        """The number of the next call of the model."""
        if self._is_broken:
            self._is_broken = False
            self.number = self._turns.take_again(self.number)
        return self._calls.take()

    def give_up(self, model_call: int) -> None:
        """A call of the model came to nothing: whoever makes it again, in this turn or in the next, makes this one.

        In another life the first to make it has what it came to at last.
        """
        self._calls.give_back(model_call)
        if not self._is_broken:
            self._is_broken = True
            self._turns.give_back(self.number)

    def model_key(self, model_call: int) -> str:
        """What a call of the model is known by."""
        return f"{self.key}#{self.number}.{model_call}"

    def tool_key(self, call_id: str, place: int) -> str:
        """What a call that the model has asked for is known by: `place` is where it stood in the answer."""
        return f"{self.key}#{self.number}.{self._calls.used}/{place}:{call_id}"

    async def ask(self, name: str, model_call: int, fn: Callable[[], Awaitable[T]]) -> T:
        """Call the model, or get what it answered in an earlier life."""
        try:
            return await self.call(name, self.model_key(model_call), fn, "rerun")
        except BaseException:
            self.give_up(model_call)
            raise

    def call(
        self,
        name: str,
        key: str,
        fn: Callable[[], Awaitable[T]],
        if_interrupted: IfInterrupted,
        has_failed: Callable[[T], bool] | None = None,
    ) -> Awaitable[T]:
        """Make a call, or get what it gave in an earlier life."""
        if self.activation is None:
            return fn()
        call = StepCall(name, fn, (), key, if_interrupted=if_interrupted, has_failed=has_failed)
        return begin_step(self.activation, call)

    def spend(self, **amounts: float) -> None:
        """Count what a call has cost. Called inside of it, it is counted with its record, once."""
        if self.activation is not None:
            self.activation.spend(amounts)

    def require_budget(self) -> None:
        """Raise BudgetExceededError if the run has nothing left to spend."""
        if self.activation is not None:
            self.activation.require_budget()


_turn: ContextVar[Turn | None] = ContextVar("perdure_turn", default=None)


@contextmanager
def taking(turn: Turn) -> Generator[None]:
    """Let what is called inside, and not awaited, belong to a turn.

    Whoever makes calls later takes the turn along when it is called: generators run in the context of who reads them.
    """
    token = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(token)


def turn_of(name: str, told: Iterable[object] = ()) -> Turn:
    """The turn that a call belongs to; of one that nobody takes a turn for, one of its own."""
    return _turn.get() or Turn(name, told)


def _digest(*about: Iterable[object]) -> str:
    """What tells turns from each other. Ids of messages say nothing: they may be drawn anew in each life."""
    plain = [[_plain(each) for each in every] for every in about]
    return digest(json.dumps(plain, sort_keys=True, default=lambda value: type(value).__name__).encode())[:16]


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return [value.role, [content.to_dict() for content in value.contents]]
    return value


def recorded(
    turn: Turn, ask: Callable[[], Awaitable[FinalT]], *, name: str, counted: Callable[[FinalT], None]
) -> Awaitable[FinalT]:
    """A call of a model that answers as a whole. If it is really made, there has to be something left to spend."""

    async def work() -> FinalT:
        turn.require_budget()
        whole = await ask()
        counted(whole)
        return whole

    return turn.ask(name, turn.model_call(), work)


def recorded_stream(
    turn: Turn,
    make: Callable[[], ResponseStream[UpdateT, FinalT]],
    *,
    name: str,
    counted: Callable[[FinalT], None],
    pieces: Callable[[FinalT], Sequence[UpdateT]],
    rebuilt: Callable[[Sequence[UpdateT]], FinalT] | None = None,
) -> ResponseStream[UpdateT, FinalT]:
    """A call that streams. Its pieces are told as they come, and its whole is recorded.

    If it came back in an earlier life, `pieces` says what is told of it. Where hooks have changed pieces, `rebuilt`
    makes another whole of them, for whoever put the hooks there.
    """
    if turn.activation is None:
        return make() if rebuilt is None else retold(make(), rebuilt=rebuilt)
    call = _StreamedCall(turn, make, name, turn.model_call(), counted, pieces)

    def whole(updates: Sequence[UpdateT]) -> FinalT:
        return call.final[0] if rebuilt is None or call.told.are(updates) else rebuilt(updates)

    return ResponseStream(call.pieces_told(), finalizer=whole)


@dataclass(slots=True)
class _StreamedCall:
    """A call that streams and is a step: pieces come out of the step through a queue."""

    turn: Turn
    make: Callable[[], ResponseStream[Any, Any]]
    name: str
    model_call: int
    counted: Callable[[Any], None]
    pieces: Callable[[Any], Sequence[Any]]
    final: list[Any] = field(default_factory=list[Any])
    told: Told[Any] = field(default_factory=Told[Any])
    is_asked: bool = False
    queue: asyncio.Queue[Any] = field(default_factory=asyncio.Queue[Any])

    async def pieces_told(self) -> AsyncGenerator[Any]:
        task = asyncio.ensure_future(self.turn.ask(self.name, self.model_call, self.work))
        task.add_done_callback(lambda _: self.queue.put_nowait(None))
        try:
            while (update := await self.queue.get()) is not None:
                yield self.told.note(update)
            self.final.append(await task)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if not self.is_asked:
            for piece in self.pieces(self.final[0]):
                yield self.told.note(piece)

    async def work(self) -> Any:
        self.turn.require_budget()
        self.is_asked = True
        stream = self.make()
        try:
            async for update in stream:
                self.queue.put_nowait(update)
            whole = await stream.get_final_response()
        finally:
            # Whoever is cancelled in the middle lets go of the connection at once.
            await stream.aclose()
        self.counted(whole)
        return whole
