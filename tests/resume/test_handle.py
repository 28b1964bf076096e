"""The live handle: read a run, answer it, send to it, cancel it, put it back, fork it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from shapes import Breaking, Clerk, Tally, asking, breaking, counting, nested, types_of

from perdure import (
    AnswerTypeError,
    RunError,
    UnknownRequestError,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowException,
    WorkflowRunState,
    executor,
)

if TYPE_CHECKING:
    from conftest import Storage


async def test_a_run_that_is_awaited_is_durable_and_has_not_gone_further(storage: Storage) -> None:
    tally = Tally()
    run = await counting(storage, tally=tally).start(1)
    assert tally.seen == []
    (entry,) = await storage.list_checkpoints()
    assert entry.run_id == run.run_id
    assert (await run.result()).get_outputs() == [[1, 2, 3]]


async def test_reading_the_events_advances_the_run(storage: Storage) -> None:
    run = counting(storage, limit=1).start(1)
    told = types_of([event async for event in run.events()])
    assert told[0] == "started"
    assert told[-1] == "status"
    assert told.count("checkpoint") == 2
    assert run.status is WorkflowRunState.IDLE


async def test_events_that_were_read_are_not_told_twice_and_stand_in_the_result(storage: Storage) -> None:
    run = counting(storage).start(1)
    first: list[str] = []
    async for event in run.events():
        first.append(event.type)
        if event.type == "superstep_completed":
            break
    rest = types_of([event async for event in run.events()])
    assert first.count("started") + rest.count("started") == 1
    assert first.count("checkpoint") + rest.count("checkpoint") == 4
    assert (await run.result()).get_outputs() == [[1, 2, 3]]


async def test_a_handle_that_has_not_begun_says_so(storage: Storage) -> None:
    run = counting(storage).start(1)
    with pytest.raises(RunError, match="has not begun"):
        _ = run.run_id


async def test_an_idle_run_has_answers_committed_when_they_are_given(storage: Storage) -> None:
    clerk = Clerk()
    run = asking(storage, clerk=clerk).start(["hue", "mood"])
    await run.result()
    assert list(run.requests) == ["about-hue", "about-mood"]
    assert run.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    await run.respond({"about-hue": "red"})
    assert clerk.log == []
    (*_, newest) = await run.checkpoints()
    assert list(newest.pending_request_info_events) == ["about-mood"]
    assert newest.messages["internal:clerk"][0].data == "red"
    assert (await run.result()).get_outputs() == ["hue: red"]
    assert list(run.requests) == ["about-mood"]


@pytest.mark.parametrize(
    ("responses", "error"), [({"about-time": "late"}, UnknownRequestError), ({"about-hue": 5}, AnswerTypeError)]
)
async def test_a_wrong_answer_is_refused_where_it_is_given(
    storage: Storage, responses: dict[str, object], error: type[Exception]
) -> None:
    run = asking(storage).start(["hue"])
    await run.result()
    before = await storage.list_checkpoint_ids()
    with pytest.raises(error):
        await run.respond(responses)
    assert await storage.list_checkpoint_ids() == before
    await run.respond({"about-hue": "red"})
    assert (await run.result()).get_outputs() == ["hue: red"]


async def test_an_answer_given_while_the_run_is_under_way_is_taken_when_it_is_idle(storage: Storage) -> None:
    run = asking(storage).start(["hue"])
    async for event in run.events():
        if event.type == "checkpoint" and event.data.iteration_count == 1:
            await run.respond({"about-hue": "red"})
            break
    assert (await run.result()).get_outputs() == ["hue: red"]
    assert run.status is WorkflowRunState.IDLE


async def test_messages_are_turns_in_the_order_of_sending(storage: Storage) -> None:
    run = counting(storage, limit=2).start(1)
    await run
    await run.send(2)
    await run.send(2)
    result = await run.result()
    assert result.get_outputs() == [[1, 2], [1, 2, 2], [1, 2, 2, 2]]
    assert [c.iteration_count for c in await run.checkpoints()] == [0, 1, 2, 0, 1, 0, 1]


async def test_an_idle_run_has_a_message_committed_when_it_is_sent(storage: Storage) -> None:
    tally = Tally(limit=2)
    run = counting(storage, tally=tally).start(1)
    await run.result()
    await run.send(2)
    (*_, newest) = await run.checkpoints()
    assert newest.messages["internal:tally"][0].data == 2
    assert tally.seen == [1, 2]
    assert (await run.result()).get_outputs()[-1] == [1, 2, 2]


async def test_a_cancelled_run_stays_at_its_last_commit_and_goes_on_by_its_id(storage: Storage) -> None:
    tally = Tally()
    workflow = counting(storage, tally=tally)
    run = workflow.start(1)
    async for event in run.events():
        if event.type == "superstep_completed":
            break
    await run.cancel()
    assert run.status is WorkflowRunState.CANCELLED
    assert [event async for event in run.events()] == []
    with pytest.raises(RunError, match="was cancelled"):
        await run.send(1)
    assert (await counting(storage).run(run_id=run.run_id)).get_outputs() == [[1, 2, 3]]


async def test_cancelling_in_the_middle_of_a_superstep_puts_the_executor_back(storage: Storage) -> None:
    tally = Tally()
    run = counting(storage, tally=tally).start(1)
    async for event in run.events():
        if event.type == "executor_completed":
            break
    assert tally.seen == [1]
    await run.cancel()
    assert tally.seen == []
    entry, cancelled = await run.checkpoints()
    assert (entry.iteration_count, cancelled.iteration_count) == (0, 0)


async def test_a_run_is_put_back_and_goes_on_from_there(storage: Storage) -> None:
    tally = Tally()
    run = counting(storage, tally=tally).start(1)
    await run.result()
    run_id = run.run_id
    before = await run.checkpoints()
    await run.restore(before[1].checkpoint_id)
    told = [event async for event in run.events()]
    assert [event.data for event in told if event.type == "output"] == [[1, 2, 3]]
    assert run.run_id == run_id
    after = await run.checkpoints()
    assert [c.checkpoint_id for c in after[: len(before)]] == [c.checkpoint_id for c in before]
    assert [c.previous_checkpoint_id for c in after[len(before) :]] == [
        before[1].checkpoint_id,
        after[len(before)].checkpoint_id,
    ]
    assert [c.iteration_count for c in after] == [0, 1, 2, 3, 2, 3]
    assert tally.seen == [1, 2, 3]
    for checkpoint in after:
        assert checkpoint.state["_executor_state"]["tally"]["seen"] == [1, 2, 3][: checkpoint.iteration_count]


async def test_a_rewound_run_is_at_the_restored_checkpoint_for_everybody(storage: Storage) -> None:
    run = counting(storage).start(1)
    await run.result()
    (_, second, *_) = await run.checkpoints()
    await run.restore(second.checkpoint_id)
    assert (await counting(storage, limit=5).run(run_id=run.run_id)).get_outputs() == [[1, 2, 3, 4, 5]]


async def test_requests_that_were_opened_since_are_gone_and_answered_ones_open_again(storage: Storage) -> None:
    run = asking(storage).start(["hue"])
    await run.result()
    (entry, asked) = await run.checkpoints()
    await run.respond({"about-hue": "red"})
    await run.result()
    await run.restore(asked.checkpoint_id)
    assert list(run.requests) == ["about-hue"]
    told = [event async for event in run.events()]
    assert "request_info" in types_of(told)
    await run.respond({"about-hue": "blue"})
    assert [e.data async for e in run.events() if e.type == "output"] == ["hue: blue"]
    await run.restore(entry.checkpoint_id)
    assert run.requests == {}
    with pytest.raises(UnknownRequestError):
        await run.respond({"about-hue": "green"})


async def test_an_answer_right_after_a_restore_is_taken(storage: Storage) -> None:
    run = asking(storage).start(["hue"])
    await run.result()
    (_, asked) = await run.checkpoints()
    await run.respond({"about-hue": "red"})
    await run.result()
    await run.restore(asked.checkpoint_id)
    await run.respond({"about-hue": "blue"})
    (*_, newest) = await run.checkpoints()
    assert newest.previous_checkpoint_id == asked.checkpoint_id
    assert newest.messages["internal:clerk"][0].data == "blue"
    assert (await run.result()).get_outputs() == ["hue: blue"], "the branch that was left has no say"


async def test_a_message_right_after_a_restore_is_the_next_turn(storage: Storage) -> None:
    tally = Tally(limit=2)
    run = counting(storage, tally=tally).start(1)
    await run.result()
    (*_, last) = await run.checkpoints()
    await run.send(2)
    await run.result()
    await run.restore(last.checkpoint_id)
    await run.send(2)
    await run.result()
    assert tally.seen == [1, 2, 2]


async def test_a_sub_workflow_is_put_back_with_its_parent(storage: Storage) -> None:
    clerk = Clerk()
    run = nested(storage, clerk=clerk).start(["hue"])
    await run.result()
    (_, asked) = await run.checkpoints()
    await run.respond({"about-hue": "red"})
    await run.result()
    assert clerk.log == ["red"]
    await run.restore(asked.checkpoint_id)
    await run.respond({"about-hue": "blue"})
    await run.result()
    assert clerk.log == ["blue"]


async def test_a_run_can_be_put_back_in_the_middle_of_its_events(storage: Storage) -> None:
    run = counting(storage).start(1)
    async for event in run.events():
        if event.type == "superstep_completed" and event.iteration == 2:
            break
    (entry, *_) = await run.checkpoints()
    await run.restore(entry.checkpoint_id)
    told = [event async for event in run.events()]
    assert [event.iteration for event in told if event.type == "superstep_started"] == [1, 2, 3]
    assert [event.data for event in told if event.type == "output"] == [[1, 2, 3]]


async def test_a_run_is_not_put_back_to_a_checkpoint_of_another(storage: Storage) -> None:
    other = counting(storage).start(1)
    await other.result()
    (theirs, *_) = await other.checkpoints()
    run = counting(storage).start(1)
    await run.result()
    with pytest.raises(WorkflowCheckpointException, match="fork it instead"):
        await run.restore(theirs.checkpoint_id)
    assert (await run.result()).get_outputs() == [[1, 2, 3]]


async def test_a_failed_run_can_be_put_back(storage: Storage) -> None:
    node = Breaking(at=2)
    run = breaking(storage, node=node).start(1)
    with pytest.raises(ArithmeticError):
        await run.result()
    node.at = None
    (entry, *_) = await run.checkpoints()
    await run.restore(entry.checkpoint_id)
    assert [e.data async for e in run.events() if e.type == "output"] == [[1, 2, 3]]


async def test_the_checkpoints_are_those_of_the_run_alone(storage: Storage) -> None:
    await counting(storage).run(1)
    run = counting(storage).start(1)
    await run.result()
    checkpoints = await run.checkpoints()
    assert {checkpoint.run_id for checkpoint in checkpoints} == {run.run_id}
    assert len(checkpoints) == 4


async def test_a_handle_can_be_had_for_a_checkpoint_or_a_run(storage: Storage) -> None:
    await asking(storage).run(["hue"], run_id="one")
    (_, waiting) = await storage.list_checkpoint_ids()
    by_run = await asking(storage).start(run_id="one")
    assert list(by_run.requests) == ["about-hue"]
    by_checkpoint = asking(None).start(checkpoint_id=waiting, checkpoint_storage=storage)
    await by_checkpoint.result()
    await by_checkpoint.respond({"about-hue": "red"})
    assert (await by_checkpoint.result()).get_outputs() == ["hue: red"]
    assert by_checkpoint.run_id == "one"


async def test_without_a_storage_the_handle_reads_answers_and_sends() -> None:
    run = asking(None).start(["hue"])
    await run.result()
    await run.respond({"about-hue": "red"})
    assert (await run.result()).get_outputs() == ["hue: red"]
    await run.send(["mood"])
    await run.result()
    assert list(run.requests) == ["about-mood"]
    for action in (run.checkpoints(), run.restore("x"), run.fork("x")):
        with pytest.raises(WorkflowException, match="needs checkpoints"):
            await action


async def test_a_handle_stays_with_its_run_when_the_instance_goes_on_with_another(storage: Storage) -> None:
    workflow = asking(storage)
    run = await workflow.start(["hue"], run_id="a")
    await run.result()
    await workflow.run(["size"], run_id="b")
    assert run.run_id == "a"
    assert list(run.requests) == ["about-hue"]
    assert run.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    with pytest.raises(RunError, match=r"has switched to run 'b'.*start\(run_id='a'\)"):
        await run.respond({"about-hue": "red"})
    again = workflow.start(run_id="a")
    await again.result()
    await again.respond({"about-hue": "red"})
    assert (await again.result()).get_outputs() == ["hue: red"]


async def test_a_run_that_another_task_reads_can_be_cancelled_and_the_reader_learns_it(storage: Storage) -> None:
    entered, closed = asyncio.Event(), asyncio.Event()

    @executor(id="slow")
    async def slow(number: int, ctx: WorkflowContext[Any, int]) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()
        await ctx.yield_output(number)

    run = await WorkflowBuilder(name="slow", start_executor=slow, checkpoint_storage=storage).build().start(1)
    reader = asyncio.create_task(run.result())
    await entered.wait()
    await run.cancel()
    assert closed.is_set()
    result = await reader
    assert result.get_final_state() is WorkflowRunState.CANCELLED
    assert result.get_outputs() == []
    assert run.status is WorkflowRunState.CANCELLED


async def test_a_reader_of_a_run_that_is_put_back_gets_an_error(storage: Storage) -> None:
    entered = asyncio.Event()
    is_first = True

    @executor(id="slow")
    async def slow(number: int, ctx: WorkflowContext[Any, int]) -> None:
        entered.set()
        if is_first:
            await asyncio.Event().wait()
        await ctx.yield_output(number)

    run = await WorkflowBuilder(name="slow", start_executor=slow, checkpoint_storage=storage).build().start(1)
    reader = asyncio.create_task(run.result())
    await entered.wait()
    (first,) = await run.checkpoints()
    await run.restore(first.checkpoint_id)
    with pytest.raises(RunError, match="was restored"):
        await reader
    is_first = False
    assert (await run.result()).get_outputs() == [1]


async def test_two_tasks_do_not_read_one_handle(storage: Storage) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @executor(id="slow")
    async def slow(number: int, ctx: WorkflowContext[Any, int]) -> None:
        entered.set()
        await go.wait()
        await ctx.yield_output(number)

    run = await WorkflowBuilder(name="slow", start_executor=slow, checkpoint_storage=storage).build().start(1)
    reader = asyncio.create_task(run.result())
    await entered.wait()
    with pytest.raises(RunError, match="another task"):
        await run.result()
    go.set()
    assert (await reader).get_outputs() == [1]


async def test_the_result_of_a_run_that_goes_on_has_all_committed_outputs_of_the_turn(storage: Storage) -> None:
    is_mended = False

    @executor(id="loop")
    async def loop(number: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.yield_output(number)
        if number == 2 and not is_mended:
            raise OSError("not yet")
        if number < 3:
            await ctx.send_message(number + 1)

    def build() -> Workflow:
        return WorkflowBuilder(name="l", start_executor=loop, checkpoint_storage=storage).add_edge(loop, loop).build()

    run = build().start(1, run_id="r")
    for _ in range(2):
        with pytest.raises(OSError, match="not yet"):
            await run.result()
    is_mended = True
    assert (await build().start(run_id="r").result()).get_outputs() == [1, 2, 3]


async def test_who_gives_the_first_input_again_is_told_all_outputs(storage: Storage) -> None:
    is_mended = False

    @executor(id="loop")
    async def loop(number: int, ctx: WorkflowContext[int, int]) -> None:
        if number == 2 and not is_mended:
            raise OSError("not yet")
        await ctx.yield_output(number)
        if number < 3:
            await ctx.send_message(number + 1)

    def build() -> Workflow:
        return WorkflowBuilder(name="l", start_executor=loop, checkpoint_storage=storage).add_edge(loop, loop).build()

    with pytest.raises(OSError, match="not yet"):
        await build().run(1, run_id="r")
    is_mended = True
    assert (await build().run(1, run_id="r")).get_outputs() == [1, 2, 3]
    assert (await build().run(1, run_id="r")).get_outputs() == [1, 2, 3]
