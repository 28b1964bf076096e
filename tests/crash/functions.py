"""A functional workflow for the resume suite: parallel branches, a step that asks, another workflow, a question, a nap.

Run as a script. Each call of a step is an effect, counted outside. It has come back when the function has its result.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.crash.servers import with_postgres

from perdure import RunContext, step, workflow
from perdure.testing.resume import SHIPPED, Subject, effect, main, returned

if TYPE_CHECKING:
    from perdure import PendingRequest, Workflow

FEW = 3


@step
async def fetch(number: int, ctx: RunContext) -> str:
    """Asynchronous work; the later ones are the faster. All of them set one thing in the state."""
    for _ in range(FEW - number):
        await asyncio.sleep(0)
    effect(f"fetch {number}")
    ctx.set_state("fetched", sorted({number, *ctx.get_state("fetched", [])}))
    return f"page {number}"


@step
def count(page: str) -> int:
    """Work in a thread."""
    effect(f"count {page}")
    return len(page)


@step
async def review(pages: list[str], ctx: RunContext) -> str:
    """A step that asks, and keeps something in the state."""
    verdict = await ctx.request_info({"pages": pages}, str)
    effect("review")
    ctx.set_state("verdict", verdict)
    return verdict


@step
async def publish(text: str) -> str:
    """The last of it."""
    effect("publish")
    return f"published {text}"


@step
async def sketch(topic: str) -> str:
    """Work of a workflow inside."""
    effect("sketch")
    return f"a sketch of {topic}"


@workflow
async def studio(topic: str, ctx: RunContext) -> str:
    """A workflow that is run inside of another."""
    found = await sketch(topic)
    returned("sketch")
    return f"{found}, {await ctx.request_info({'sketch': found}, str)}"


async def read(number: int) -> tuple[str, int]:
    """One of several branches."""
    page = await fetch(number)
    returned(f"fetch {number}")
    length = await count(page)
    returned(f"count {page}")
    return page, length


@workflow
async def magazine(topic: str, ctx: RunContext) -> str:
    """Read side by side, have it reviewed, ask again, rest, publish."""
    read_so_far = await asyncio.gather(*(read(number) for number in range(FEW)))
    await review([page for page, _ in read_so_far])
    returned("review")
    (cover,) = (await studio.run(topic)).get_outputs()
    title = await ctx.request_info(f"a title for {topic}?", str)
    await ctx.sleep(0.01)
    done = await publish(f"{title}: {sum(length for _, length in read_so_far)}, {cover}")
    returned("publish")
    return f"{done}, {ctx.get_state('verdict')}, {ctx.get_state('fetched')}"


def build() -> Workflow:
    """An instance of its own."""
    return magazine.twin()


def answer(request: PendingRequest) -> Any:
    """Fine, whatever it is."""
    return "fine" if isinstance(request.data, dict) else "Owls"


def others_answer(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    return f"{answer(request)} {number}"


if __name__ == "__main__":
    storages = with_postgres(SHIPPED)
    main(Subject(build=build, message="owls", answer=answer, rival=others_answer, storages=storages))
