"""A handler that takes another way than before leaves recorded steps behind, and is told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.activation.solo import Context, MendableError, lone

from perdure import InMemoryCheckpointStorage

if TYPE_CHECKING:
    from perdure import WorkflowRunResult


def _warnings(result: WorkflowRunResult) -> list[str]:
    return [str(event.data) for event in result if event.type == "warning"]


async def test_a_resumed_handler_that_leaves_recorded_steps_out_is_warned_of_by_their_names() -> None:
    lives: list[str] = []

    async def do(_: str, ctx: Context) -> None:
        lives.append("a life")
        await ctx.step(f"ask at {len(lives)} o'clock", str)
        await ctx.step("in every life", str)
        if len(lives) == 1:
            raise MendableError

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    (warning,) = _warnings(await workflow.run(run_id=workflow.run_id))
    assert "executor 'node' has returned without calling steps that are recorded for it: ask at 1 o'clock;" in warning


async def test_a_handler_that_is_entered_again_after_a_wait_is_warned_of_as_well() -> None:
    entries: list[str] = []

    async def do(_: str, ctx: Context) -> None:
        entries.append("an entry")
        await ctx.step(f"number {len(entries)}", str)
        await ctx.yield_output(await ctx.ask("may I?", bool))

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    (asked,) = (await workflow.run("go")).get_request_info_events()
    result = await workflow.run(responses={asked.request_id: True})
    assert result.get_outputs() == [True]
    assert ["number 1" in each for each in _warnings(result)] == [True]


async def test_one_that_comes_to_all_of_them_is_not_warned_of() -> None:
    lives: list[str] = []

    async def do(_: str, ctx: Context) -> None:
        lives.append("a life")
        await ctx.step("first", str)
        await ctx.step("second", str, key="own")
        if len(lives) == 1:
            raise MendableError

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    assert _warnings(await workflow.run(run_id=workflow.run_id)) == []
