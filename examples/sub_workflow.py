"""A workflow as a node of another: it asks its parent, the parent answers, and its events are seen with their path."""

import asyncio
from dataclasses import dataclass

from perdure import (
    Executor,
    SubWorkflowRequestMessage,
    SubWorkflowResponseMessage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)


@dataclass(frozen=True)
class Order:
    item: str
    count: int


@dataclass(frozen=True)
class StockQuery:
    item: str


class Picker(Executor):
    """Lives in the sub-workflow. It knows nothing of who will answer its question."""

    @handler
    async def pick(self, order: Order, ctx: WorkflowContext[None, str]) -> None:
        ctx.set_state("order", order)
        await ctx.request_info(StockQuery(order.item), int)

    @response_handler
    async def packed(self, query: StockQuery, in_stock: int, ctx: WorkflowContext[None, str]) -> None:
        wanted = ctx.get_state("order").count
        await ctx.yield_output(f"{min(wanted, in_stock)} of {wanted} x {query.item}")


class Shop(Executor):
    """Lives in the parent: sends orders down, answers questions that come up, and gets the results."""

    stock = {"pen": 3, "ruler": 40}  # noqa: RUF012 - never changed

    @handler
    async def take(self, order: Order, ctx: WorkflowContext[Order]) -> None:
        await ctx.send_message(order)

    @handler
    async def look_up(
        self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage]
    ) -> None:
        query = request.source_event.data
        await ctx.send_message(request.create_response(self.stock[query.item]), target_id=request.executor_id)

    @handler
    async def ship(self, parcel: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"shipped {parcel}")


def build_workflow() -> Workflow:
    warehouse = WorkflowBuilder(start_executor=Picker("picker"), name="warehouse").build()
    shop, picking = Shop("shop"), WorkflowExecutor(warehouse, id="picking")
    return WorkflowBuilder(start_executor=shop, name="shop").add_edge(shop, picking).add_edge(picking, shop).build()


async def main() -> None:
    workflow = build_workflow()
    for order in (Order("pen", 5), Order("ruler", 2)):
        print(order)
        async for event in workflow.run(order, stream=True):
            if event.type == "sub_workflow" and event.data.type in {"executor_invoked", "request_info"}:
                print(f"  inside {'/'.join(event.path)}: {event.data.type} {event.data.data}")
            elif event.type == "output":
                print(" ", event.data)


if __name__ == "__main__":
    asyncio.run(main())
