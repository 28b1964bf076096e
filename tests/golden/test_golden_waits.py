"""Runs that waited when they were written: read by every later release, they wait on and end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting_program import build

from perdure import FileCheckpointStorage, SqliteCheckpointStorage, WorkflowRunState
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.storage import StoreStorage

HERE = Path(__file__).parent
GOLDEN = [(path, kind) for path in sorted(HERE.glob("waits-*")) for kind in ("files", "runs.sqlite")]


@pytest.fixture(params=GOLDEN, ids=[f"{path.name}-{kind}" for path, kind in GOLDEN])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreStorage]:
    """A copy of golden files: reading may write beside them."""
    directory, kind = request.param
    source, copy = directory / kind, tmp_path / kind
    if source.is_dir():
        shutil.copytree(source, copy)
        storage: StoreStorage = FileCheckpointStorage(copy)
    else:
        shutil.copy(source, copy)
        storage = SqliteCheckpointStorage(copy)
    async with storage:
        yield storage


async def ended(storage: StoreStorage, run_id: str) -> list[str]:
    """How a run ends when all its time passes: its outputs from here on."""
    result = await build(storage, ManualClock(skips=True)).run(run_id=run_id)
    assert result.get_final_state() is WorkflowRunState.IDLE
    return [output.replace("!", "") for output in result.get_outputs()]


def delivered(run_id: str) -> list[str]:
    return [
        f"3 of {run_id} delivered, with key 32 long; ['{run_id}']",
        f"1 of {run_id} again delivered, with key 32 long; ['{run_id}', '{run_id} again']",
    ]


async def test_what_a_run_waits_for_is_known_without_the_program(storage: StoreStorage) -> None:
    requests = {request.run_id: request for request in await storage.requests()}
    assert requests.keys() == {"plain", "answered", "cancelled"}
    plain = requests["plain"]
    assert plain.request_id == "consent to plain"
    assert plain.data == {"name": "plain", "pieces": 3}
    assert plain.deadline == "2024-01-31T00:00:00+00:00"
    assert plain.schema is not None
    assert plain.approves is not None
    assert requests["answered"].answered_by == "ada"
    statuses = {record.run_id: (record.status, record.wake_at) for record in await storage.store.runs()}
    assert statuses["plain"] == ("waiting", "2024-01-03T00:00:00+00:00")
    assert statuses["cancelled"] == ("cancelled", None)


async def test_a_run_that_slept_and_asked_ends_when_its_time_has_passed(storage: StoreStorage) -> None:
    assert await ended(storage, "plain") == ["consent to plain: False nobody answered", *delivered("plain")]


async def test_an_answer_that_was_in_the_inbox_is_taken_in(storage: StoreStorage) -> None:
    assert await ended(storage, "answered") == ["consent to answered: True posted", *delivered("answered")]


async def test_a_cancelled_run_goes_on(storage: StoreStorage) -> None:
    assert (await ended(storage, "cancelled"))[1:] == delivered("cancelled")


async def test_what_had_finished_in_a_superstep_that_failed_is_not_run_again(storage: StoreStorage) -> None:
    with pytest.raises(OSError, match="the ledger is full"):
        await build(storage, ManualClock(skips=True)).run(run_id="broken")
    recorded = {record.key for record in await storage.store.journal("broken")}
    assert "1.1/desk#0" in recorded


@pytest.mark.parametrize("run_id", ["plain", "answered", "cancelled", "broken"])
async def test_the_log_is_whole(storage: StoreStorage, run_id: str) -> None:
    log = [event async for event in storage.events(run_id)]
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert log[0].type == "started"
    assert ("cancelled" in {event.type for event in log}) == (run_id == "cancelled")
