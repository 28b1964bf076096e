"""Exports that somebody has forged, with every checksum right: they are refused, and harm no other run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.storages.kinds import KINDS, opened

from perdure import WorkflowBuilder, WorkflowCheckpointException, WorkflowContext, executor
from perdure.checkpoint import lines_of, read_archive
from perdure.storage import TenantStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from perdure import Workflow
    from perdure.records import Archive
    from perdure.storage import StoreStorage


@pytest.fixture(params=KINDS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreStorage]:
    (tmp_path / "here").mkdir()
    async with opened(request.param, tmp_path / "here") as one:
        yield one


@executor(id="counter")
async def counter(text: str, ctx: WorkflowContext[None, str]) -> None:
    # Long enough for parts that refer to other parts.
    ctx.set_state("numbers", [f"{number} {'x' * 600}" for number in range(40)])
    await ctx.yield_output(text)


def counting(storage: StoreStorage) -> Workflow:
    return WorkflowBuilder(name="counting", start_executor=counter, checkpoint_storage=storage).build()


async def forge(storage: StoreStorage, directory: Path, change: Callable[[Archive], Archive]) -> Path:
    """Export a run "evil" whose archive is changed, with checksums that match. It is removed from the storage."""
    path = directory / "evil"
    await counting(storage).run("text", run_id="evil")
    await storage.export_run("evil", path)
    assert isinstance(storage.store, TenantStore)
    await storage.store.remove("evil")
    await storage.collect()
    archive = read_archive(path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(lines_of(change(archive))))
    return path


async def require_refused(storage: StoreStorage, path: Path, match: str) -> None:
    with pytest.raises(WorkflowCheckpointException, match=match):
        await storage.import_run(path)
    assert await storage.store.run("evil") is None


async def test_parts_whose_references_are_left_out_are_refused_and_a_run_that_shares_them_keeps_its_data(
    storage: StoreStorage, tmp_path: Path
) -> None:
    def leave_out(archive: Archive) -> Archive:
        assert any(blob.refs for blob in archive.blobs)
        return replace(archive, blobs=tuple(replace(blob, refs=()) for blob in archive.blobs))

    path = await forge(storage, tmp_path, leave_out)
    await require_refused(storage, path, "does not list")
    await counting(storage).run("text", run_id="good")
    await storage.collect()
    latest = await storage.get_latest(workflow_name="counting")
    assert latest is not None
    assert len(latest.state["numbers"]) == 40


async def test_parts_with_references_that_are_called_raw_are_refused(storage: StoreStorage, tmp_path: Path) -> None:
    def call_raw(archive: Archive) -> Archive:
        return replace(archive, blobs=tuple(replace(blob, refs=(), kind="raw") for blob in archive.blobs))

    await require_refused(storage, await forge(storage, tmp_path, call_raw), "does not list")


async def test_parts_with_references_that_their_bytes_do_not_have_are_refused(
    storage: StoreStorage, tmp_path: Path
) -> None:
    def add(archive: Archive) -> Archive:
        first, *others = archive.blobs
        return replace(archive, blobs=(replace(first, refs=(*first.refs, first.hash)), *others))

    await require_refused(storage, await forge(storage, tmp_path, add), "does not refer to")


async def test_a_missing_part_that_only_another_part_refers_to_is_noticed(
    storage: StoreStorage, tmp_path: Path
) -> None:
    def remove(archive: Archive) -> Archive:
        inner = {ref for blob in archive.blobs for ref in blob.refs}
        return replace(archive, blobs=tuple(blob for blob in archive.blobs if blob.hash not in inner))

    await require_refused(storage, await forge(storage, tmp_path, remove), "is missing")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("good@{0}", "another run"), ("evil@{0}0", "past its position"), ("evil@0", "twice")],
    ids=["of another run", "of a later checkpoint", "twice"],
)
async def test_checkpoint_ids_that_a_run_will_need_are_refused(
    storage: StoreStorage, tmp_path: Path, name: str, reason: str
) -> None:
    def rename(archive: Archive) -> Archive:
        checkpoints = tuple(
            replace(each, manifest=replace(each.manifest, checkpoint_id=name.format(each.manifest.position)))
            for each in archive.checkpoints
        )
        record = replace(archive.record, head=name.format(archive.record.position))
        return replace(archive, record=record, checkpoints=checkpoints)

    await require_refused(storage, await forge(storage, tmp_path, rename), reason)
    result = await counting(storage).run("text", run_id="good")
    assert result.get_outputs() == ["text"]
