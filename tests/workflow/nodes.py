"""Executors that do one thing each, and events as text, so that a test says only what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from perdure import FunctionExecutor, InMemoryCheckpointStorage, WorkflowContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable

    from perdure import WorkflowEvent

MaybeStorage: TypeAlias = Callable[[], InMemoryCheckpointStorage | None]


def _none() -> None:
    return None


live_and_checkpointed = pytest.mark.parametrize(
    "storage", [pytest.param(_none, id="live"), pytest.param(InMemoryCheckpointStorage, id="checkpointed")]
)
"""For what must be the same with and without checkpoints."""

Context: TypeAlias = WorkflowContext[Any, Any]
Doing: TypeAlias = Callable[[Any, Context], Awaitable[None]]


def node(
    name: str, do: Doing, *, takes: Any = Any, sends: Any = Any, yields: Any = Any, max_concurrency: int = 1
) -> FunctionExecutor:
    """An executor that does this with each message."""

    async def process(message: Any, ctx: Context) -> None:
        await do(message, ctx)

    return FunctionExecutor(
        process, name, input=takes, output=sends, workflow_output=yields, max_concurrency=max_concurrency
    )


def passing(name: str, *, takes: Any = Any) -> FunctionExecutor:
    """Sends on what it gets."""

    async def do(message: Any, ctx: Context) -> None:
        await ctx.send_message(message)

    return node(name, do, takes=takes)


def ending(name: str, *, takes: Any = Any) -> FunctionExecutor:
    """Yields what it gets."""

    async def do(message: Any, ctx: Context) -> None:
        await ctx.yield_output(message)

    return node(name, do, takes=takes)


def sending(name: str, *messages: Any, target_id: str | None = None, takes: Any = Any) -> FunctionExecutor:
    """Sends these messages, whatever it gets."""

    async def do(_: Any, ctx: Context) -> None:
        for message in messages:
            await ctx.send_message(message, target_id)

    return node(name, do, takes=takes)


def keeping(name: str, kept: list[Any], *, takes: Any = Any) -> FunctionExecutor:
    """Adds what it gets to a list of the test."""

    async def do(message: Any, _: Context) -> None:
        kept.append(message)

    return node(name, do, takes=takes)


def failing(name: str, error: Exception) -> FunctionExecutor:
    """Raises this error."""

    async def do(_: Any, __: Context) -> None:
        raise error

    return node(name, do)


class Gate:
    """An executor that says when it has begun, and goes on when the test lets it."""

    def __init__(self, name: str) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()
        self.was_cancelled = False
        self.has_cleaned_up = False
        self.executor = node(name, self._do)

    async def _do(self, message: Any, ctx: Context) -> None:
        self.begun.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            # A clean-up that takes a while shows whether it is waited for.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.has_cleaned_up = True
            raise
        await ctx.send_message(message)
        await ctx.yield_output(message)


async def read(stream: AsyncIterable[WorkflowEvent[Any]]) -> tuple[list[WorkflowEvent[Any]], Exception | None]:
    """All that a stream tells, and the error that ends it, if one does."""
    events: list[WorkflowEvent[Any]] = []
    try:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - the loop may raise
    except Exception as error:  # noqa: BLE001 - whatever it is
        return events, error
    return events, None


def told(events: Iterable[WorkflowEvent[Any]]) -> list[str]:
    """Each event in a word or two."""
    return [_in_words(event) for event in events]


def _in_words(event: WorkflowEvent[Any]) -> str:
    if event.type == "status":
        assert event.state is not None
        return event.state.value
    if event.type == "sub_workflow":
        return f"{'/'.join(event.path)}: {_in_words(event.data)}"
    if event.type == "request_info":
        return f"request_info({event.source_executor_id})"
    if event.iteration is not None:
        return f"{event.type}#{event.iteration}"
    if event.executor_id is not None:
        return f"{event.type}({event.executor_id})"
    return event.type


def other_tasks() -> set[asyncio.Task[Any]]:
    """What runs in this event loop beside the test itself."""
    current = asyncio.current_task()
    assert current is not None
    return asyncio.all_tasks() - {current}
