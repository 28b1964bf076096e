"""What an activation leaves in the log of its run: every event that is not transient, in order."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.activation.solo import Context, lone

from perdure import InMemoryCheckpointStorage, Retry, WorkflowBuilder, WorkflowEvent, WorkflowExecutor
from perdure.events import Undecoded, WorkflowErrorDetails
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HOUR = timedelta(hours=1)
_AROUND = {"started", "checkpoint", "superstep_started", "superstep_completed", "status", "woken"}


async def logged(
    do: Callable[[Any, Context], Awaitable[None]], message: Any = "go", **options: Any
) -> list[WorkflowEvent[Any]]:
    """What the log of a run holds about its activations."""
    storage = InMemoryCheckpointStorage()
    await lone(do, storage=storage, clock=ManualClock(skips=True), **options).run(message, run_id="r")
    return [event async for event in storage.events("r") if event.type not in _AROUND]


async def test_everything_that_is_not_transient_is_in_the_log_in_order() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.add_event(WorkflowEvent("progress", 1))
        await ctx.yield_output("out")
        await ctx.add_event(WorkflowEvent("token", "a"), transient=True)
        await ctx.add_event(WorkflowEvent("output", "not for users to tell"))
        await ctx.request_info("may I?", str, request_id="q")

    events = await logged(do)
    assert [event.type for event in events] == [
        "executor_invoked",
        "progress",
        "output",
        "warning",
        "warning",
        "request_info",
        "executor_completed",
    ]
    assert [event.data for event in events[:3]] == [None, 1, "out"]
    assert (events[5].request_id, events[5].data) == ("q", "may I?")


async def test_messages_and_results_are_in_the_log_only_if_the_workflow_records_payloads() -> None:
    async def do(_: list[int], ctx: Context) -> None:
        await ctx.yield_output("out")

    bare, whole = await logged(do, [1]), await logged(do, [1], record_payloads=True)
    assert [event.data for event in bare] == [None, "out", None]
    assert [event.data for event in whole] == [[1], "out", ["out"]]


async def test_an_event_that_can_not_be_stored_does_not_fail_the_run_and_says_why() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.add_event(WorkflowEvent("locked", threading.Lock()))

    events = await logged(do)
    assert [event.type for event in events] == ["executor_invoked", "locked", "executor_completed"]
    assert isinstance(events[1].data, Undecoded)
    assert "can't be stored" in events[1].data.reason


async def test_attempts_that_failed_are_in_the_log_without_what_they_gave() -> None:
    calls: list[int] = []

    async def do(_: str, ctx: Context) -> None:
        calls.append(1)
        await ctx.yield_output(f"out {len(calls)}")
        await ctx.add_event(WorkflowEvent("progress", len(calls)))
        if len(calls) == 1:
            raise OSError("once")

    events = await logged(do, retry=Retry(2, backoff=1))
    assert [(event.type, event.data) for event in events if event.type in {"output", "progress"}] == [
        ("progress", 1),
        ("output", "out 2"),
        ("progress", 2),
    ]
    failed = next(event for event in events if event.type == "executor_failed")
    assert isinstance(failed.details, WorkflowErrorDetails)
    assert (failed.details.error_type, failed.details.message) == ("OSError", "once")
    assert [event.type for event in events].index("warning") == [event.type for event in events].index(
        "executor_failed"
    ) + 1


async def test_a_handler_that_was_left_is_in_the_log_without_its_outputs() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output("out")
        await ctx.sleep(HOUR)

    assert [event.type for event in await logged(do)] == [
        "executor_invoked",
        "executor_suspended",
        "executor_invoked",
        "output",
        "executor_completed",
    ]


async def test_what_a_sub_workflow_told_has_its_path() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.add_event(WorkflowEvent("locked", threading.Lock()))
        await ctx.yield_output("out")

    storage = InMemoryCheckpointStorage()
    sub = WorkflowExecutor(lone(do), "sub", allow_direct_output=True)
    await WorkflowBuilder(name="outer", start_executor=sub, checkpoint_storage=storage).build().run("go", run_id="r")
    inner = [event async for event in storage.events("r") if event.type == "sub_workflow"]
    assert {event.path for event in inner} == {("sub",)}
    locked, output = (event.data for event in inner if event.data.type in {"output", "locked"})
    assert isinstance(locked.data, Undecoded)
    assert "can't be stored" in locked.data.reason
    assert (output.type, output.data) == ("output", "out")
