"""Operations on runs with the store alone: recover, restore, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.storages.kinds import KINDS, opened

from perdure import (
    CheckpointNotFoundError,
    FileCheckpointStorage,
    RunBusyError,
    RunError,
    RunExistsError,
    RunNotFoundError,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    executor,
)

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import StoreStorage

is_broken = 1


@executor(id="first")
async def first(order: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(order)


@executor(id="second")
async def second(order: str, ctx: WorkflowContext[str, str]) -> None:
    if is_broken and order == "bad":
        raise LookupError(order)
    if order == "ask":
        await ctx.request_info("may I?", bool)
    else:
        await ctx.yield_output(order)


def orders() -> Workflow:
    return WorkflowBuilder(name="orders", start_executor=first).add_edge(first, second).build()


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StoreStorage:
    return opened(request.param, tmp_path)


async def test_a_failed_run_continues_after_recovery(storage: StoreStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError):
        await orders().run("bad", run_id="r", checkpoint_storage=storage)
    assert (await storage.run("r")).status == "failed"
    assert await storage.recover("r")
    assert [record.run_id for record in await storage.store.runs(status="running")] == ["r"]
    assert not await storage.recover("r")
    monkeypatch.setitem(globals(), "is_broken", 0)
    assert (await orders().run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["bad"]
    with pytest.raises(RunNotFoundError):
        await storage.recover("unknown")


async def test_a_cancelled_run_needs_its_program(storage: StoreStorage) -> None:
    await orders().run("ask", run_id="r", checkpoint_storage=storage)
    await storage.cancel("r")
    await orders().run(run_id="r", checkpoint_storage=storage)
    assert (await storage.run("r")).status == "cancelled"
    with pytest.raises(RunError, match=r"host\.recover"):
        await storage.recover("r")


async def test_a_run_goes_back_and_on_again(storage: StoreStorage) -> None:
    await orders().run("tea", run_id="r", checkpoint_storage=storage)
    await orders().run("milk", run_id="other", checkpoint_storage=storage)
    await storage.restore("r", "r@1")
    assert [(record.run_id, record.head) for record in await storage.store.runs(status="running")] == [("r", "r@1")]
    assert (await storage.load("r@2")).checkpoint_id == "r@2"
    assert (await orders().run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["tea"]
    for error, checkpoint in ((CheckpointNotFoundError, "r@99"), (WorkflowCheckpointException, "other@0")):
        with pytest.raises(error):
            await storage.restore("r", checkpoint)


async def test_a_deleted_run_is_gone(storage: StoreStorage) -> None:
    await orders().run("tea", run_id="r", checkpoint_storage=storage)
    assert await storage.delete_run("r")
    assert not await storage.delete_run("r")
    assert await storage.runs() == []


async def test_a_run_that_this_process_advances_is_refused(storage: StoreStorage) -> None:
    refused: list[type[BaseException]] = []

    @executor(id="nosy")
    async def nosy(order: str, ctx: WorkflowContext[str, str]) -> None:
        for act in (lambda: storage.restore("r", "r@0"), lambda: storage.delete_run("r")):
            try:
                await act()
            except RunBusyError as error:
                refused.append(type(error))
        await ctx.yield_output(order)

    await WorkflowBuilder(name="nosy", start_executor=nosy).build().run("x", run_id="r", checkpoint_storage=storage)
    assert refused == [RunBusyError, RunBusyError]


async def test_a_fork_is_a_run_of_its_own(storage: StoreStorage) -> None:
    await orders().run("ask", run_id="r", checkpoint_storage=storage)
    before = await storage.run("r")
    assert before.checkpoint_id is not None
    for source, fork in ((before.checkpoint_id, "f"), ("f@0", "g"), ("r@0", "h")):
        assert await storage.fork(source, run_id=fork) == fork
        assert (await storage.run(fork)).parent_checkpoint_id == source
    *waiting, queued = [info.status for info in await storage.runs()]
    assert waiting == ["waiting"] * 3
    # A store that knows its hosts says that none serves the run.
    assert queued == ("running" if isinstance(storage, FileCheckpointStorage) else "blocked")
    assert [request.run_id for request in await storage.requests()] == ["r", "f", "g"]
    assert await storage.delete_run("r")
    result = await orders().run(run_id="h", checkpoint_storage=storage)
    assert [event.data for event in result.get_request_info_events()] == ["may I?"]
    assert (await storage.diff_runs("f", "g")).diff is None
    assert [damage async for damage in storage.check()] == []
    with pytest.raises(RunExistsError):
        await storage.fork("f@0", run_id="g")
    with pytest.raises(CheckpointNotFoundError):
        await storage.fork("r@0")
