"""Steps: what finished is not done again, whatever happens to the handler around it."""

from __future__ import annotations

import asyncio
import functools
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, MendableError, Receipt, lone

from perdure import InMemoryCheckpointStorage, Retry, WorkflowBuilder, WorkflowExecutor
from perdure.engine import step_key
from perdure.errors import EncodeError, StepMismatchError, StepTimeoutError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure import Workflow


class Till:
    """Counts what was done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def charge(self, what: str) -> str:
        await asyncio.sleep(0)
        self.done.append(what)
        return f"charged {what}"

    def receipt(self, number: int) -> Receipt:
        self.done.append(f"receipt {number}")
        return Receipt(number, ["a line"])


async def failed_then_resumed(workflow: Workflow, mend: Any) -> list[Any]:
    with pytest.raises(MendableError):
        await workflow.run("go")
    mend()
    return (await workflow.run(run_id=workflow.run_id)).get_outputs()


async def test_steps_that_had_finished_are_not_done_again_when_a_failed_run_goes_on() -> None:
    till, is_mended = Till(), list[bool]()

    async def do(_: str, ctx: Context) -> None:
        first = await ctx.step("charge", till.charge, "tea")
        second = await ctx.step("receipt", till.receipt, 7)
        if not is_mended:
            raise MendableError
        await ctx.yield_output((first, second))

    outputs = await failed_then_resumed(lone(do, storage=InMemoryCheckpointStorage()), lambda: is_mended.append(True))
    assert outputs == [("charged tea", Receipt(7, ["a line"]))]
    assert till.done == ["tea", "receipt 7"]


async def test_a_result_is_what_a_resumed_life_would_see_and_not_the_object_that_the_function_still_holds() -> None:
    held = Receipt(1, ["kept"])
    seen: list[Receipt] = []

    async def do(_: str, ctx: Context) -> None:
        result = await ctx.step("receipt", lambda: held)
        held.lines.append("added later")
        seen.append(result)

    await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert seen == [Receipt(1, ["kept"])]


async def test_without_a_storage_a_step_gives_the_object_itself() -> None:
    held = Receipt(1, [])
    seen: list[Receipt] = []

    async def do(_: str, ctx: Context) -> None:
        seen.append(await ctx.step("receipt", lambda: held))

    await lone(do).run("go")
    assert seen[0] is held


async def test_steps_under_gather_are_known_by_the_order_of_the_calls_and_not_of_their_ends() -> None:
    ends: list[str] = []
    is_mended: list[bool] = []
    gate = asyncio.Event()

    async def slow(name: str) -> str:
        if name == "a":
            await gate.wait()
        else:
            gate.set()
        ends.append(name)
        return name.upper()

    async def do(_: str, ctx: Context) -> None:
        results = await asyncio.gather(*(ctx.step("same", slow, name) for name in "abc"))
        if not is_mended:
            raise MendableError
        await ctx.yield_output(results)

    outputs = await failed_then_resumed(lone(do, storage=InMemoryCheckpointStorage()), lambda: is_mended.append(True))
    assert outputs == [["A", "B", "C"]]
    assert ends == ["b", "c", "a"]


async def test_other_arguments_at_the_same_place_are_refused() -> None:
    till, wants, is_mended = Till(), ["tea"], list[bool]()

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("charge", till.charge, wants[-1])
        if not is_mended:
            raise MendableError

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    wants.append("coffee")
    with pytest.raises(StepMismatchError, match="give each call its own key"):
        await workflow.run(run_id=workflow.run_id)
    assert till.done == ["tea"]


async def test_the_keywords_of_a_partial_are_arguments_too_and_the_order_of_keys_is_not() -> None:
    orders: list[dict[str, int]] = [{"a": 1, "b": 2}]
    calls: list[Any] = []

    async def work(what: dict[str, int], *, times: int) -> int:
        calls.append(what)
        return times

    times = [3]

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("work", functools.partial(work, times=times[-1]), orders[-1])
        raise MendableError

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    orders.append({"b": 2, "a": 1})
    with pytest.raises(MendableError):
        await workflow.run(run_id=workflow.run_id)
    times.append(4)
    with pytest.raises(StepMismatchError):
        await workflow.run(run_id=workflow.run_id)
    assert len(calls) == 1


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage], ids=["live", "checkpointed"])
async def test_two_calls_of_one_key_are_one_piece_of_work(storage: Any) -> None:
    till = Till()
    results: list[str] = []

    async def do(_: str, ctx: Context) -> None:
        both = await asyncio.gather(*(ctx.step("charge", till.charge, "tea", key="order/1") for _ in range(2)))
        results.extend([*both, await ctx.step("charge", till.charge, "tea", key="order/1")])

    await lone(do, storage=storage and storage()).run("go")
    assert results == ["charged tea"] * 3
    assert till.done == ["tea"]


async def test_the_second_call_of_a_key_does_the_work_if_the_first_one_failed() -> None:
    calls: list[int] = []

    async def work() -> int:
        calls.append(1)
        await asyncio.sleep(0)
        if len(calls) == 1:
            raise OSError("once")
        return len(calls)

    async def do(_: str, ctx: Context) -> None:
        results = await asyncio.gather(*(ctx.step("work", work, key="k") for _ in range(2)), return_exceptions=True)
        await ctx.yield_output([type(result).__name__ for result in results])

    result = await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert result.get_outputs() == [["OSError", "int"]]


async def test_a_plain_function_runs_in_a_thread_and_knows_its_key() -> None:
    found: list[tuple[bool, str]] = []
    keys: list[str] = []

    def work() -> None:
        found.append((threading.current_thread() is threading.main_thread(), step_key()))

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("work", work)
        await ctx.step("work", work)
        keys.append(ctx.idempotency_key)

    await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert [is_main for is_main, _ in found] == [False, False]
    assert len({*keys, *(key for _, key in found)}) == 3


async def test_keys_are_the_same_over_retries_and_resumes_and_new_in_a_fork() -> None:
    keys: list[tuple[str, str]] = []
    storage = InMemoryCheckpointStorage()

    async def do(_: str, ctx: Context) -> None:
        async def work() -> None:
            keys.append((ctx.idempotency_key, step_key()))
            raise MendableError

        await ctx.step("work", work, retry=Retry(2, backoff=0))

    workflow = lone(do, storage=storage)
    handle = workflow.start("go")
    with pytest.raises(MendableError):
        await handle.result()
    with pytest.raises(MendableError):
        await workflow.run(run_id=workflow.run_id)
    assert len(keys) == 4
    assert len(set(keys)) == 1
    fork = await handle.fork((await storage.list_checkpoint_ids())[0])
    with pytest.raises(MendableError):
        await fork.result()
    assert keys[-1] != keys[0]


async def test_outside_of_a_step_there_is_no_step_key() -> None:
    with pytest.raises(RuntimeError, match="idempotency_key"):
        step_key()


async def test_a_result_that_can_not_be_stored_says_which_step_gave_it() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.step("lock", threading.Lock)

    with pytest.raises(EncodeError, match="result of step 'lock'"):
        await lone(do, storage=InMemoryCheckpointStorage()).run("go")


async def test_a_result_that_can_not_be_stored_is_given_all_the_same_if_the_workflow_is_told_to_warn() -> None:
    lock = threading.Lock()

    async def do(_: str, ctx: Context) -> None:
        results = [await ctx.step("lock", lambda: lock, key="one") for _ in range(2)]
        await ctx.yield_output([result is lock for result in results])

    result = await lone(do, storage=InMemoryCheckpointStorage(), on_checkpoint_error="warn").run("go")
    assert result.get_outputs() == [[True, True]]


async def test_a_sub_workflow_that_is_tried_again_does_not_do_its_steps_again() -> None:
    till, calls = Till(), list[int]()

    async def do(_: str, ctx: Context) -> None:
        calls.append(1)
        await ctx.yield_output(await ctx.step("charge", till.charge, "tea"))
        if len(calls) == 1:
            raise OSError("once")

    sub = WorkflowExecutor(lone(do), "sub", allow_direct_output=True, retry=Retry(2, backoff=0))
    storage = InMemoryCheckpointStorage()
    result = await WorkflowBuilder(name="outer", start_executor=sub, checkpoint_storage=storage).build().run("go")
    assert result.get_outputs() == ["charged tea"]
    assert till.done == ["tea"]


async def test_a_step_that_raised_is_tried_again_as_it_says() -> None:
    clock, calls = ManualClock(skips=True), list[int]()

    def work() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise OSError(f"no {len(calls)}")
        return len(calls)

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("work", work, retry=Retry(3, backoff=1, on=OSError)))

    before = clock.now()
    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert result.get_outputs() == [3]
    assert clock.now() - before >= timedelta(seconds=3)
    warnings = [event.data for event in result if event.type == "warning"]
    assert "step 'work' of executor 'node': attempt 1 of 3 failed: OSError: no 1" in warnings[0]
    assert len(warnings) == 2


async def test_a_step_that_takes_too_long_is_cancelled_and_awaited() -> None:
    clock, ended = ManualClock(), list[str]()

    async def hang() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("hang", hang, timeout=timedelta(seconds=30))

    running = asyncio.ensure_future(lone(do, clock=clock).run("go"))
    while not clock.sleepers:  # noqa: ASYNC110 - nobody tells that somebody waits for the clock
        await asyncio.sleep(0)
    clock.advance(timedelta(seconds=30))
    with pytest.raises(StepTimeoutError, match="step 'hang' did not finish within 30 seconds"):
        await running
    assert ended == ["cleaned up"]
    assert clock.sleepers == 0


async def test_a_result_that_came_is_recorded_even_if_its_handler_is_cancelled_at_that_moment() -> None:
    till, is_mended = Till(), list[bool]()

    async def do(_: str, ctx: Context) -> None:
        async def charge_and_cancel() -> str:
            result = await till.charge("tea")
            if not is_mended:
                task.cancel()
            return result

        task = asyncio.ensure_future(ctx.step("charge", charge_and_cancel))
        await asyncio.wait((task,))
        if not is_mended:
            raise MendableError
        await ctx.yield_output(await task)

    outputs = await failed_then_resumed(lone(do, storage=InMemoryCheckpointStorage()), lambda: is_mended.append(True))
    assert outputs == ["charged tea"]
    assert till.done == ["tea"]


@pytest.mark.parametrize(
    ("name", "fn", "options", "says"),
    [
        ("", print, {}, "name that is not empty"),
        ("a", print, {"key": ""}, "a key must be a str"),
        ("a", 3, {}, "is not a function"),
        ("a", print, {"if_interrupted": "never"}, "if_interrupted must be"),
        ("a", print, {"timeout": -1}, "not negative"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused_at_once(
    name: str, fn: Any, options: dict[str, Any], says: str
) -> None:
    async def do(_: str, ctx: Context) -> None:
        ctx.step(name, fn, **options)  # pyright: ignore[reportUnusedCoroutine] - it is refused before there is one

    with pytest.raises((TypeError, ValueError), match=says):
        await lone(do).run("go")


async def test_a_call_in_place_of_a_function_is_refused() -> None:
    async def do(_: str, ctx: Context) -> None:
        call: Any = asyncio.sleep(0)
        await ctx.step("a", call)

    with pytest.raises(TypeError, match="got a call instead of a function"):
        await lone(do).run("go")


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage], ids=["live", "checkpointed"])
async def test_a_plain_function_that_raises_stop_iteration_fails(storage: Any) -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.step("first", lambda: next(iter(())))

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await lone(do, storage=storage and storage()).run("go")


async def test_a_step_that_waits_for_what_it_has_cancelled_itself_has_failed_and_is_tried_again() -> None:
    calls: list[int] = []

    async def work() -> str:
        calls.append(1)
        own = asyncio.ensure_future(asyncio.sleep(0))
        if len(calls) == 1:
            own.cancel()
        await own
        return "done"

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("work", work, retry=Retry(2, backoff=0)))

    assert (await lone(do, storage=InMemoryCheckpointStorage()).run("go")).get_outputs() == ["done"]


async def test_a_result_that_can_not_be_stored_is_told_and_kept_while_the_handler_waits() -> None:
    locks: list[threading.Lock] = []

    def lock() -> Any:
        locks.append(threading.Lock())
        return locks[-1]

    async def do(_: str, ctx: Context) -> None:
        given = await ctx.step("lock", lock)
        await ctx.sleep(timedelta(hours=1))
        await ctx.yield_output(given is locks[0])

    storage, clock = InMemoryCheckpointStorage(), ManualClock(skips=True)
    result = await lone(do, storage=storage, clock=clock, on_checkpoint_error="warn").run("go")
    assert result.get_outputs() == [True]
    assert len(locks) == 1
    warnings = [event.data for event in result if event.type == "warning"]
    assert len(warnings) == 1
    assert "result of step 'lock' can't be stored" in warnings[0]


async def test_without_a_storage_a_handler_that_is_tried_again_does_not_do_its_steps_again() -> None:
    till, calls = Till(), list[int]()

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("charge", till.charge, "tea")
        calls.append(1)
        if len(calls) == 1:
            raise OSError("once")

    workflow = lone(do, retry=Retry(2, backoff=0))
    await workflow.run("go")
    assert till.done == ["tea"]
    await workflow.run("go")
    assert till.done == ["tea", "tea"]


async def test_the_order_of_keys_that_are_no_strings_is_no_argument_either() -> None:
    orders: list[dict[Any, int]] = [{1: 1, (2, 3): 2}]

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("work", len, orders[-1])
        raise MendableError

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    orders.append({(2, 3): 2, 1: 1})
    with pytest.raises(MendableError):
        await workflow.run(run_id=workflow.run_id)
