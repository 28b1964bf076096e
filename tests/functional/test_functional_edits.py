"""A run goes on in a function that was changed: what was done is found by its arguments, what was asked by its data."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from perdure import AlreadyAnsweredError, RunContext, StepMismatchError, UnknownRequestError, step, workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure import FunctionalWorkflow, WorkflowRunResult
    from perdure.storage import StoreStorage as Storage

made: list[str] = []


async def charge(name: str) -> str:
    """Something that must not be done twice."""
    made.append(name)
    return f"paid {name}"


plain = step(charge)
keyed = step(key=str)(charge)


async def two(_: str, ctx: RunContext) -> list[str]:
    """How it was."""
    return [await plain("b"), await plain("c"), await ctx.request_info("well?", str)]


async def one_more(_: str, ctx: RunContext) -> list[str]:
    """A call was added before the others."""
    return [await plain("a"), await plain("b"), await plain("c"), await ctx.request_info("well?", str)]


async def one_less(_: str, ctx: RunContext) -> list[str]:
    """The first call was taken out."""
    return [await plain("c"), await ctx.request_info("well?", str)]


async def with_keys(_: str, ctx: RunContext) -> list[str]:
    """Calls have got keys."""
    return [await keyed("a"), await keyed("b"), await keyed("c"), await ctx.request_info("well?", str)]


@pytest.fixture(autouse=True)
def forget() -> None:
    """Nothing was made."""
    made.clear()


def named(function: Callable[..., Awaitable[Any]]) -> FunctionalWorkflow:
    """The same workflow, whatever its function."""
    return workflow(name="till")(function)


def warnings_in(result: WorkflowRunResult) -> str:
    """What was warned of."""
    return "\n".join(event.data for event in result if event.type == "warning")


@pytest.mark.parametrize(
    ("after", "outputs", "also_made"),
    [
        (one_more, ["paid a", "paid b", "paid c", "yes"], ["a"]),
        (one_less, ["paid c", "yes"], []),
        (with_keys, ["paid a", "paid b", "paid c", "yes"], ["a"]),
    ],
)
async def test_steps_are_found_where_they_have_moved_to(
    storage: Storage, after: Callable[..., Awaitable[Any]], outputs: list[str], also_made: list[str]
) -> None:
    await named(two).run("go", run_id="r", checkpoint_storage=storage)
    result = await named(after).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [outputs]
    assert made == ["b", "c", *also_made]
    assert "was changed since" in warnings_in(result)


async def test_a_call_that_was_added_is_not_done_again_either(storage: Storage) -> None:
    async def asks_twice(_: str, ctx: RunContext) -> list[str]:
        found = [await plain("a"), await plain("b"), await plain("c")]
        return [*found, await ctx.request_info("well?", str), await ctx.request_info("and now?", str)]

    await named(two).run("go", run_id="r", checkpoint_storage=storage)
    await named(asks_twice).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    result = await named(asks_twice).run(run_id="r", responses={"auto::1": "no"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid a", "paid b", "paid c", "yes", "no"]]
    assert made == ["b", "c", "a"]


def till_with(helper: Callable[[RunContext], Awaitable[list[str]]]) -> FunctionalWorkflow:
    """A function that reads the same with every helper."""

    async def till(_: str, ctx: RunContext) -> list[str]:
        return await helper(ctx)

    return named(till)


async def test_an_edit_of_a_helper_is_one_of_the_function(storage: Storage) -> None:
    async def before(ctx: RunContext) -> list[str]:
        return [await plain("b"), await ctx.request_info("send a reminder?", str)]

    async def after(ctx: RunContext) -> list[str]:
        first = [await plain("a"), await plain("b")]
        return [*first, await ctx.request_info("cancel?", str), await ctx.request_info("send a reminder?", str)]

    await till_with(before).run("go", run_id="r", checkpoint_storage=storage)
    second = await till_with(after).run(run_id="r", responses={"auto::0": "remind"}, checkpoint_storage=storage)
    assert "was changed since" in warnings_in(second)
    (asked,) = second.get_request_info_events()
    assert asked.data == "cancel?"
    result = await till_with(after).run(run_id="r", responses={asked.request_id: "no"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid a", "paid b", "no", "remind"]]
    assert made == ["b", "a"]


class Till:
    """Helpers that are methods."""

    async def before(self) -> list[str]:
        """How it was."""
        return [await plain("b")]

    async def after(self) -> list[str]:
        """A call was added before the other."""
        return [await plain("a"), await plain("b")]


def in_a_dict(helper: Callable[[], Awaitable[list[str]]]) -> FunctionalWorkflow:
    """A function that looks its helper up."""
    helpers = {"pay": helper}

    async def till(_: str, ctx: RunContext) -> list[str]:
        return [*await helpers["pay"](), await ctx.request_info("well?", str)]

    return named(till)


def in_a_list(helper: Callable[[], Awaitable[list[str]]]) -> FunctionalWorkflow:
    """A function that calls all helpers that there are."""
    helpers = [functools.partial(helper)]

    async def till(_: str, ctx: RunContext) -> list[str]:
        return [*[each for pay in helpers for each in await pay()], await ctx.request_info("well?", str)]

    return named(till)


def by_name(helper: Callable[[], Awaitable[list[str]]]) -> FunctionalWorkflow:
    """A function that simply calls it."""

    async def till(_: str, ctx: RunContext) -> list[str]:
        return [*await helper(), await ctx.request_info("well?", str)]

    return named(till)


@pytest.mark.parametrize("till_with", [in_a_dict, in_a_list, by_name])
async def test_an_edit_is_seen_wherever_a_helper_is_in_plain_sight(
    storage: Storage, till_with: Callable[[Callable[[], Awaitable[list[str]]]], FunctionalWorkflow]
) -> None:
    await till_with(Till().before).run("go", run_id="r", checkpoint_storage=storage)
    result = await till_with(Till().after).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid a", "paid b", "yes"]]
    assert made == ["b", "a"]
    assert "was changed since" in warnings_in(result)


async def test_a_step_with_a_key_is_not_taken_for_one_of_the_same_name_without(storage: Storage) -> None:
    fetched: list[str] = []

    def fetch_of(kind: str, **options: Any) -> Callable[[int], Awaitable[str]]:
        @step(name="fetch", **options)
        async def fetch(number: int) -> str:
            fetched.append(kind)
            if kind == "user" and fetched.count("user") == 1:
                raise OSError("down")
            return f"{kind} {number}"

        return fetch

    user, bill = fetch_of("user"), fetch_of("bill", key=str)

    @workflow
    async def office(_: str) -> list[str]:
        found = await asyncio.gather(bill(7), user(7), return_exceptions=True)
        for each in found:
            if isinstance(each, OSError):
                raise each
        return [str(each) for each in found]

    with pytest.raises(OSError, match="down"):
        await office.run("go", run_id="r", checkpoint_storage=storage)
    result = await office.twin().run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [["bill 7", "user 7"]]
    assert fetched == ["bill", "user", "user"]


async def test_other_helpers_that_nobody_calls_are_no_edit(storage: Storage) -> None:
    def till_beside(other: object) -> FunctionalWorkflow:
        async def till(_: str, ctx: RunContext) -> str:
            return f"{await ctx.request_info('well?', str)} {other is None}"

        return named(till)

    await till_beside(None).run("go", run_id="r", checkpoint_storage=storage)
    result = await till_beside(1).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == ["yes False"]
    assert warnings_in(result) == ""


async def test_a_step_that_was_taken_out_is_told_at_the_end(storage: Storage) -> None:
    await named(two).run("go", run_id="r", checkpoint_storage=storage)
    result = await named(one_less).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert "without coming to what was recorded for it: charge" in warnings_in(result)


async def test_a_step_that_has_got_a_key_is_found_though_the_function_reads_as_before(storage: Storage) -> None:
    def paying_with(kind: Callable[[str], Awaitable[str]]) -> FunctionalWorkflow:
        async def paying(_: str, ctx: RunContext) -> list[str]:
            return [await kind("b"), await kind("c"), await ctx.request_info("well?", str)]

        return named(paying)

    await paying_with(plain).run("go", run_id="r", checkpoint_storage=storage)
    result = await paying_with(keyed).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid b", "paid c", "yes"]]
    assert made == ["b", "c"]


async def test_other_arguments_under_one_key_are_refused_though_the_function_was_changed(storage: Storage) -> None:
    by_name = step(key=lambda *_: "the one")(charge)

    async def first(_: str, ctx: RunContext) -> list[str]:
        return [await by_name("a"), await ctx.request_info("well?", str)]

    async def second(_: str, ctx: RunContext) -> list[str]:
        return [await by_name("b"), await ctx.request_info("well?", str)]

    await named(first).run("go", run_id="r", checkpoint_storage=storage)
    with pytest.raises(StepMismatchError, match="charge"):
        await named(second).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert made == ["a"]


async def reminded(_: str, ctx: RunContext) -> list[Any]:
    """How it was."""
    return [await ctx.request_info("send a reminder?", bool)]


async def cancelled_first(_: str, ctx: RunContext) -> list[Any]:
    """Another question was put before it."""
    return [await ctx.request_info("cancel the contract?", bool), await ctx.request_info("send a reminder?", bool)]


async def counted(_: str, ctx: RunContext) -> list[Any]:
    """It asks for something else."""
    return [await ctx.request_info("send a reminder?", int)]


async def test_an_answer_is_not_taken_for_a_question_that_was_put_before_its_own(storage: Storage) -> None:
    await named(reminded).run("go", run_id="r", checkpoint_storage=storage)
    await storage.respond("r", {"auto::0": True})
    second = await named(cancelled_first).run(run_id="r", checkpoint_storage=storage)
    assert [each.data for each in await storage.requests("r")] == ["cancel the contract?"]
    assert "asked anew as 'auto::1'" in warnings_in(second)
    result = await named(cancelled_first).run(run_id="r", responses={"auto::1": False}, checkpoint_storage=storage)
    assert result.get_outputs() == [[False, True]]


async def test_a_question_that_nobody_asks_any_more_is_closed(storage: Storage) -> None:
    await named(reminded).run("go", run_id="r", checkpoint_storage=storage)
    # Something else has to wake it, for it is its question that it waits for.
    await storage.respond("r", {"auto::0": True})
    await named(counted).run(run_id="r", checkpoint_storage=storage)
    assert [(each.request_id, each.response_type) for each in await storage.requests("r")] == [("auto::1", "int")]
    with pytest.raises((UnknownRequestError, AlreadyAnsweredError)):
        await named(counted).run(run_id="r", responses={"auto::0": False}, checkpoint_storage=storage)
    result = await named(counted).run(run_id="r", responses={"auto::1": 3}, checkpoint_storage=storage)
    assert result.get_outputs() == [[3]]
