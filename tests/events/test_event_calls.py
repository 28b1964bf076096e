"""Events about steps, model calls, tool calls and failed attempts."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.events.bakery import RUN_ID, Fate, opened
from tests.events.calls import CALLS, PLACES, calls, shop

from perdure import Failure, InMemoryCheckpointStorage, StepInfo, SuperstepInfo, WorkflowEvent

ROOT = Path(__file__).parents[2]
KINDS = ["sqlite", "file"]
CASES = [(place, KINDS[number % 2]) for number, place in enumerate(PLACES)]


async def log_of(directory: Path, **options: Any) -> list[WorkflowEvent[Any]]:
    storage = InMemoryCheckpointStorage()
    await shop(storage, directory, Fate(), **options).run("an owl", run_id=RUN_ID)
    return [event async for event in storage.events(RUN_ID)]


@pytest.mark.parametrize(("victim", "kind"), CASES)
async def test_each_call_is_one_event_wherever_the_process_dies(victim: str, kind: str, tmp_path: Path) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    calm.mkdir()
    rough.mkdir()
    undisturbed = InMemoryCheckpointStorage()
    await shop(undisturbed, calm, Fate()).run("an owl", run_id=RUN_ID)
    program = ("-m", "tests.events.calls", kind, str(rough), victim)
    first, second = warm.run(*program, cwd=ROOT), warm.run(*program, cwd=ROOT)
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert second.returncode == 0, second.stderr
    async with opened(kind, rough) as storage:
        found = await calls(storage.events(RUN_ID))
    assert found == await calls(undisturbed.events(RUN_ID))


async def test_calls_come_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    found = [(event.type, event.innermost.data) for event in await log_of(tmp_path) if event.innermost.type in CALLS]
    names = [data.name if isinstance(data, StepInfo) else f"failed {data.step}" for _, data in found]
    assert names == [
        *("price", "left", "right", "inner", "outer", "failed flaky", "flaky", "pack"),
        *("model", "weigh", "model", "failed None", "note", "label"),
    ]


async def test_the_event_of_a_model_call_has_the_model_and_its_tokens(tmp_path: Path) -> None:
    first, second = [each.data for each in await log_of(tmp_path) if each.type == "model_call_completed"]
    assert (first.model, first.name, first.outcome) == ("small-model", "model", "completed")
    assert second.spent["total_tokens"] == second.spent["input_tokens"] + second.spent["output_tokens"] > 0
    assert first.duration > 0


async def test_the_event_of_a_tool_call_has_a_digest_of_its_arguments(tmp_path: Path) -> None:
    (event,) = [each for each in await log_of(tmp_path) if each.type == "tool_call_completed"]
    assert (event.executor_id, event.data.name, event.data.outcome) == ("scales", "weigh", "completed")
    assert (len(event.data.digest), event.data.arguments, event.data.result) == (40, None, None)
    assert event.data.call_id


async def test_arguments_and_results_are_kept_if_the_workflow_records_payloads(tmp_path: Path) -> None:
    log = await log_of(tmp_path, record_payloads=True)
    found = {each.innermost.data.name: each.innermost.data for each in log if each.type in CALLS - {"attempt_failed"}}
    assert found["price"].arguments == ("price",)
    assert found["note"].result == "NOTED"
    assert "5" in str(found["weigh"].arguments)
    assert found["weigh"].result[0].result == "5 g"
    assert found["model"].result.text == "It weighs 5 g."


async def test_an_attempt_that_was_followed_by_another_is_an_event(tmp_path: Path) -> None:
    step, handler = [each.data for each in await log_of(tmp_path) if each.type == "attempt_failed"]
    assert isinstance(step, Failure)
    assert (step.error_type, step.message, step.executor_id) == ("ConnectionError", "closed", "clerk")
    assert (step.step, step.attempt, step.traceback) == ("flaky", 1, None)
    assert (handler.error_type, handler.executor_id, handler.step, handler.attempt) == (
        "TimeoutError",
        "trying",
        None,
        1,
    )


async def test_a_superstep_has_its_durations_its_size_and_its_process(tmp_path: Path) -> None:
    found = [each.data for each in await log_of(tmp_path) if each.type == "superstep_completed"]
    assert all(isinstance(each, SuperstepInfo) and each.duration > 0 and each.bytes_written for each in found)
    assert all(each.commit_duration is not None and each.process.startswith("process ") for each in found)
    assert {"total_tokens"} <= set(found[2])
    assert dict(found[0]) == {}


async def test_live_events_tell_of_the_same_calls(tmp_path: Path) -> None:
    live = await shop(InMemoryCheckpointStorage(), tmp_path, Fate()).run("an owl", run_id=RUN_ID)
    again = tmp_path / "again"
    again.mkdir()
    log = await log_of(again)
    told = [[each.innermost.type for each in events if each.innermost.type in CALLS] for events in (live, log)]
    assert sorted(told[0]) == sorted(told[1])
