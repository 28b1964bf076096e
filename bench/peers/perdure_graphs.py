"""The workflows that perdure is measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.peer import Ballast, Interruption, Tick
from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.storage import StoreStorage

NAME = "ring"


class _Player(Executor):
    def __init__(self, id: str, *, last: int, is_interrupted: bool) -> None:  # noqa: A002 - the name it has in the API
        super().__init__(id=id)
        self._last = last
        self._is_interrupted = is_interrupted

    @handler
    async def play(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        if number < self._last:
            await ctx.send_message(number + 1)
        elif self._is_interrupted:
            raise Interruption
        else:
            await ctx.yield_output(number)


class _Hub(Executor):
    def __init__(self, *, laps: int) -> None:
        super().__init__(id="hub")
        self._laps = laps

    @handler
    async def begin(self, lap: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(lap)

    @handler
    async def collect(self, laps: list[int], ctx: WorkflowContext[int, int]) -> None:
        lap = laps[0]
        if lap < self._laps:
            await ctx.send_message(lap + 1)
        else:
            await ctx.yield_output(lap * len(laps))


class _Branch(Executor):
    @handler
    async def answer(self, lap: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(lap)


class _Clerk(Executor):
    """Asks a person about each fourth number."""

    @handler
    async def take(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        if number % 4:
            await ctx.yield_output(number)
        else:
            await ctx.request_info(f"May {number} pass?", bool)

    @response_handler
    async def answered(self, question: str, may_pass: bool, ctx: WorkflowContext[int, int]) -> None:  # noqa: FBT001
        await ctx.yield_output(int(may_pass) + len(question))


def clerk(storage: StoreStorage | None) -> Workflow:
    """A workflow that may ask."""
    return WorkflowBuilder(name="clerk", start_executor=_Clerk("clerk"), checkpoint_storage=storage).build()


class _Writer(Executor):
    """Adds an entry to the history, which is shared."""

    def __init__(self, id: str, entries: Sequence[str], tick: Tick, new: Callable[[], Any]) -> None:  # noqa: A002
        super().__init__(id=id)
        self._entries = entries
        self._tick = tick
        self._new = new

    @handler
    async def write(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self._tick()
        history = ctx.get_state("history")
        if history is None:
            history = self._new()
        history.append(self._entries[number - 1])
        ctx.set_state("history", history)
        if number < len(self._entries):
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(sum(map(len, history)))


class _Porter(Executor):
    """Hands a number to itself, beside ballast in the shared state that it does not look at."""

    def __init__(self, last: int, tick: Tick, value: object) -> None:
        super().__init__(id="porter")
        self._last = last
        self._tick = tick
        self._value = value

    @handler
    async def carry(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self._tick()
        self._take(number, ctx)
        if number < self._last:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(number)

    def _take(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        if number == 1:
            ctx.set_state("ballast", self._value)


class _LadenPorter(_Porter):
    """The ballast is part of its own state, which changes with every message."""

    _carried = 0

    def _take(self, number: int, ctx: WorkflowContext[int, int]) -> None:  # noqa: ARG002 - it has it already
        self._carried = number

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """The small thing that changes and the large one that does not."""
        return {"carried": self._carried, "ballast": self._value}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Both."""
        self._carried, self._value = state["carried"], state["ballast"]


def ring(supersteps: int, storage: StoreStorage | None, *, is_interrupted: bool = False) -> Workflow:
    """Ping and pong."""
    ping = _Player("ping", last=supersteps, is_interrupted=is_interrupted)
    pong = _Player("pong", last=supersteps, is_interrupted=is_interrupted)
    return _to_and_fro(ping, pong, supersteps, storage)


def history(entries: Sequence[str], tick: Tick, new: Callable[[], Any], storage: StoreStorage | None) -> Workflow:
    """Ping and pong, who write down what they say."""
    ping, pong = (_Writer(name, entries, tick, new) for name in ("ping", "pong"))
    return _to_and_fro(ping, pong, len(entries), storage)


def fan(laps: int, branches: int, storage: StoreStorage | None) -> Workflow:
    """A hub with a fan-out and a fan-in."""
    hub = _Hub(laps=laps)
    spokes = [_Branch(id=f"branch-{number}") for number in range(branches)]
    builder = WorkflowBuilder(
        name="fan", start_executor=hub, checkpoint_storage=storage, max_iterations=2 * laps + 2, output_from=[hub]
    )
    return builder.add_fan_out_edges(hub, spokes).add_fan_in_edges(spokes, hub).build()


def load(ballast: Ballast, value: object, supersteps: int, tick: Tick, storage: StoreStorage | None) -> Workflow:
    """An executor that hands a number to itself, beside the ballast."""
    kind = _Porter if ballast in {Ballast.NONE, Ballast.KEY} else _LadenPorter
    porter = kind(supersteps, tick, value)
    builder = WorkflowBuilder(
        name="load",
        start_executor=porter,
        checkpoint_storage=storage,
        max_iterations=supersteps + 1,
        output_from=[porter],
    )
    return builder.add_edge(porter, porter).build()


def _to_and_fro(ping: Executor, pong: Executor, supersteps: int, storage: StoreStorage | None) -> Workflow:
    builder = WorkflowBuilder(
        name=NAME,
        start_executor=ping,
        checkpoint_storage=storage,
        max_iterations=supersteps + 1,
        output_from=[ping, pong],
    )
    return builder.add_edge(ping, pong).add_edge(pong, ping).build()
