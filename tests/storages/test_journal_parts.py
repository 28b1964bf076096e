"""Siblings that add to long histories: a record of one has what was added, and the next life has all of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.storages.kinds import KINDS, opened

from perdure import (
    Executor,
    FileCheckpointStorage,
    LatestOnly,
    Log,
    Retention,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import StoreStorage

LAST = 12


class Start(Executor):
    @handler
    async def begin(self, turn: int, ctx: WorkflowContext[int]) -> None:
        if turn < LAST:
            await ctx.send_message(turn + 1)


class Sibling(Executor):
    """Adds to a log and a list in the state, and to a log of its own. The one that is to fail does so later on."""

    def __init__(self, id: str, failing: list[int], calls: list[tuple[str, int]]) -> None:  # noqa: A002
        super().__init__(id=id)
        self.failing = failing
        self.calls = calls
        self.own: Log[str] = Log()

    @handler
    async def work(self, turn: int, ctx: WorkflowContext[int, dict[str, Any]]) -> None:
        log: Log[str] = ctx.get_state(f"log {self.id}") or Log()
        listed: list[str] = ctx.get_state(f"list {self.id}") or []
        added = [f"{turn}.{number} " + "x" * 300 for number in range(10)]
        log.extend(added)
        listed.extend(added)
        self.own.extend(added)
        if self.id == "b" and turn in self.failing:
            for _ in range(30):
                await asyncio.sleep(0)
            self.failing.remove(turn)
            raise RuntimeError("as it was told")
        self.calls.append((self.id, turn))
        ctx.set_state(f"log {self.id}", log)
        ctx.set_state(f"list {self.id}", listed)
        if self.id == "a":
            await ctx.send_message(turn)
        if turn == LAST:
            await ctx.yield_output({"log": list(log), "list": listed, "own": list(self.own)})

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"own": self.own}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.own = state["own"]


def siblings(storage: StoreStorage, failing: list[int], calls: list[tuple[str, int]]) -> Workflow:
    start, a, b = Start(id="start"), Sibling("a", failing, calls), Sibling("b", failing, calls)
    builder = WorkflowBuilder(name="siblings", start_executor=start, checkpoint_storage=storage, output_from=[a, b])
    return builder.add_fan_out_edges(start, [a, b]).add_edge(a, start).build()


@pytest.mark.parametrize("kind", KINDS)
async def test_next_attempt_reuses_finished_work_of_one_of_two(kind: str, tmp_path: Path) -> None:
    failing, calls = [3, 8, 8, 11], list[tuple[str, int]]()
    storage = opened(kind, tmp_path, retention=Retention(checkpoints=LatestOnly()))
    given: tuple[int, ...] = (0,)
    while failing:
        with pytest.raises(RuntimeError, match="as it was told"):
            await siblings(storage, failing, calls).run(*given, run_id="r")
        given = ()
        await storage.collect()
        if kind != "memory":
            await storage.close()
            storage = opened(kind, tmp_path, retention=Retention(checkpoints=LatestOnly()))
    result = await siblings(storage, failing, calls).run(run_id="r")
    added = [f"{turn}.{number} " + "x" * 300 for turn in range(1, LAST + 1) for number in range(10)]
    assert result.get_outputs() == [{"log": added, "list": added, "own": added}] * 2
    assert sorted(calls) == [(name, turn) for name in "ab" for turn in range(1, LAST + 1)]
    await storage.close()


async def test_a_record_has_what_was_added(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        with pytest.raises(RuntimeError, match="as it was told"):
            await siblings(storage, [LAST], []).run(0, run_id="r")
        [journal] = (tmp_path / ".perdure" / "journal").iterdir()
        # Three times ten elements of 300 bytes, and the chunks that they are added to.
        assert journal.stat().st_size < 5 * 10 * 300 + 10_000
