"""Cleanup around a wait: plain code in `finally` runs at every suspension, a step there when the block is left."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from perdure import RunContext, step, workflow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure import FunctionalWorkflow
    from perdure.storage import StoreStorage as Storage


async def answer_all(function: FunctionalWorkflow, storage: Storage | None) -> Any:
    """Run a function, answer its questions with "yes" one after the other, and return its outputs."""
    if storage is None:
        result = await function.run("go")
    else:
        result = await function.run("go", run_id="r", checkpoint_storage=storage)
    while asked := result.get_request_info_events():
        answers = {event.request_id: "yes" for event in asked}
        if storage is None:
            result = await function.run(responses=answers)
        else:
            # Another instance, as in another process.
            result = await function.copy().run(run_id="r", responses=answers, checkpoint_storage=storage)
    return result.get_outputs()


def booking(calls: list[str], *, fails: bool = False) -> FunctionalWorkflow:
    """A function that asks twice while it holds a room. It releases the room in a step."""

    @step
    async def reserve() -> str:
        calls.append("reserve")
        return "room 7"

    @step
    async def release(room: str) -> None:
        calls.append(f"release {room}")

    @workflow(name="booking")
    async def book(_: str, ctx: RunContext) -> str:
        room = await reserve()
        try:
            calls.append("asks")
            answers = [await ctx.request_info(question, str) for question in ("who?", "when?")]
            if fails:
                raise ValueError("no")
        finally:
            calls.append("finally")
            await release(room)
        return " ".join(answers)

    return book


async def test_a_step_in_a_finally_block_is_called_once_when_the_block_is_left(storage: Storage) -> None:
    calls: list[str] = []
    assert await answer_all(booking(calls), storage) == ["yes yes"]
    assert [call for call in calls if call not in {"asks", "finally"}] == ["reserve", "release room 7"]


async def test_plain_code_in_a_finally_block_runs_at_every_suspension() -> None:
    calls: list[str] = []
    await answer_all(booking(calls), None)
    assert calls == ["reserve", "asks", "finally", "asks", "finally", "asks", "finally", "release room 7"]


async def test_a_step_in_a_finally_block_is_called_when_the_function_fails(storage: Storage) -> None:
    calls: list[str] = []
    with pytest.raises(ValueError, match="no"):
        await answer_all(booking(calls, fails=True), storage)
    assert [call for call in calls if call not in {"asks", "finally"}] == ["reserve", "release room 7"]


async def test_a_context_manager_that_cleans_up_in_a_step_is_left_once(storage: Storage) -> None:
    calls: list[str] = []

    @step
    async def lock() -> None:
        calls.append("lock")

    @step
    async def unlock() -> None:
        calls.append("unlock")

    @asynccontextmanager
    async def locked() -> AsyncGenerator[None]:
        await lock()
        try:
            yield
        finally:
            await unlock()

    @workflow
    async def guarded(_: str, ctx: RunContext) -> str:
        async with locked():
            return await ctx.request_info("go on?", str)

    assert await answer_all(guarded, storage) == ["yes"]
    assert calls == ["lock", "unlock"]
