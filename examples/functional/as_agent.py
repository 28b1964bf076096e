"""A functional workflow as an agent, streamed. Its request is an approval request.

Shows: `as_agent`, live events of steps, `pending_requests`, answering with `responses`.
"""

import asyncio

from perdure import RunContext, step, workflow


@step
async def price(item: str) -> int:
    return 10 * len(item)


@workflow(description="Buys things.")
async def buyer(item: str, ctx: RunContext) -> str:
    euros = await price(item)
    if not await ctx.request_info({"item": item, "euros": euros}, bool):
        return f"no {item} then"
    return f"a {item} for {euros} euros"


async def main() -> None:
    agent = buyer.as_agent("shopper")
    print(f"{agent.name}: {agent.description}")
    async for update in agent.run("lamp", stream=True):
        for content in update.contents:
            print(f"  {content.type}: {agent.pending_requests[content.id or ''].data}")
    answers = dict.fromkeys(agent.pending_requests, True)
    print(f"  {(await agent.run(responses=answers)).text}")

    print("the steps, as they happen")
    async for event in buyer.run("rug", stream=True):
        if event.executor_id == "price":
            print(f"  {event.type}")


if __name__ == "__main__":
    asyncio.run(main())
