"""Runs with many keys: their table of contents rests on a part, in every store, wherever the run goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.storages.kinds import KINDS, opened
from tests.storages.many_keys import EXPECTED, KEYS, LAST, half_way, keeping

from perdure import LatestOnly, Retention
from perdure.checkpoint import entries_of

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import StoreStorage


async def rests_on_a_blob(storage: StoreStorage) -> bool:
    record = await storage.store.run("r")
    assert record is not None
    assert record.head is not None
    manifest = await storage.store.manifest(record.head)
    entries = entries_of(manifest, await storage.store.blobs(manifest.roots))
    assert len(entries) > KEYS - LAST
    return manifest.base is not None and len(manifest.toc) < KEYS / 2


@pytest.mark.parametrize("kind", KINDS)
async def test_run_with_many_keys_continues_in_another_process(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as storage:
        await half_way(storage)
        assert await rests_on_a_blob(storage)
        assert (await keeping(storage).run(run_id="r")).get_outputs() == [EXPECTED]
        assert await rests_on_a_blob(storage)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_with_many_keys_is_forked_and_moved_back(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as storage:
        run = keeping(storage).start(1, run_id="r")
        await run.result()
        ids = await storage.list_checkpoint_ids()
        for checkpoint_id in (ids[1], ids[4], ids[-2]):
            assert (await keeping(storage).run(checkpoint_id=checkpoint_id)).get_outputs() == [EXPECTED]
        await run.restore(ids[3])
        assert (await run.result()).get_outputs() == [EXPECTED]


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_collected_that_a_run_with_many_keys_needs(kind: str, tmp_path: Path) -> None:
    retention = Retention(checkpoints=LatestOnly())
    async with opened(kind, tmp_path, retention=retention) as storage:
        stream = keeping(storage).run(1, run_id="r", stream=True)
        async for event in stream:
            if event.type == "checkpoint":
                await storage.collect()
        assert (await stream.get_final_response()).get_outputs() == [EXPECTED]
        await storage.collect()
        assert await rests_on_a_blob(storage)
        (last,) = await storage.list_checkpoints(run_id="r")
        assert last.state["key-000"] == EXPECTED["key-000"]


@pytest.mark.parametrize(("here", "there"), list(zip(KINDS, [*KINDS[1:], KINDS[0]], strict=True)))
async def test_a_run_with_many_keys_moves_to_another_store(here: str, there: str, tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    async with opened(here, tmp_path / "here") as source, opened(there, tmp_path / "there") as target:
        await half_way(source)
        await source.export_run("r", tmp_path / "run.jsonl")
        assert await target.import_run(tmp_path / "run.jsonl") == "r"
        assert await rests_on_a_blob(target)
        assert (await keeping(target).run(run_id="r")).get_outputs() == [EXPECTED]


async def test_a_checkpoint_with_many_keys_is_carried_to_another_storage(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as source, opened("memory", tmp_path) as target:
        await half_way(source)
        checkpoint = await source.get_latest(workflow_name="keeping")
        assert checkpoint is not None
        await target.save(checkpoint)
        assert (await keeping(target).run(run_id="r")).get_outputs() == [EXPECTED]
