"""A function asks a person. Anybody with the store can answer, days later, from anywhere.

Shows: `RunContext.request_info`, a step that asks, an agent inside the function, `storage.respond`.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, FileCheckpointStorage, RunContext, step, workflow
from perdure.testing import ScriptedChatClient

client = ScriptedChatClient(lambda said, _: "Owls see." if "Another" in said[-1].text else "Owls see in the dark.")
writer = Agent(client, "Write one sentence.", name="writer")


@step
async def review(text: str, ctx: RunContext) -> str:
    """Ask until the answer is there. A step that asks runs again with the answer."""
    answer: str = await ctx.request_info({"review": text}, str)
    print(f"  a verdict on {text!r}: {answer}")
    return answer


@workflow
async def article(topic: str) -> str:
    text = (await writer.run(f"Write about {topic}.")).text
    while await review(text) != "good":
        text = (await writer.run("Another one, please.")).text
    return text


async def work(directory: Path) -> None:
    """Continue the run as far as possible. Each call could be another process on another day."""
    storage = FileCheckpointStorage(directory)
    result = await article.copy().run("owls", run_id="article-1", checkpoint_storage=storage)
    print(f"  the run is {result.get_final_state().value}, the model was asked {len(client.calls)} times")
    for output in result.get_outputs():
        print(f"  published: {output}")


async def answer(directory: Path, verdict: str) -> None:
    """Answer with the store alone, without the program."""
    storage = FileCheckpointStorage(directory)
    for request in await storage.requests("article-1"):
        print(f"  {request.data} -> {verdict}")
        await storage.respond("article-1", {request.request_id: verdict}, by="Ada")


async def main() -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        for verdict in ("too long", "good"):
            print("the program")
            await work(directory)
            print("a person")
            await answer(directory, verdict)
        print("the program")
        await work(directory)


if __name__ == "__main__":
    asyncio.run(main())
