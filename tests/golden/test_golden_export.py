"""Exports of every format that was released are read for ever, into every kind of storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from export_program import build
from tests.storages.kinds import KINDS, opened

from perdure import WorkflowRunState
from perdure.records import Halt
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.storage import StoreStorage

FILES = sorted(Path(__file__).parent.glob("export-*.jsonl"))
KEY = "9cafcc66053aa095cf21b5"


@pytest.fixture(params=KINDS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreStorage]:
    async with opened(request.param, tmp_path) as one:
        yield one


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_a_run_that_was_exported_goes_on_where_it_was(storage: StoreStorage, path: Path) -> None:
    assert await storage.import_run(path) == "shop/1"
    workflow, packer = build(storage, ManualClock(), is_mended=True)
    result = await workflow.run(run_id="shop/1")
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    # The message in the inbox is its second turn, since what the first one asked may take its time.
    outputs = sorted(result.get_outputs())
    assert [output.partition(", key")[0] for output in outputs] == [
        "clock is on page 5",
        "clock packed, 2048 bytes",
        "watch is on page 5",
        "watch packed, 2048 bytes",
    ]
    assert KEY in outputs[1]
    assert packer.packed == ["watch"]
    result = await workflow.run(responses={"may clock go?": True})
    assert result.get_outputs() == ["clock may go: True"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_an_exported_run_has_all_that_it_had(storage: StoreStorage, path: Path) -> None:
    await storage.import_run(path)
    log = [event async for event in storage.events("shop/1")]
    assert [event.seq for event in log] == list(range(1, 8))
    assert [checkpoint.checkpoint_id for checkpoint in await storage.list_checkpoints()] == ["shop/1@0", "shop/1@1"]
    assert {record.key for record in await storage.store.journal("shop/1")} == {
        "1.1/desk#0",
        "1.1/packer#0",
        "1.1/packer#0/step/pack#0",
        "1.1/ledger#0/step/find%20a%20page#0",
    }
    (command,) = await storage.store.inbox("shop/1")
    assert (command.id, command.kind) == ("message/second", "message")


async def test_a_run_that_was_parked_when_it_was_exported_is_parked(storage: StoreStorage) -> None:
    await storage.import_run(FILES[0].with_name("export-1-parked.jsonl"))
    record = await storage.store.run("shop/1")
    assert record is not None
    assert record.halt == Halt("parked", "2024-01-01T00:00:00+00:00", "it has ended 3 processes")
