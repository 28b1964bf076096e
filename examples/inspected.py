"""Prepare a store with twenty runs of every kind, to look at: `perdure inspect -s inspected.db` opens it.

    python examples/inspected.py inspected.db

Orders that wait for a person, failed, were cancelled, sleep, were forked; agents that called tools; a team with a
manager; a sub-workflow. The models follow scripts, so no key is needed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal, Never

from perdure import (
    Agent,
    AgentExecutorResponse,
    Edit,
    Executor,
    Host,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
    tool,
)
from perdure.orchestrations import ConcurrentBuilder
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import Message


@dataclass(frozen=True)
class Item:
    sku: str
    count: int = 1
    cents: int = 0


@dataclass(frozen=True)
class Order:
    customer: str
    items: list[Item] = field(default_factory=list[Item])
    note: str = ""


@dataclass(frozen=True)
class Decision:
    """The answer of a person."""

    verdict: Literal["accept", "refuse", "ask the customer"]
    discount: float = 0.0
    ship_on: date | None = None
    remarks: list[str] = field(default_factory=list[str])


STOCK = {"pen": 120, "ruler": 90, "desk": 19_900}


class Desk(Executor):
    """Large orders wait for a person."""

    def __init__(self) -> None:
        super().__init__("desk")
        self.decided = 0

    @handler
    async def check(self, order: Order, ctx: WorkflowContext[Order, str]) -> None:
        total = sum(item.cents * item.count for item in order.items)
        ctx.set_state("total", total)
        if total > 10_000:
            await ctx.request_info(order, Decision, request_id=f"approve {order.customer}")
        else:
            await ctx.send_message(order)

    @response_handler
    async def decide(self, order: Order, decision: Decision, ctx: WorkflowContext[Order, str]) -> None:
        self.decided += 1
        if decision.verdict == "accept":
            await ctx.send_message(order)
        else:
            await ctx.yield_output(f"{order.customer}: {decision.verdict}")

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"decided": self.decided}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.decided = state["decided"]


@executor(id="price")
async def price(order: Order, ctx: WorkflowContext[Order]) -> None:
    """Look up prices. An unknown article fails the run."""
    items = [Item(item.sku, item.count, STOCK[item.sku]) for item in order.items]
    ctx.set_state("cart", {item.sku: item.count for item in items})
    await ctx.send_message(Order(order.customer, items, order.note))


@executor(id="pack")
async def pack(order: Order, ctx: WorkflowContext[Order]) -> None:
    await ctx.step("reserve", reserve, order.customer, len(order.items))
    await ctx.send_message(order)


async def reserve(customer: str, parcels: int) -> str:
    return f"{parcels} parcels for {customer}"


@executor(id="bill")
async def bill(order: Order, ctx: WorkflowContext[Order]) -> None:
    await ctx.step("charge", charge, order.customer, sum(item.cents * item.count for item in order.items))
    await ctx.send_message(order)


async def charge(customer: str, cents: int) -> str:
    return f"{cents / 100:.2f} euros from {customer}"


@executor(id="ship")
async def ship(orders: list[Order], ctx: WorkflowContext[Never, str]) -> None:
    ctx.set_state("shipped", len(orders[0].items))
    await ctx.yield_output(f"shipped {len(orders[0].items)} articles to {orders[0].customer}")


def orders() -> Workflow:
    desk = Desk()
    builder = WorkflowBuilder(name="orders", start_executor=price).add_edge(price, desk)
    return builder.add_fan_out_edges(desk, [pack, bill]).add_fan_in_edges([pack, bill], ship).build()


@executor(id="remind")
async def remind(customer: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.sleep(timedelta(days=30))
    await ctx.yield_output(f"reminded {customer}")


def reminders() -> Workflow:
    return WorkflowBuilder(name="reminders", start_executor=remind).build()


@tool
def look_up(customer: str) -> dict[str, object]:
    """Return what is known of a customer."""
    return {"customer": customer, "since": 2019, "open_invoices": 2}


@tool(approval_mode="always_require")
def refund(customer: str, cents: int) -> str:
    """Pay money back."""
    return f"{cents / 100:.2f} euros went to {customer}"


def support() -> Workflow:
    """An agent that looks things up, and may refund only what a person approves."""

    def reply(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        contents = [content for message in messages for content in message.contents]
        done = [content.name for content in contents if content.type == "function_call"]
        if "look_up" not in done:
            return ToolCall("look_up", customer="acme")
        if any("refund" in message.text for message in messages) and "refund" not in done:
            return ToolCall("refund", customer="acme", cents=4_200)
        return "**Two invoices are open.**\n\n- The first is from May.\n- The second is from `June`.\n\nThat is all."

    agent = Agent(ScriptedChatClient(reply), "You help customers.", name="helper", tools=[look_up, refund])
    return WorkflowBuilder(name="support", start_executor=agent).build()


def experts() -> Workflow:
    """Three agents answer at once."""
    script = {
        "jurist": "The contract has no clause on delays.",
        "engineer": "A slot is free on Tuesday.",
        "accountant": "It costs 1,200 euros.",
    }
    agents = [Agent(ScriptedChatClient([text]), f"You are a {name}.", name=name) for name, text in script.items()]
    return ConcurrentBuilder(participants=agents).build()


@executor(id="summary")
async def summary(answer: AgentExecutorResponse, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(answer.agent_response.text)


@executor(id="reception")
async def reception(order: Order, ctx: WorkflowContext[Order]) -> None:
    await ctx.send_message(order)


@executor(id="archive")
async def archive(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(f"archived: {text}")


def branch() -> Workflow:
    """A whole workflow as one executor."""
    inner = WorkflowExecutor(orders(), id="shop", propagate_request=True)
    return WorkflowBuilder(name="branch", start_executor=reception).add_chain([reception, inner, archive]).build()


def small(customer: str) -> Order:
    return Order(customer, [Item("pen", 3), Item("ruler")], note="as always")


def large(customer: str) -> Order:
    return Order(customer, [Item("desk"), Item("pen", 10)])


def odd(customer: str) -> Order:
    return Order(customer, [Item("pen"), Item("sku-17")])


async def prepare(path: str) -> None:
    async with SqliteCheckpointStorage(path) as storage:
        host = Host(storage)
        for factory in (orders, reminders, support, branch):
            host.register(factory)
        async with host:
            for number, customer in enumerate(("acme", "binford", "globex", "initech", "umbrella")):
                tags = {"customer": customer, "region": ("north", "south")[number % 2]}
                await host.start("orders", small(customer), run_id=f"order-{number}", tags=tags)
                await host.start("orders", large(customer), run_id=f"large-{number}", tags=tags)
            for number, customer in enumerate(("hooli", "stark")):
                await host.start("orders", odd(customer), run_id=f"odd-{number}", tags={"customer": customer})
            await host.start("reminders", "acme", run_id="reminder-0", tags={"customer": "acme"})
            await host.start("reminders", "stark", run_id="reminder-1")
            await host.start("support", "Which invoices of acme are open?", run_id="support-0")
            await host.start("support", "Please refund the second invoice.", run_id="support-1")
            await host.start("branch", small("wayne"), run_id="branch-0")
            await host.start("branch", large("wayne"), run_id="branch-1")
            expected = {"order-4": "idle", "large-4": "waiting", "odd-1": "failed", "reminder-1": "sleeping"}
            expected |= {"support-0": "idle", "support-1": "waiting", "branch-0": "idle", "branch-1": "waiting"}
            for run_id, status in expected.items():
                await until(host, run_id, status)
            await host.respond("large-0", {"approve acme": {"verdict": "accept", "discount": 0.1}}, by="ann")
            await host.respond("large-1", {"approve binford": {"verdict": "refuse"}}, by="ben")
            await storage.cancel("large-2", reason="the customer has changed his mind", by="ann")
            for run_id, status in {"large-0": "idle", "large-1": "idle", "large-2": "cancelled"}.items():
                await until(host, run_id, status)
        forked = orders()
        origin = (await storage.list_checkpoints(run_id="order-0"))[1]
        run = forked.start(checkpoint_id=origin.checkpoint_id, checkpoint_storage=storage)
        await run.result()
        run = forked.start(small("duff"), run_id="order-5", checkpoint_storage=storage)
        history = await (await run.result(), run.checkpoints())[1]
        await (await run.fork(history[1].checkpoint_id, edit=Edit(state={"cart": {"pen": 99}}))).result()
        await experts().run("Can we deliver by Friday?", run_id="experts-0", checkpoint_storage=storage)


async def until(host: Host, run_id: str, status: str) -> None:
    """Wait until a run has this status and no owner."""
    async for _ in host.storage.events(run_id, follow=True):
        run = await host.info(run_id)
        if run.status == status:
            return


if __name__ == "__main__":
    logging.getLogger("perdure").setLevel(logging.CRITICAL)
    asyncio.run(prepare(sys.argv[1] if len(sys.argv) > 1 else "inspected.db"))
