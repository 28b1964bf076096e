"""What comes to the runs of a host from outside: answers, messages, the wish to stop; and what can be read of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never

import pytest
from tests.hosting.flows import Gate, fail, office, pass_on, row, shout, until
from tests.hosting.wrapped import wrapped

from perdure import (
    AlreadyAnsweredError,
    AnswerTypeError,
    Executor,
    Host,
    Undecoded,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.errors import RunBusyError, RunFailedError, RunNotFoundError, UnknownRequestError
from perdure.storage import StoreStorage

if TYPE_CHECKING:
    from tests.hosting.places import Storage
    from tests.workflow.nodes import Context

WAITING = WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


@dataclass
class Plea:
    text: str


class Judge(Executor):
    """Asks and yields what only its own program knows."""

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[Never, Plea]) -> None:
        await ctx.yield_output(Plea(text))
        await ctx.request_info(Plea(text), Plea, request_id="plea")

    @response_handler
    async def told(self, plea: Plea, answer: Plea, ctx: WorkflowContext[Never, Plea]) -> None:
        await ctx.yield_output(Plea(plea.text + answer.text))


def office_host(storage: Storage) -> Host:
    host = Host(storage)
    host.register(office)
    return host


async def test_a_run_waits_for_its_answer_and_then_continues(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea")
        asked = await run.result()
        assert (asked.get_final_state(), asked.get_outputs()) == (WAITING, [])
        assert [event.request_id for event in asked.get_request_info_events()] == ["about tea"]
        await run.respond({"about tea": "yes"}, by="ann")
        told = await run.result()
    assert (told.get_final_state(), told.get_outputs()) == (WorkflowRunState.IDLE, ["tea: yes (1)"])


async def test_a_run_that_advances_while_it_is_read_does_not_count_as_idle(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea", run_id="tea")
        await run.result()
        answers = [{"about tea": "yes"}]

        async def inbox(real: Any, run_id: str) -> Any:
            """The inbox, read after an answer has come and was taken in."""
            if answers:
                await run.respond(answers.pop())
                await until(host, run_id, "idle")
            return await real(run_id)

        looking = Host(wrapped(storage, inbox=inbox))
        looking.register(office)
        reader = await looking.run("tea")
        told = await reader.result()
    assert (told.get_final_state(), told.get_outputs()) == (WorkflowRunState.IDLE, ["tea: yes (1)"])


async def test_requests_are_listed_by_run_by_workflow_and_all(storage: Storage) -> None:
    async with office_host(storage) as host:
        for text in ("tea", "milk"):
            await (await host.start("office", text, run_id=text)).result()
        assert [request.request_id for request in await host.requests()] == ["about tea", "about milk"]
        assert [request.run_id for request in await host.requests("milk")] == ["milk"]
        assert len(await host.requests(workflow="office")) == 2
        assert await host.requests(workflow="other") == []
        (request,) = await (await host.run("tea")).requests()
        assert (request.data, request.response_type, request.workflow_name) == ("tea", "str", "office")


async def test_an_answer_from_another_process_is_applied_by_a_serving_host(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea")
        await run.result()
        await Host(storage).respond(run.run_id, {"about tea": "no"}, by="bob")
        assert (await run.result()).get_outputs() == ["tea: no (1)"]


async def test_an_answer_counts_once_and_a_wrong_one_is_refused(storage: Storage) -> None:
    host = office_host(storage)
    async with host:
        run = await host.start("office", "tea")
        await run.result()
    with pytest.raises(UnknownRequestError):
        await run.respond({"about milk": "yes"})
    with pytest.raises(AnswerTypeError):
        await run.respond({"about tea": 7})
    await run.respond({"about tea": "yes"}, by="ann")
    await run.respond({"about tea": "yes"}, by="bob")
    with pytest.raises(AlreadyAnsweredError, match="ann"):
        await run.respond({"about tea": "no"}, by="bob")
    async with host:
        assert (await run.result()).get_outputs() == ["tea: yes (1)"]
        with pytest.raises(AlreadyAnsweredError, match="ann"):
            await run.respond({"about tea": "yes"}, by="bob")


async def test_a_message_is_the_next_turn_of_an_idle_run(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", shout))
    async with host:
        run = await host.start("w", "hi")
        assert (await run.result()).get_outputs() == ["hi!"]
        await run.send("ho", message_id="m1")
        assert (await run.result()).get_outputs() == ["ho!"]
        await run.send("ho", message_id="m1")
        outputs = [event.data async for event in run.events(until_idle=True) if event.type == "output"]
    assert outputs == ["hi!", "ho!"]


async def test_a_message_is_the_next_turn_of_a_run_that_waits_for_an_answer(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea")
        await run.result()
        await run.send("milk")
        assert (await run.result()).get_final_state() is WAITING
        assert [request.request_id for request in await run.requests()] == ["about tea", "about milk"]
        await run.respond({"about tea": "yes"})
        assert (await run.result()).get_outputs() == ["tea: yes (1)"]
        assert [request.request_id for request in await run.requests()] == ["about milk"]


async def test_a_message_to_an_executor_is_delivered_in_the_current_turn(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", pass_on, shout))
    async with host:
        run = await host.start("w", "hi")
        await run.result()
        await run.send("psst", "n1")
        assert (await run.result()).get_outputs() == ["hi!", "psst!"]


async def test_a_run_is_cancelled_in_the_middle_of_a_superstep_and_recovered(storage: Storage) -> None:
    gate = Gate()
    host = Host(storage)
    host.register(row("w", gate))
    async with host:
        run = await host.start("w", "hi")
        await gate.holds(1)
        await run.cancel("no need", by="ann")
        cancelled = await run.result()
        assert cancelled.get_final_state() is WorkflowRunState.CANCELLED
        assert (await until(host, run.run_id, "cancelled")).error is None
        gate.open()
        assert await host.recover(run.run_id) == [run.run_id]
        assert (await run.result()).get_outputs() == ["hi"]


async def test_a_waiting_run_can_be_cancelled_by_another_process(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea")
        await run.result()
        await Host(storage).cancel(run.run_id)
        await until(host, run.run_id, "cancelled")


async def test_messages_to_a_cancelled_run_wait_until_it_is_recovered(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea")
        await run.result()
        await run.cancel()
        await until(host, run.run_id, "cancelled")
        await run.respond({"about tea": "yes"})
        await host.recover()
        assert (await run.result()).get_final_state() is WorkflowRunState.CANCELLED
        await host.recover(run.run_id)
        assert (await run.result()).get_outputs() == ["tea: yes (1)"]


async def test_a_failed_run_can_be_cancelled(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", fail))
    async with host:
        run = await host.start("w", "hi")
        with pytest.raises(RunFailedError):
            await run.result()
        await run.cancel()
        await until(host, run.run_id, "cancelled")


async def test_a_run_that_another_process_has_just_taken_needs_no_recovery(storage: Storage) -> None:
    async def taken(lease: Any, run_id: str, **options: Any) -> Any:
        del lease, options
        raise RunBusyError(run_id, owner="another process")

    host = Host(storage)
    host.register(row("w", fail))
    async with host:
        run = await host.start("w", "hi")
        with pytest.raises(RunFailedError):
            await run.result()
    late = Host(wrapped(storage, lease=taken))
    assert await late.recover(run.run_id) == [run.run_id]
    await late.cancel(run.run_id)
    async with host:
        assert await host.recover(run.run_id) == [run.run_id]
        await until(host, run.run_id, "cancelled")
    late.register(row("w", fail))
    assert await late.recover(run.run_id) == [run.run_id]


async def test_runs_are_listed_in_pages(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", shout))
    host.register(office)
    for number in range(5):
        await host.start("w", number, run_id=f"r{number}")
        await host.start("office", str(number), run_id=f"o{number}")
    first = await host.runs("w", limit=2)
    second = await host.runs("w", limit=2, after=first[-1].run_id)
    third = await host.runs("w", limit=2, after=second[-1].run_id)
    assert [[info.run_id for info in page] for page in (first, second, third)] == [["r0", "r1"], ["r2", "r3"], ["r4"]]
    # What does not stand any more where it did is a place to go on after nevertheless.
    assert [info.run_id for info in await host.runs("office", status="running", after="r3")] == ["o3", "o4"]
    assert await host.runs(status="idle", after="r0") == []
    with pytest.raises(ValueError, match="limit must be at least 1"):
        await host.runs(limit=0)
    with pytest.raises(RunNotFoundError):
        await host.runs(after="nobody")


async def test_outputs_so_far_are_returned_without_waiting(storage: Storage) -> None:
    async def give(message: Any, ctx: Context) -> None:
        await ctx.yield_output(message)
        await ctx.send_message(message)

    gate = Gate()
    host = Host(storage)
    host.register(row("w", give, gate))
    run = await host.start("w", "hi")
    assert await run.outputs() == []
    async with host:
        await gate.holds(1)
        assert await run.outputs() == ["hi"]
        gate.open()
        assert (await run.result()).get_outputs() == await run.outputs() == ["hi", "hi"]
        assert await (await run.fork()).outputs() == ["hi", "hi"]
        await run.send("ho")
        await until(host, run.run_id, "idle")
        await run.result()
        assert await run.outputs() == ["ho", "ho"]


async def test_info_has_the_state_of_a_run(timed: Storage) -> None:
    async def sleep(message: Any, ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))
        await ctx.yield_output(message)

    gate = Gate()
    host = office_host(timed)
    for name, do in {"asleep": sleep, "at work": gate, "idle": shout, "broken": fail}.items():
        host.register(row(name, do))
    async with host:
        for name in host.workflow_names:
            await host.start(name, "hi", run_id=name)
        await gate.holds(1)
        await until(host, "office", "waiting")
        asleep = await until(host, "asleep", "sleeping")
        await until(host, "idle", "idle")
        broken = await until(host, "broken", "failed")
        (at_work,) = await host.runs(status="running")
        assert at_work.run_id == "at work"
        assert at_work.owner is not None
        assert asleep.wake_at == asleep.created_at + timedelta(hours=1)
        assert broken.error == "LookupError: no hi"
        assert [info.run_id for info in await host.runs()] == list(host.workflow_names)
        assert [info.run_id for info in await host.runs("office")] == ["office"]
        assert await host.runs("office", "idle") == []
        gate.open()


async def test_events_can_be_read_from_a_number_and_followed(storage: Storage) -> None:
    gate = Gate()
    host = Host(storage)
    host.register(row("w", pass_on, gate))
    async with host:
        run = await host.start("w", "hi")
        await gate.holds(1)
        first = [event async for event in run.events(follow=False)]

        async def rest() -> list[Any]:
            return [event async for event in run.events(len(first) + 1, until_idle=True)]

        reading = asyncio.create_task(rest())
        gate.open()
        later = await reading
        assert [event.seq for event in (*first, *later)] == list(range(1, (await run.info()).events + 1))
        assert [event.data for event in later if event.type == "output"] == ["hi"]


async def test_following_the_events_of_a_failed_run_ends(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", pass_on, fail))
    async with host:
        run = await host.start("w", "hi")
        told = [event.type async for event in run.events(until_rest=True)]
    assert told.count("superstep_completed") == 1


async def test_a_program_without_the_types_can_read_a_result(storage: Storage) -> None:
    host = Host(storage)
    host.register(lambda: WorkflowBuilder(name="court", start_executor=Judge("judge")).build())
    async with host:
        await (await host.start("court", "mercy", run_id="r")).result()
    stranger = await Host(StoreStorage(storage.store)).run("r")
    asked = await stranger.result()
    (output,), (request,) = asked.get_outputs(), asked.get_request_info_events()
    assert (asked.get_final_state(), request.request_id, request.data) == (WAITING, "plea", {"text": "mercy"})
    assert isinstance(output, Undecoded)
    assert [checkpoint.checkpoint_id for checkpoint in await stranger.checkpoints()] == ["r@0", "r@1"]


async def test_on_event_gets_every_event_and_its_errors_are_ignored(storage: Storage) -> None:
    told: list[tuple[str, str]] = []

    def listen(run_id: str, event: Any) -> None:
        told.append((run_id, event.type))
        raise RuntimeError("not my day")

    host = Host(storage, on_event=listen)
    host.register(row("w", shout))
    async with host:
        run = await host.start("w", "hi", run_id="r")
        assert (await run.result()).get_outputs() == ["hi!"]
        await until(host, "r", "idle")
    assert {run_id for run_id, _ in told} == {"r"}
    assert {"superstep_started", "executor_invoked", "output", "checkpoint", "superstep_completed"} <= {
        type_ for _, type_ in told
    }
