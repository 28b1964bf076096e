"""The exact sequences of events."""

import asyncio
from typing import Any

from tests.workflow.nodes import (
    Context,
    MaybeStorage,
    ending,
    failing,
    live_and_checkpointed,
    node,
    passing,
    read,
    sending,
    told,
)

from perdure import (
    CheckpointInfo,
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowEventSource,
    WorkflowRunState,
    handler,
    response_handler,
)


def two_steps(**options: Any) -> Workflow:
    a, b = passing("a"), ending("b")
    return WorkflowBuilder(start_executor=a, **options).add_edge(a, b).build()


class Asker(Executor):
    """Asks two questions, and yields the answers."""

    @handler
    async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        for number in range(2):
            await ctx.request_info(f"{message}{number}", str, request_id=f"{message}{number}")

    @response_handler
    async def on(self, request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{request}={response}")


async def events_of(workflow: Workflow, *arguments: Any, **options: Any) -> list[WorkflowEvent[Any]]:
    events, error = await read(workflow.run(*arguments, stream=True, **options))
    assert error is None
    return events


async def test_a_run_of_two_supersteps() -> None:
    assert told(await events_of(two_steps(), 1)) == [
        *("started", "IN_PROGRESS"),
        *("superstep_started#1", "executor_invoked(a)", "executor_completed(a)", "superstep_completed#1"),
        *("superstep_started#2", "executor_invoked(b)", "output(b)", "executor_completed(b)", "superstep_completed#2"),
        "IDLE",
    ]


async def test_a_run_of_two_supersteps_with_checkpoints() -> None:
    assert told(await events_of(two_steps(checkpoint_storage=InMemoryCheckpointStorage()), 1)) == [
        *("started", "IN_PROGRESS", "checkpoint"),
        *("superstep_started#1", "executor_invoked(a)", "executor_completed(a)"),
        *("checkpoint", "superstep_completed#1"),
        *("superstep_started#2", "executor_invoked(b)", "output(b)", "executor_completed(b)"),
        *("checkpoint", "superstep_completed#2"),
        "IDLE",
    ]


async def test_a_checkpoint_event_says_which_checkpoint_was_committed_and_what_it_follows() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = two_steps(checkpoint_storage=storage, name="two")
    infos = [event.data for event in await events_of(workflow, 1) if event.type == "checkpoint"]
    stored = await storage.list_checkpoints(workflow_name="two")
    assert all(isinstance(info, CheckpointInfo) for info in infos)
    assert [info.checkpoint_id for info in infos] == [checkpoint.checkpoint_id for checkpoint in stored]
    assert [info.previous_checkpoint_id for info in infos] == [None, infos[0].checkpoint_id, infos[1].checkpoint_id]
    assert [info.iteration_count for info in infos] == [0, 1, 2]
    assert [info.timestamp for info in infos] == [checkpoint.timestamp for checkpoint in stored]
    assert {info.run_id for info in infos} == {workflow.run_id}
    assert {info.workflow_name for info in infos} == {"two"}


async def test_a_run_that_asks_tells_once_that_requests_are_pending() -> None:
    workflow = WorkflowBuilder(start_executor=Asker("h")).build()
    assert told(await events_of(workflow, "q")) == [
        *("started", "IN_PROGRESS", "superstep_started#1", "executor_invoked(h)"),
        *("request_info(h)", "IN_PROGRESS_PENDING_REQUESTS", "request_info(h)"),
        *("executor_completed(h)", "superstep_completed#1", "IDLE_WITH_PENDING_REQUESTS"),
    ]


async def test_answers_begin_a_superstep_of_their_own_with_the_count_going_on() -> None:
    workflow = WorkflowBuilder(start_executor=Asker("h")).build()
    await workflow.run("q")
    assert told(await events_of(workflow, responses={"q1": "b", "q0": "a"})) == [
        *("started", "IN_PROGRESS", "superstep_started#2"),
        *("executor_invoked(h)", "output(h)", "executor_completed(h)"),
        *("executor_invoked(h)", "output(h)", "executor_completed(h)"),
        *("superstep_completed#2", "IDLE"),
    ]


async def test_answers_are_durable_before_they_are_handled() -> None:
    workflow = WorkflowBuilder(start_executor=Asker("h"), checkpoint_storage=InMemoryCheckpointStorage()).build()
    await workflow.run("q")
    words = told(await events_of(workflow, responses={"q0": "a"}))
    still_open = ("request_info(h)", "IN_PROGRESS_PENDING_REQUESTS")
    assert words[:6] == ["started", "IN_PROGRESS", "checkpoint", *still_open, "superstep_started#2"]
    assert words[-3:] == ["checkpoint", "superstep_completed#2", "IDLE_WITH_PENDING_REQUESTS"]


async def test_resuming_a_waiting_run_tells_its_requests_again_and_runs_nothing() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=Asker("h"), checkpoint_storage=storage, name="w").build()
    await workflow.run("q")
    head = await storage.get_latest(workflow_name="w")
    assert head is not None
    again = WorkflowBuilder(start_executor=Asker("h"), checkpoint_storage=storage, name="w").build()
    assert told(await events_of(again, checkpoint_id=head.checkpoint_id)) == [
        *("started", "IN_PROGRESS"),
        *("request_info(h)", "IN_PROGRESS_PENDING_REQUESTS", "request_info(h)"),
        "IDLE_WITH_PENDING_REQUESTS",
    ]
    assert len(await storage.list_checkpoints(workflow_name="w")) == 2


