"""Workflows of a shop, and a store with a run in each state. `python -m tests.cli.shop fill|serve URL`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Never

from tests.hosting.flows import fail, pass_on, row, shout
from tests.workflow.nodes import Context, node

from perdure import (
    Agent,
    AgentExecutor,
    Case,
    Default,
    Edit,
    Executor,
    Host,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
    tool,
)
from perdure.records import Mark
from perdure.storage import FileCheckpointStorage, StoreStorage, open_storage
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTILE = "sku\x1b]0;owned\x07\x1b[31m\u202e[red]"
"""Sets the title of a terminal, turns text red, and reverses the line."""
HUGE = "x" * 100_000


@dataclass
class Order:
    sku: str
    count: int


@dataclass
class Approval:
    ok: bool
    note: str


class Desk(Executor):
    """Asks a person."""

    def __init__(self) -> None:
        super().__init__("desk")

    @handler
    async def ask(self, sku: str, ctx: WorkflowContext[str, Never]) -> None:
        await ctx.request_info(Order(sku, 2), Approval, request_id=f"approve {sku}")

    @response_handler
    async def told(self, order: Order, answer: Approval, ctx: WorkflowContext[str, Never]) -> None:
        await ctx.send_message(f"{order.sku}: {answer.note}")


async def keep(message: str, ctx: Context) -> None:
    ctx.set_state("stock", {"lamp": 3, "note": HUGE})
    ctx.set_state("last", message)
    await ctx.yield_output(message)


async def nap(message: str, ctx: Context) -> None:
    await ctx.sleep(timedelta(days=30))
    await ctx.send_message(message)


async def die(message: str, ctx: Context) -> None:
    del message, ctx
    os._exit(9)


@tool
def price(item: str) -> str:
    """Return the price of an item."""
    return f"{len(item)} EUR"


def order() -> Workflow:
    """A switch, and a sub-workflow in which it fails."""
    intake, refuse, pay = node("intake", pass_on), node("refuse", shout), node("pay", shout)
    ship = WorkflowExecutor(row("shipping", pass_on, fail)(), id="ship")
    builder = WorkflowBuilder(name="order", start_executor=intake)
    builder.add_switch_case_edge_group(intake, [Case(lambda _: True, ship), Default(refuse)])
    return builder.add_edge(ship, pay).build()


def purchase() -> Workflow:
    desk = Desk()
    return WorkflowBuilder(name="purchase", start_executor=desk).add_edge(desk, node("pay", shout)).build()


def chat() -> Workflow:
    client = ScriptedChatClient(
        replies=[ToolCall("price", item="lamp"), RuntimeError("the model is down")],
        usage={"input_token_count": 5, "output_token_count": 7},
    )
    seller = Agent(client, name="seller", tools=[price])
    return WorkflowBuilder(name="chat", start_executor=AgentExecutor(seller)).build()


stock, nightly, fatal = row("stock", keep), row("nightly", nap, shout), row("fatal", die)

FACTORIES = (order, purchase, chat, stock, nightly, fatal)


def host_on(storage: StoreStorage, *factories: Callable[[], Workflow]) -> Host:
    """A host of these workflows, or all; it quarantines a run as soon as it has killed a process."""
    found = Host(storage, max_attempts=1)
    for factory in factories or FACTORIES:
        found.register(factory)
    return found


async def fill(url: str) -> None:
    """Make runs, one after the other: failed twice, waiting, idle and forked, sleeping, cancelled, quarantined."""
    async with open_storage(url) as storage:

        async def run(workflow: Workflow, message: str, run_id: str, **tags: str) -> None:
            with contextlib.suppress(LookupError, RuntimeError):
                await workflow.run(message, run_id=run_id, checkpoint_storage=storage, tags=tags)

        await run(order(), HOSTILE, "order-1", customer="acme")
        await run(chat(), "how much is a lamp?", "chat-1")
        await run(purchase(), "lamp", "buy-1")
        await run(stock(), "lamp", "stock-1")
        handle = await stock().start("chair", run_id="stock-2", checkpoint_storage=storage)
        await handle.result()
        await handle.fork(edit=Edit(state={"last": "stool"}))
        sleeper = asyncio.create_task(run(nightly(), "lamp", "nap-1"))
        await _until(storage, "nap-1", "sleeping")
        sleeper.cancel()
        await run(purchase(), "car", "buy-2")
        await storage.cancel("buy-2", reason="too dear", by="ann")
        await purchase().run(run_id="buy-2", checkpoint_storage=storage)
        if not isinstance(storage, FileCheckpointStorage):
            await _quarantine(storage, url)


async def _quarantine(storage: StoreStorage, url: str) -> None:
    host = host_on(storage)
    await host.start("fatal", "x", run_id="fatal-1")
    dying = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.cli.shop", "serve", url)
    assert await dying.wait() == 9
    async with host:
        await _until(storage, "fatal-1", "quarantined")


async def _until(storage: StoreStorage, run_id: str, status: str) -> None:
    async with asyncio.timeout(60):
        while True:
            mark = await storage.store.watch(run_id, seen=Mark(head="", events=-1, commands=-1))
            if mark.head is not None and (await storage.run(run_id)).status == status:
                return
            await storage.store.watch(run_id, seen=mark)


def app() -> Host:
    """The host for `--app tests.cli.shop:app`."""
    return host_on(open_storage(os.environ["SHOP"]))


if __name__ == "__main__":
    asyncio.run(fill(sys.argv[2]) if sys.argv[1] == "fill" else host_on(open_storage(sys.argv[2]), fatal).serve())
