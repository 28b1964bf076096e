"""A run that has failed says so in its store, with the reason, until somebody goes on with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from shapes import Breaking, asking, breaking

from perdure import BudgetExceededError, CheckpointWriteError, UnknownRequestError
from perdure.engine import Call, failure_of
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from conftest import Storage
    from perdure import Workflow
    from perdure.records import RunRecord


async def failed(workflow: Workflow, message: Any = 1) -> None:
    with pytest.raises(ArithmeticError, match="broke at"):
        await workflow.run(message, run_id="r")


async def record_of(storage: Storage) -> RunRecord:
    record = await storage.store.run("r")
    assert record is not None
    return record


async def test_a_failed_run_stands_as_failed_with_the_reason(storage: Storage) -> None:
    await failed(breaking(storage, node=Breaking(at=2)))
    record = await record_of(storage)
    assert (record.run_status, record.status, record.owner) == ("failed", "running", None)
    assert record.halt is not None
    assert "broke at" in record.halt.reason
    assert json.loads(record.halt.data)["error_type"] == "ArithmeticError"
    assert [each.run_id for each in await storage.store.runs(status="failed")] == ["r"]
    assert await storage.store.runs(status="running") == []


async def test_it_stands_as_failed_until_it_gets_on(storage: Storage) -> None:
    await failed(breaking(storage, node=Breaking(at=2)))
    await breaking(storage, node=Breaking(at=99)).run(run_id="r")
    record = await record_of(storage)
    assert (record.run_status, record.halt) == ("idle", None)


async def test_a_call_that_is_refused_leaves_it_failed(storage: Storage) -> None:
    await failed(breaking(storage, node=Breaking(at=2)))
    with pytest.raises(UnknownRequestError):
        await breaking(storage, node=Breaking(at=99)).run(run_id="r", responses={"nobody asked": 1})
    assert (await record_of(storage)).run_status == "failed"


async def test_a_run_over_its_budget_has_failed(storage: Storage) -> None:
    with pytest.raises(BudgetExceededError):
        await breaking(storage, node=Breaking(at=99)).run(1, run_id="r", budget={"supersteps": 1})
    assert (await record_of(storage)).run_status == "failed"


async def test_a_refusal_is_no_failure(storage: Storage) -> None:
    await asking(storage).run("a", run_id="r")
    with pytest.raises(UnknownRequestError):
        await asking(storage).run(run_id="r", responses={"nobody asked": 1})
    assert (await record_of(storage)).run_status == "waiting"


async def test_an_abandoned_stream_is_no_failure(storage: Storage) -> None:
    stream = breaking(storage, node=Breaking(at=99)).run(1, run_id="r", stream=True)
    async for event in stream:
        if event.type == "superstep_completed":
            break
    await stream.aclose()
    record = await record_of(storage)
    assert (record.run_status, record.owner) == ("running", None)


async def test_what_only_enters_is_durable_and_runs_nothing(storage: Storage) -> None:
    node = Breaking(at=1)
    call = Call(message=1, run_id="r", storage=storage, commit_input_only=True)
    told = [event.type async for event in breaking(storage, node=node).stream(call)]
    record = await record_of(storage)
    assert (record.run_status, record.position, record.owner) == ("running", 0, None)
    assert "executor_invoked" not in told
    assert node.seen == []


def test_a_store_that_cannot_be_written_is_no_failure_of_the_run() -> None:
    assert failure_of(CheckpointWriteError(run_id="r", reason="disk full"), ManualClock()) is None


def test_a_reason_is_one_line_of_bounded_length() -> None:
    halt = failure_of(ValueError("first\nsecond " + "x" * 5000), ManualClock())
    assert halt is not None
    assert halt.reason.startswith("ValueError: first second xxx")
    assert "\n" not in halt.reason
    assert len(halt.reason) < 600
