"""Closed storages keep nothing open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.storages.kinds import opened

from perdure import WorkflowBuilder, WorkflowContext, executor

DESCRIPTORS = Path("/dev/fd")
MANY = 200


@executor(id="upper")
async def upper(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(text.upper())


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_closed_storages_keep_no_descriptors(kind: str, tmp_path: Path) -> None:
    workflow = WorkflowBuilder(start_executor=upper).build()
    counts: list[int] = []
    for number in range(MANY):
        storage = opened(kind, tmp_path / f"{number}", durability="os")
        await workflow.run("x", checkpoint_storage=storage)
        await storage.close()
        counts.append(len(os.listdir(DESCRIPTORS)))  # noqa: PTH208 - only the number is needed
    assert max(counts) == counts[0]
