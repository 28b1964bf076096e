"""A workflow with something of everything that can be interrupted, for the resume suite. Run as a script.

An order is worked on by four side by side, judged by somebody outside, paid for, waited for, counted in a
sub-workflow, and told; then comes the next one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.crash.servers import with_postgres

from perdure import (
    Executor,
    FailedMessage,
    Retry,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from perdure.engine import NOT_DONE
from perdure.testing.resume import SHIPPED, Subject, effect, main, returned, was_begun

if TYPE_CHECKING:
    from perdure import PendingRequest

PAUSE_SECONDS = 0.02


@dataclass
class Order:
    """A message between executors."""

    number: int
    trail: list[str] = field(default_factory=list[str])


@dataclass
class Approval:
    """The question how much to pay."""

    order: int


def work(name: str) -> str:
    """Work that leaves a trace in the world."""
    effect(name)
    return name.upper()


async def work_soon(name: str) -> str:
    """Do the work after other tasks had a turn."""
    await asyncio.sleep(0)
    return work(name)


async def done(ctx: WorkflowContext[Any, Any], name: str, fn: Any = work, **options: Any) -> str:
    """A step whose name is that of its effect."""
    result = await ctx.step(name, fn, name, **options)
    returned(name)
    return result


def found_out(name: str, _: str) -> object:
    """Return the result of interrupted work that was done, or NOT_DONE."""
    return name.upper() if was_begun(name) else NOT_DONE


@executor(id="start")
async def start(number: int, ctx: WorkflowContext[Order]) -> None:
    effect(f"start {number}", ctx)
    ctx.set_state("orders", [number])
    await ctx.send_message(Order(number))


class Stepper(Executor):
    """One step, then three side by side."""

    @handler
    async def work(self, order: Order, ctx: WorkflowContext[Order, str]) -> None:
        first = await done(ctx, f"first {order.number}")
        names = [f"{name} {order.number}" for name in ("left", "middle", "right")]
        others = await asyncio.gather(*(done(ctx, name, work_soon) for name in names))
        ctx.set_state("orders", [len(others)])
        await ctx.yield_output(f"{self.id} did {[first, *others]}")
        await ctx.send_message(Order(order.number, [first, *others]))


@executor(id="scribe")
async def scribe(order: Order, ctx: WorkflowContext[Any, str]) -> None:
    effect(f"scribe {order.number}", ctx)
    await ctx.yield_output(f"order {order.number} is written down")


class Flaky(Executor):
    """Fails at its first attempt in every life, and keeps count of what it has done."""

    def __init__(self) -> None:
        super().__init__("flaky", retry=Retry(attempts=1000, backoff=0.001, factor=1.0, on=OSError))
        self._handled: list[int] = []
        self._has_failed = False

    @handler
    async def work(self, order: Order, ctx: WorkflowContext[Order]) -> None:
        if not self._has_failed:
            self._has_failed = True
            raise OSError("not yet")
        effect(f"flaky {order.number}", ctx)
        self._handled.append(order.number)
        await ctx.send_message(Order(order.number, [f"handled {self._handled}"]))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"handled": self._handled}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._handled = state["handled"]


@executor(id="mourner")
async def mourner(failed: FailedMessage, ctx: WorkflowContext[Any, str]) -> None:
    effect(f"mourn {failed.message.number}", ctx)
    await ctx.yield_output(f"{failed.executor_id}: {failed.error.message} after {failed.attempts}")


class Picky(Executor):
    """Takes nothing."""

    def __init__(self) -> None:
        super().__init__("picky", on_error=mourner)

    @handler
    async def refuse(self, order: Order, ctx: WorkflowContext[Any]) -> None:
        del ctx
        raise ValueError(f"no {order.number} for me")


class Judge(Executor):
    """Gathers and asks."""

    @handler
    async def gather(self, orders: list[Order], ctx: WorkflowContext[Order]) -> None:
        effect(f"gather {orders[0].number}", ctx)
        ctx.set_state("trail", [line for order in orders for line in order.trail])
        await ctx.request_info(Approval(orders[0].number), int)

    @response_handler
    async def decide(self, request: Approval, amount: int, ctx: WorkflowContext[Order, str]) -> None:
        effect(f"decide {request.order}", ctx)
        await ctx.yield_output(f"{amount} for {request.order}")
        await ctx.send_message(Order(request.order, [f"amount {amount}"]))


class Payer(Executor):
    """Steps that a crash must not simply repeat, with a wait between them."""

    @handler
    async def pay(self, order: Order, ctx: WorkflowContext[int, str]) -> None:
        n = order.number
        asked = await done(ctx, f"ask {n}", if_interrupted="ask")
        await ctx.sleep(PAUSE_SECONDS)
        found = await done(ctx, f"pay {n}", if_interrupted=partial(found_out, f"pay {n}"))
        await ctx.yield_output(f"{asked}, {found}: {order.trail}")
        await ctx.send_message(3 * n)


class Stair(Executor):
    """Inside the sub-workflow: work and a step in each of three supersteps."""

    def __init__(self) -> None:
        super().__init__("stair")
        self._climbed: list[int] = []

    @handler
    async def climb(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        effect(f"tread {number}", ctx)
        await done(ctx, f"stair {number}")
        self._climbed.append(number)
        if number % 3 < 2:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(f"climbed {self._climbed}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"climbed": self._climbed}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._climbed = state["climbed"]


@executor(id="clerk")
async def clerk(text: str, ctx: WorkflowContext[str]) -> None:
    effect(f"clerk {text}", ctx)
    await ctx.send_message(text, delay=PAUSE_SECONDS)


@executor(id="last")
async def last(text: str, ctx: WorkflowContext[Any, str]) -> None:
    effect(f"last {text}", ctx)
    await ctx.yield_output(f"{text}; {ctx.get_state('orders')}; {ctx.get_state('trail')}")


def _joined(one: list[int], other: list[int]) -> list[int]:
    return [*one, *other]


def build() -> Workflow:
    """The whole graph, with new executors."""
    stepper, flaky, picky, judge, payer, stair = (
        Stepper("stepper"),
        Flaky(),
        Picky(),
        Judge("judge"),
        Payer("payer"),
        Stair(),
    )
    inner = WorkflowBuilder(name="stairs", start_executor=stair).add_edge(stair, stair).build()
    stairs = WorkflowExecutor(inner, "stairs")
    return (
        WorkflowBuilder(name="errand", start_executor=start, reducers={"orders": _joined})
        .add_fan_out_edges(start, [stepper, flaky, picky, scribe])
        .add_fan_in_edges([stepper, flaky], judge)
        .add_edge(judge, payer)
        .add_edge(payer, stairs)
        .add_edge(stairs, clerk)
        .add_edge(clerk, last)
        .build()
    )


def amount(request: PendingRequest) -> int:
    """The answer to every question."""
    return 10 * request.data.order


def others_amount(request: PendingRequest, number: int) -> int:
    """Return the answer of the n-th rival."""
    return amount(request) + number


if __name__ == "__main__":
    storages = with_postgres(SHIPPED)
    main(Subject(build=build, message=7, turns=(8,), answer=amount, rival=others_amount, storages=storages))
