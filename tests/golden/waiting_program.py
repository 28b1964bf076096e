"""A workflow whose runs leave behind all that can wait: for a time, for a person, for the mending of an error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from perdure import Executor, WorkflowBuilder, WorkflowContext, executor, handler, response_handler

if TYPE_CHECKING:
    from perdure import Workflow
    from perdure.clock import Clock
    from perdure.storage import StoreStorage

MORNING = datetime(2030, 1, 2, 8, tzinfo=UTC)
IS_MENDED = "mended"


@dataclass
class Order:
    """What is to be delivered."""

    name: str
    pieces: int


@dataclass
class Consent:
    """Whether it may be."""

    given: bool
    note: str = ""


@executor(id="office")
async def office(name: str, ctx: WorkflowContext[Order]) -> None:
    order = Order(name, 3)
    await ctx.send_message(order)
    await ctx.send_message(Order(f"{name} again", 1), target_id="courier", delay=timedelta(days=2))


class Courier(Executor):
    """Packs at once and drives in the morning."""

    def __init__(self) -> None:
        super().__init__(id="courier")
        self.packed: list[str] = []

    @handler
    async def drive(self, order: Order, ctx: WorkflowContext[Any, str]) -> None:
        packed = await ctx.step("pack", pack, order)
        self.packed.append(order.name)
        await ctx.sleep(MORNING)
        await ctx.yield_output(f"{packed} delivered, with key {len(ctx.idempotency_key)} long; {self.packed}")

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"packed": self.packed}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.packed = state["packed"]


def pack(order: Order) -> str:
    return f"{order.pieces} of {order.name}" + "!" * 3000


class Desk(Executor):
    """Asks for consent, and does not wait for ever."""

    @handler
    async def ask(self, order: Order, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.request_info(
            order,
            Consent,
            request_id=f"consent to {order.name}",
            deadline=timedelta(days=30),
            default=Consent(given=False, note="nobody answered"),
            approves=order,
        )

    @response_handler
    async def consent(self, order: Order, consent: Consent, ctx: WorkflowContext[Any, str]) -> None:
        ctx.require_approved(order)
        ctx.spend(stamps=1)
        await ctx.yield_output(f"consent to {order.name}: {consent.given} {consent.note}")


@executor(id="ledger")
async def ledger(order: Order, ctx: WorkflowContext[Any, str]) -> None:
    if order.name == "broken" and ctx.get_state(IS_MENDED) is None:
        raise OSError("the ledger is full")
    await ctx.yield_output(f"{order.name} is in the ledger")


def build(storage: StoreStorage, clock: Clock) -> Workflow:
    courier, desk = Courier(), Desk(id="desk")
    return (
        WorkflowBuilder(name="waits", start_executor=office, checkpoint_storage=storage, clock=clock)
        .add_fan_out_edges(office, [courier, desk, ledger])
        .build()
    )