@live_and_checkpointed
async def test_a_failure_ends_with_failed_events_and_without_the_end_of_its_superstep(storage: MaybeStorage) -> None:
    a, b = passing("a"), failing("b", ValueError("no"))
    workflow = WorkflowBuilder(start_executor=a, checkpoint_storage=storage()).add_edge(a, b).build()
    events, error = await read(workflow.run(1, stream=True))
    assert isinstance(error, ValueError)
    words = [word for word in told(events) if word != "checkpoint"]
    assert words == [
        *("started", "IN_PROGRESS"),
        *("superstep_started#1", "executor_invoked(a)", "executor_completed(a)", "superstep_completed#1"),
        *("superstep_started#2", "executor_invoked(b)", "executor_failed(b)", "failed", "FAILED"),
    ]


async def test_failed_events_describe_the_exception_and_the_executor() -> None:
    workflow = WorkflowBuilder(start_executor=failing("a", ValueError("no"))).build()
    events, _ = await read(workflow.run(1, stream=True))
    by_type = {event.type: event for event in events}
    executor_failed, failed = by_type["executor_failed"], by_type["failed"]
    assert executor_failed.data is executor_failed.details
    assert executor_failed.details is not None
    assert (executor_failed.details.error_type, executor_failed.details.message) == ("ValueError", "no")
    assert executor_failed.details.executor_id == "a"
    assert failed.details is not None
    assert (failed.details.error_type, failed.details.message) == ("ValueError", "no")
    assert failed.details.traceback is not None


async def test_events_of_one_superstep_come_in_the_order_of_the_plan_when_nothing_waits() -> None:
    start, b, c = sending("start", 1, 2), passing("b"), passing("c")
    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [b, c]).build()
    words = told(await events_of(workflow, 0))
    second = words[words.index("superstep_started#2") + 1 : words.index("superstep_completed#2")]
    assert [word for word in second if word.startswith("executor_invoked")] == [
        *("executor_invoked(b)", "executor_invoked(b)", "executor_invoked(c)", "executor_invoked(c)")
    ]


async def test_an_executor_completes_with_what_it_sent_and_then_what_it_yielded() -> None:
    async def both(message: Any, ctx: Context) -> None:
        await ctx.yield_output("out")
        await ctx.send_message(message)
        await ctx.send_message("more")

    async def neither(_: Any, __: Context) -> None: ...

    a, b = node("a", both), node("b", neither)
    events = await events_of(WorkflowBuilder(start_executor=a).add_edge(a, b).build(), 1)
    completed = [event.data for event in events if event.type == "executor_completed"]
    assert completed == [[1, "more", "out"], None, None]


async def test_an_executor_is_told_to_be_invoked_with_the_very_message_that_it_gets() -> None:
    message = object()
    events = await events_of(two_steps(), message)
    assert [event.data is message for event in events if event.type == "executor_invoked"] == [True, True]


async def test_the_engine_tells_as_framework_and_executors_as_executor() -> None:
    async def own(_: Any, ctx: Context) -> None:
        await ctx.add_event(WorkflowEvent("mine", 1))
        await ctx.yield_output(1)

    workflow = WorkflowBuilder(start_executor=node("a", own), checkpoint_storage=InMemoryCheckpointStorage()).build()
    by_origin: dict[WorkflowEventSource, set[str]] = {}
    for event in await events_of(workflow, 1):
        by_origin.setdefault(event.origin, set()).add(event.type)
    assert by_origin[WorkflowEventSource.EXECUTOR] == {"mine"}
    assert by_origin[WorkflowEventSource.FRAMEWORK] == {
        *("started", "status", "superstep_started", "superstep_completed", "checkpoint"),
        *("executor_invoked", "executor_completed", "output"),
    }


async def test_events_are_told_while_their_executor_still_runs() -> None:
    was_read = asyncio.Event()

    async def slow(_: Any, ctx: Context) -> None:
        await ctx.add_event(WorkflowEvent("mine"))
        await was_read.wait()
        await ctx.yield_output("after it was read")

    stream = WorkflowBuilder(start_executor=node("a", slow)).build().run(1, stream=True)
    while (await anext(stream)).type != "mine":
        pass
    was_read.set()
    assert (await stream.get_final_response()).get_outputs() == ["after it was read"]


async def test_between_supersteps_a_stream_advances_only_when_it_is_pulled() -> None:
    ran: list[str] = []

    async def note(message: str, ctx: Context) -> None:
        ran.append(message)
        if len(ran) < 3:
            await ctx.send_message(message)

    a = node("a", note)
    stream = WorkflowBuilder(start_executor=a).add_edge(a, a).build().run("x", stream=True)
    counts: list[int] = []
    async for event in stream:
        if event.type == "superstep_completed":
            for _ in range(5):
                await asyncio.sleep(0)
            counts.append(len(ran))
    assert counts == [1, 2, 3]


async def test_the_status_is_the_enum_member_itself() -> None:
    states = [event.state for event in await events_of(two_steps(), 1) if event.type == "status"]
    assert states[0] is WorkflowRunState.IN_PROGRESS
    assert states[1] is WorkflowRunState.IDLE
