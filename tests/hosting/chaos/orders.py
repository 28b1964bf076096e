"""The workflow whose hosts are killed: an order is worked on side by side, approved from outside, paid, and shipped.

Every step has an effect outside of the store. Its times depend on the number of the order alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.hosting.chaos.world import Fact

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler
from perdure.engine import NOT_DONE, step_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosting.chaos.world import What, World

NAME = "orders"
STEPS = ("price here", "price there", "reserve", "pick", "map", "book", "pay", "ship")
"""Each step that a run takes, once."""

_BLOCKING_EVERY = 50
_BLOCKING_SECONDS = 2.0


@dataclass
class Order:
    """What begins a run."""

    run: str
    number: int

    def seconds(self, name: str, longest: float) -> float:
        """How long something takes: other orders, other times."""
        return longest * ((self.number * 7 + len(name) * 3) % 10 + 1) / 10


@dataclass
class Share:
    """What one of those side by side has done."""

    order: Order
    done: list[str]


@dataclass
class Approval:
    """The question how much to pay."""

    run: str
    number: int


@dataclass
class Approved:
    """An order with its amount."""

    order: Order
    amount: int


@dataclass
class Shipped:
    """An order that is on its way."""

    order: Order
    receipt: str


_lives = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Life:
    """From the making of the executors of a run to their end, in one host. It notes what it does."""

    world: World
    number: int = field(default_factory=lambda: next(_lives))

    def note(self, what: What, order: Order, name: str = "", key: str = "") -> None:
        self.world.note(Fact(what, os.getpid(), order.run, name, key, self.number))

    def work(self, order: Order, name: str) -> str:
        """Work that takes its time, in a thread."""
        time.sleep(order.seconds(name, 0.1))
        self.note("effect", order, name, step_key())
        time.sleep(order.seconds(name, 0.3))
        return f"{name} {order.number}"

    async def work_soon(self, order: Order, name: str) -> str:
        """The same in the event loop."""
        await asyncio.sleep(order.seconds(name, 0.1))
        self.note("effect", order, name, step_key())
        await asyncio.sleep(order.seconds(name, 0.3))
        return f"{name} {order.number}"

    def found_out(self, order: Order, name: str, key: str) -> object:
        """Whether work that was cut off has been done, as who does it would tell."""
        is_done = any(fact.what == "effect" and fact.key == key for fact in self.world.facts())
        return f"{name} {order.number}" if is_done else NOT_DONE


class Worker(Executor):
    """An executor of one life."""

    def __init__(self, executor_id: str, life: Life) -> None:
        super().__init__(executor_id)
        self._life = life

    async def _done(
        self,
        ctx: WorkflowContext[Any, Any],
        order: Order,
        name: str,
        work: Callable[[Order, str], Any] | None = None,
        **options: Any,
    ) -> str:
        result = await ctx.step(name, work or self._life.work, order, name, **options)
        self._life.note("returned", order, name)
        return result


class Splitter(Worker):
    """Hands an order to those who work on it side by side."""

    @handler
    async def split(self, order: Order, ctx: WorkflowContext[Order]) -> None:
        await ctx.send_message(order)


class Pricer(Worker):
    """Two steps at the same time."""

    @handler
    async def price(self, order: Order, ctx: WorkflowContext[Share]) -> None:
        names = ("price here", "price there")
        done = await asyncio.gather(*(self._done(ctx, order, name, self._life.work_soon, key=name) for name in names))
        await ctx.send_message(Share(order, list(done)))


class Picker(Worker):
    """A step, a wait, a step."""

    @handler
    async def pick(self, order: Order, ctx: WorkflowContext[Share]) -> None:
        reserved = await self._done(ctx, order, "reserve")
        await ctx.sleep(order.seconds("pick", 0.8))
        await ctx.send_message(Share(order, [reserved, await self._done(ctx, order, "pick")]))


class Router(Worker):
    """A step. A few orders hold up the whole event loop, for longer than a lease."""

    @handler
    async def route(self, order: Order, ctx: WorkflowContext[Share]) -> None:
        if order.number % _BLOCKING_EVERY == _BLOCKING_EVERY - 1:
            time.sleep(_BLOCKING_SECONDS)  # noqa: ASYNC251 - that is what some handlers do
        await ctx.send_message(Share(order, [await self._done(ctx, order, "map")]))


class Judge(Worker):
    """Gathers, and asks."""

    def __init__(self, life: Life) -> None:
        super().__init__("judge", life)
        self._order: Order | None = None
        self._done_before: list[str] = []

    @handler
    async def gather(self, shares: list[Share], ctx: WorkflowContext[Approved]) -> None:
        self._order = shares[0].order
        self._done_before = [each for share in shares for each in share.done]
        await ctx.request_info(Approval(self._order.run, self._order.number), int)

    @response_handler
    async def decide(self, request: Approval, amount: int, ctx: WorkflowContext[Approved, str]) -> None:
        assert self._order is not None
        booked = await self._done(ctx, self._order, "book")
        await ctx.yield_output(f"{', '.join(self._done_before)}; {booked}: {amount} for {request.number}")
        await ctx.send_message(Approved(self._order, amount))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"order": self._order, "done": self._done_before}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._order, self._done_before = state["order"], state["done"]


class Payer(Worker):
    """Pays, which nobody does twice who can find out; waits; ships."""

    @handler
    async def pay(self, approved: Approved, ctx: WorkflowContext[Shipped, str]) -> None:
        order = approved.order
        paid = await self._done(ctx, order, "pay", if_interrupted=partial(self._life.found_out, order, "pay"))
        await ctx.sleep(order.seconds("ship", 2.0))
        await ctx.yield_output(f"{paid}: {approved.amount}")
        await ctx.send_message(Shipped(order, await self._done(ctx, order, "ship")))


class Teller(Worker):
    """Tells the end."""

    @handler
    async def tell(self, shipped: Shipped, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{shipped.receipt} is over")


def build(world: World) -> Workflow:
    """The whole graph, for one life."""
    life = Life(world)
    world.note(Fact("born", os.getpid(), life=life.number))
    splitter, pricer, picker = Splitter("splitter", life), Pricer("pricer", life), Picker("picker", life)
    router, judge, payer, teller = Router("router", life), Judge(life), Payer("payer", life), Teller("teller", life)
    return (
        WorkflowBuilder(name=NAME, start_executor=splitter)
        .add_fan_out_edges(splitter, [pricer, picker, router])
        .add_fan_in_edges([pricer, picker, router], judge)
        .add_edge(judge, payer)
        .add_edge(payer, teller)
        .build()
    )


def outputs(number: int, amount: int) -> list[str]:
    """What an order tells that nobody has disturbed."""
    before = [f"{name} {number}" for name in ("price here", "price there", "reserve", "pick", "map")]
    return [
        f"{', '.join(before)}; book {number}: {amount} for {number}",
        f"pay {number}: {amount}",
        f"ship {number} is over",
    ]
