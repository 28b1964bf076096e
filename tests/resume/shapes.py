"""Small workflows that several tests run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Never

from typing_extensions import override

from perdure import (
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    handler,
    response_handler,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure import CheckpointInfo, CheckpointStorage, WorkflowRunResult


class Tally(Executor):
    """Counts to a limit, one number in each superstep, and keeps what it has seen in itself and in the state."""

    def __init__(self, id: str = "tally", *, limit: int = 3) -> None:  # noqa: A002
        super().__init__(id)
        self.limit = limit
        self.seen: list[int] = []

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
        self.seen.append(number)
        ctx.set_state("last", number)
        ctx.scope().set("squares", [n * n for n in self.seen])
        ctx.scope("audit").set("count", len(self.seen))
        if number < self.limit:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(list(self.seen))

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self.seen}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def counting(storage: CheckpointStorage | None, *, limit: int = 3, tally: Tally | None = None) -> Workflow:
    """A workflow that takes `limit` supersteps when it is given 1."""
    node = tally or Tally(limit=limit)
    return (
        WorkflowBuilder(start_executor=node, name="counting", checkpoint_storage=storage).add_edge(node, node).build()
    )


@dataclass
class Question:
    """What a clerk asks."""

    text: str
    choices: list[str] = field(default_factory=list[str])


@dataclass
class Measure:
    """A structured answer."""

    width: int
    unit: str


class Clerk(Executor):
    """Asks for each word that it is given, and tells each answer."""

    def __init__(self, id: str = "clerk") -> None:  # noqa: A002
        super().__init__(id)
        self.log: list[str] = []

    @handler
    async def ask(self, words: list[str], ctx: WorkflowContext[Never, str]) -> None:
        for word in words:
            await ctx.request_info(Question(word), str, request_id=f"about-{word}")

    @handler
    async def measure(self, what: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.request_info(Question(what), Measure, request_id=f"size-of-{what}")

    @response_handler
    async def told(self, question: Question, answer: str, ctx: WorkflowContext[Never, str]) -> None:
        self.log.append(answer)
        ctx.set_state(question.text, answer)
        await ctx.yield_output(f"{question.text}: {answer}")

    @response_handler
    async def measured(self, question: Question, answer: Measure, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{question.text}: {answer.width} {answer.unit}")

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"log": self.log}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.log = state["log"]


def asking(storage: CheckpointStorage | None, *, clerk: Clerk | None = None) -> Workflow:
    """A workflow that asks for every word it is given; the ids are `about-<word>`."""
    return WorkflowBuilder(start_executor=clerk or Clerk(), name="asking", checkpoint_storage=storage).build()


class Split(Executor):
    """Sends a text to everybody."""

    @handler
    async def split(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)


class Mark(Executor):
    """Sends a text on with its own id."""

    @handler
    async def mark(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"{text}{self.id}")


class Join(Executor):
    """Tells what was gathered."""

    @handler
    async def join(self, texts: list[str], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("+".join(texts))


def uneven(storage: CheckpointStorage | None) -> Workflow:
    """Two branches of unequal length that meet in a fan-in: after the second superstep it holds the shorter's."""
    split, short, long, longer, join = Split("split"), Mark("s"), Mark("l"), Mark("m"), Join("join")
    return (
        WorkflowBuilder(start_executor=split, name="uneven", checkpoint_storage=storage)
        .add_fan_out_edges(split, [short, long])
        .add_edge(long, longer)
        .add_fan_in_edges([short, longer], join)
        .build()
    )


def nested(storage: CheckpointStorage | None, *, clerk: Clerk | None = None) -> Workflow:
    """A clerk inside a sub-workflow whose requests are passed on to the outside, and a listener after it."""
    desk = WorkflowExecutor(asking(None, clerk=clerk), id="desk", propagate_request=True)
    listener = Listener("listener")
    return (
        WorkflowBuilder(start_executor=desk, name="nested", checkpoint_storage=storage).add_edge(desk, listener).build()
    )


class Listener(Executor):
    """Tells what it hears."""

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"heard {text}")


class Breaking(Executor):
    """Counts like a tally, and breaks at one number for as long as it is told to."""

    def __init__(self, *, at: int, limit: int = 3) -> None:
        super().__init__("breaking")
        self.at: int | None = at
        self.limit = limit
        self.seen: list[int] = []

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
        self.seen.append(number)
        if number == self.at:
            raise ArithmeticError(f"broke at {number}")
        if number < self.limit:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(list(self.seen))

    @override
    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self.seen}

    @override
    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def breaking(storage: CheckpointStorage | None, *, node: Breaking, **options: Any) -> Workflow:
    """A workflow of one executor that breaks."""
    builder = WorkflowBuilder(start_executor=node, name="breaking", checkpoint_storage=storage, **options)
    return builder.add_edge(node, node).build()


def types_of(events: Iterable[WorkflowEvent[Any]]) -> list[str]:
    return [event.type for event in events]


def commits(events: Iterable[WorkflowEvent[Any]]) -> list[CheckpointInfo]:
    """What the checkpoint events among these tell."""
    return [event.data for event in events if event.type == "checkpoint"]


def requests(result: WorkflowRunResult) -> dict[str, Any]:
    """The requests that were told, by id."""
    return {event.request_id: event.data for event in result.get_request_info_events()}


async def all_of(stream: Any) -> Sequence[WorkflowEvent[Any]]:
    """Everything that a stream tells."""
    return [event async for event in stream]
