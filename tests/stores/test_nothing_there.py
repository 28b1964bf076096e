"""Tenants of whom nothing is there: whoever looks at them finds nothing, and makes nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunNotFoundError, WorkflowException
from perdure.records import Lease, Mark, Owner
from perdure.storage import FileStore, MemoryStore
from perdure.testing.stores import ManualClock, RunDriver, command, finished
from perdure.testing.stores.base import NOTHING, NOWHERE, make_sample_run, read_run
from perdure.testing.stores.tenants import LOOKS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from perdure.storage import TenantStore

NOBODY = Lease("r", 1, Owner("nobody", "nowhere", "", 1))


def files(directory: Path) -> Mapping[str, int]:
    """By name all that is there, and how it was last changed."""
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


async def store_of_another(directory: Path) -> FileStore:
    store = FileStore(directory)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    return store


@pytest.mark.parametrize("look", LOOKS)
async def test_looking_at_a_tenant_creates_nothing(tmp_path: Path, look: str) -> None:
    store = await store_of_another(tmp_path)
    before = files(tmp_path)
    with contextlib.suppress(WorkflowException):
        assert [each for each in await LOOKS[look](store.tenant("somebody")) if each is not None] == []
    assert files(tmp_path) == before
    await store.close()


async def test_looking_for_missing_data_of_a_tenant_creates_nothing(tmp_path: Path) -> None:
    store = await store_of_another(tmp_path)
    before, somebody = files(tmp_path), store.tenant("somebody")
    for asked in (somebody.acquire("r"), somebody.post("r", command("a"))):
        with pytest.raises(RunNotFoundError):
            await asked
    late = RunDriver(somebody, ManualClock(), "r", "flow")
    late.lease = NOBODY
    for asked in (late.commit(), late.note(finished("a"))):
        with pytest.raises(WorkflowException):
            await asked
    await somebody.release(NOBODY)
    assert not await somebody.remove("r")
    assert not await somebody.delete("r@0")
    assert await somebody.collect() == 0
    assert await somebody.watch("r", seen=NOWHERE) == Mark()
    assert files(tmp_path) == before
    await store.close()


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_a_tenant_who_was_looked_at_can_begin(tmp_path: Path, kind: str) -> None:
    store: TenantStore = FileStore(tmp_path) if kind == "file" else MemoryStore()
    views = [store.tenant("somebody") for _ in range(2)]
    assert [await read_run(view) for view in views] == [NOTHING, NOTHING]
    run = await make_sample_run(views[0], ManualClock())
    await run.release()
    assert await read_run(views[1]) == await read_run(views[0]) != NOTHING
    archive = await views[1].archive("r")
    await store.tenant("another").restore(archive)
    assert await read_run(store.tenant("another")) == await read_run(views[0])
    await store.close()
