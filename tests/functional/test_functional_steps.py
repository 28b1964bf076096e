"""Steps of a functional workflow are done once, whoever comes to them and in whatever order."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from perdure import (
    FunctionalWorkflow,
    Retry,
    RunContext,
    StepMismatchError,
    StepWrapper,
    get_run_context,
    step,
    workflow,
)

if TYPE_CHECKING:
    from perdure import CheckpointStorage, WorkflowRunResult


@dataclass
class Page:
    """Something of our own."""

    title: str


def told(result: WorkflowRunResult, name: str) -> list[str]:
    """What was told of a step."""
    return [event.type for event in result if event.executor_id == name]


async def latest(storage: Any, name: str) -> str:
    """The newest checkpoint."""
    found = await storage.get_latest(workflow_name=name)
    assert found is not None
    return found.checkpoint_id


async def test_the_result_is_told_as_the_output_of_the_workflow() -> None:
    @step
    async def double(number: int) -> int:
        return 2 * number

    @workflow(name="doubling", description="doubles")
    async def pipeline(number: int) -> int:
        return await double(await double(number))

    result = await pipeline.run(3)
    assert result.get_outputs() == [12]
    assert [event.executor_id for event in result if event.type == "output"] == ["doubling"]
    assert told(result, "double") == ["executor_invoked", "executor_completed"] * 2
    assert (pipeline.name, pipeline.description) == ("doubling", "doubles")


async def test_a_function_that_returns_nothing_has_no_output() -> None:
    @workflow
    async def silent(text: str) -> None:
        del text

    assert (await silent.run("hello")).get_outputs() == []


async def test_steps_before_a_failure_are_not_done_again(storage: CheckpointStorage) -> None:
    calls: list[str] = []
    failures = [ValueError("no network")]

    @step
    async def load(title: str) -> Page:
        calls.append("load")
        return Page(title)

    @step
    def send(page: Page) -> str:
        calls.append("send")
        if failures:
            raise failures.pop()
        return f"sent {page.title}"

    @workflow
    async def mailing(title: str) -> str:
        return await send(await load(title))

    with pytest.raises(ValueError, match="no network"):
        await mailing.run("owls", checkpoint_storage=storage)
    resumed = mailing.twin()
    result = await resumed.run(checkpoint_id=await latest(storage, "mailing"), checkpoint_storage=storage)
    assert result.get_outputs() == ["sent owls"]
    assert calls == ["load", "send", "send"]
    assert told(result, "load") == ["executor_bypassed"]
    assert [event.data for event in result if event.type == "executor_bypassed"] == [Page("owls")]


async def test_branches_find_their_own_steps_whichever_was_the_faster(storage: CheckpointStorage) -> None:
    later_first, fails, made = [True], [True], list[tuple[str, int]]()

    @step
    async def fetch(number: int) -> int:
        for _ in range(3 * (3 - number) if later_first[0] else 3 * number):
            await asyncio.sleep(0)
        made.append(("fetch", number))
        return 10 * number

    @step
    async def parse(number: int) -> int:
        made.append(("parse", number))
        return number + 1

    async def branch(number: int) -> int:
        return await parse(await fetch(number))

    @workflow
    async def readers(count: int) -> list[int]:
        found = await asyncio.gather(*(branch(number) for number in range(count)))
        if fails:
            raise ValueError(fails.pop())
        return found

    with pytest.raises(ValueError, match="True"):
        await readers.run(3, checkpoint_storage=storage)
    assert [number for name, number in made if name == "parse"] == [20, 10, 0]
    made.clear()
    later_first[0] = False
    result = await readers.run(checkpoint_id=await latest(storage, "readers"), checkpoint_storage=storage)
    assert result.get_outputs() == [[1, 11, 21]]
    assert made == []


async def test_calls_of_one_step_side_by_side_are_told_apart_by_the_call() -> None:
    @step
    async def square(number: int) -> int:
        await asyncio.sleep(0)
        return number * number

    @workflow
    async def squares(count: int) -> list[int]:
        calls = [square(number) for number in range(count)]
        return list(reversed(await asyncio.gather(*reversed(calls))))

    assert (await squares.run(4)).get_outputs() == [[0, 1, 4, 9]]


async def test_another_call_in_the_place_of_a_recorded_one_is_an_error(storage: CheckpointStorage) -> None:
    number = [1]

    @step
    async def charge(amount: int) -> int:
        return amount

    @workflow
    async def till(_: str) -> int:
        paid = await charge(number[0])
        if number[0] == 1:
            raise ValueError("the till is stuck")
        return paid

    with pytest.raises(ValueError, match="stuck"):
        await till.run("go", checkpoint_storage=storage)
    number[0] = 2
    with pytest.raises(StepMismatchError, match="charge"):
        await till.run(checkpoint_id=await latest(storage, "till"), checkpoint_storage=storage)


async def test_a_key_finds_a_step_in_another_order(storage: CheckpointStorage) -> None:
    order, made = [["a", "b"]], list[str]()

    @step(key=str)
    async def greet(name: str) -> str:
        made.append(name)
        return f"hello {name}"

    @workflow
    async def greetings(_: str) -> list[str]:
        found = [await greet(name) for name in order[0]]
        if order[0][0] == "a":
            raise ValueError("once more")
        return found

    with pytest.raises(ValueError, match="once more"):
        await greetings.run("go", checkpoint_storage=storage)
    order[0] = ["b", "a"]
    result = await greetings.run(checkpoint_id=await latest(storage, "greetings"), checkpoint_storage=storage)
    assert result.get_outputs() == [["hello b", "hello a"]]
    assert made == ["a", "b"]


async def test_what_a_step_sets_in_the_state_is_kept_with_its_record(storage: CheckpointStorage) -> None:
    @step
    async def inner(ctx: RunContext) -> None:
        ctx.set_state("inner", "here")

    @step
    async def look(text: str, ctx: RunContext) -> str:
        ctx.set_state("seen", text)
        await inner()
        return text

    @workflow
    async def looking(text: str, ctx: RunContext) -> list[str]:
        await look(text)
        await ctx.request_info("go on?", bool)
        return [ctx.get_state("seen"), ctx.get_state("inner")]

    first = await looking.run("owls", run_id="r", checkpoint_storage=storage)
    (asked,) = first.get_request_info_events()
    answers = {asked.request_id: True}
    result = await looking.twin().run(run_id="r", responses=answers, checkpoint_storage=storage)
    assert result.get_outputs() == [["owls", "here"]]
    assert told(result, "look") == ["executor_bypassed"]


async def test_a_step_is_tried_again_as_its_retry_says() -> None:
    attempts: list[int] = []

    @step(retry=Retry(attempts=3, backoff=0))
    async def flaky() -> str:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            raise OSError("not yet")
        return "there"

    @workflow
    async def stubborn(_: str) -> str:
        return await flaky()

    result = await stubborn.run("go")
    assert result.get_outputs() == ["there"]
    assert len(attempts) == 3


async def test_a_failed_step_is_told_and_can_be_caught() -> None:
    @step
    async def fail() -> None:
        raise KeyError("gone")

    @workflow
    async def careful(_: str) -> str:
        try:
            await fail()
        except KeyError:
            return "caught"
        return "never"

    result = await careful.run("go")
    assert result.get_outputs() == ["caught"]
    assert told(result, "fail") == ["executor_invoked", "executor_failed"]


async def test_a_plain_step_runs_in_a_thread_and_knows_its_run() -> None:
    @step
    def where(ctx: RunContext, text: str) -> tuple[bool, bool, str]:
        return threading.current_thread() is threading.main_thread(), get_run_context() is ctx, text

    @workflow
    async def threads(text: str) -> tuple[bool, bool, str]:
        return await where(text)

    result = await threads.run("hello")
    assert result.get_outputs() == [(False, True, "hello")]
    assert told(result, "where") == ["executor_invoked", "executor_completed"]


async def test_outside_of_a_workflow_a_step_is_simply_called() -> None:
    @step(name="adding")
    async def add(one: int, other: int = 1) -> int:
        return one + other

    @step
    def shout(text: str) -> str:
        return text.upper()

    assert await add(1, other=2) == 3
    assert await shout("hello") == "HELLO"
    assert isinstance(add, StepWrapper)
    assert (add.name, shout.name) == ("adding", "shout")
    assert get_run_context() is None


async def test_the_context_is_found_by_type_or_by_name_and_takes_no_argument_away() -> None:
    @step
    async def first(run: RunContext, text: str) -> bool:
        return get_run_context() is run and text == "hello"

    @step
    async def last(text: str, *, ctx: Any) -> bool:
        return get_run_context() is ctx and text == "hello"

    @workflow
    async def both(run: RunContext, text: str) -> list[bool]:
        return [get_run_context() is run, await first("hello"), await last(text)]

    assert (await both.run("hello")).get_outputs() == [[True, True, True]]


def test_a_function_takes_one_message() -> None:
    async def two(one: str, other: str) -> str:
        return one + other

    with pytest.raises(ValueError, match="one, other"):
        workflow(two)


def test_a_workflow_is_an_async_function() -> None:
    def plain(text: str) -> str:
        return text

    with pytest.raises(TypeError, match="async"):
        FunctionalWorkflow(plain)  # pyright: ignore[reportArgumentType] - that is what is tested
