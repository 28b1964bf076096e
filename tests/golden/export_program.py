"""A workflow that is stopped in the middle of a superstep, with much of it done, until its ledger is mended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure import Executor, WorkflowBuilder, WorkflowContext, executor, handler, response_handler

if TYPE_CHECKING:
    from perdure import Workflow
    from perdure.clock import Clock
    from perdure.storage import StoreStorage


@dataclass
class Order:
    """What is to be packed."""

    name: str
    picture: bytes


@executor(id="office")
async def office(name: str, ctx: WorkflowContext[Order]) -> None:
    ctx.set_state("last", name)
    await ctx.send_message(Order(name, bytes(range(256)) * 8))


class Packer(Executor):
    """Packs in a step, which happens once."""

    def __init__(self) -> None:
        super().__init__(id="packer")
        self.packed: list[str] = []

    @handler
    async def pack(self, order: Order, ctx: WorkflowContext[None, str]) -> None:
        sealed = await ctx.step("pack", self._pack, order)
        await ctx.yield_output(f"{order.name} packed, {len(sealed)} bytes, key {ctx.idempotency_key}")

    def _pack(self, order: Order) -> bytes:
        self.packed.append(order.name)
        return order.picture[::-1]


class Desk(Executor):
    """Asks whether it may be sent."""

    @handler
    async def ask(self, order: Order, ctx: WorkflowContext) -> None:
        await ctx.request_info(order.name, bool, request_id=f"may {order.name} go?")

    @response_handler
    async def answered(self, name: str, may_go: bool, ctx: WorkflowContext[Any, str]) -> None:  # noqa: FBT001
        await ctx.yield_output(f"{name} may go: {may_go}")


class Ledger(Executor):
    """Fails until it is mended."""

    def __init__(self, *, is_mended: bool) -> None:
        super().__init__(id="ledger")
        self._is_mended = is_mended

    @handler
    async def enter(self, order: Order, ctx: WorkflowContext[None, str]) -> None:
        page = await ctx.step("find a page", str, len(order.name))
        if not self._is_mended:
            raise OSError("the ledger is full")
        await ctx.yield_output(f"{order.name} is on page {page}")


def build(storage: StoreStorage, clock: Clock, *, is_mended: bool) -> tuple[Workflow, Packer]:
    packer = Packer()
    workflow = (
        WorkflowBuilder(name="export", start_executor=office, checkpoint_storage=storage, clock=clock)
        .add_fan_out_edges(office, [packer, Desk(id="desk"), Ledger(is_mended=is_mended)])
        .build()
    )
    return workflow, packer
