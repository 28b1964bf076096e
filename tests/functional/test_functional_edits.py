"""A run continues in a function that was changed: steps are found by their arguments, and others are refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import RunContext, StepMismatchError, step, workflow

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
    [(one_less, ["paid c", "yes"], []), (with_keys, ["paid a", "paid b", "paid c", "yes"], ["a"])],
)
async def test_steps_are_found_where_they_have_moved_to(
    storage: Storage, after: Callable[..., Awaitable[Any]], outputs: list[str], also_made: list[str]
) -> None:
    await named(two).run("go", run_id="r", checkpoint_storage=storage)
    result = await named(after).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [outputs]
    assert made == ["b", "c", *also_made]


async def test_a_call_that_is_put_before_recorded_ones_of_its_name_is_refused(storage: Storage) -> None:
    await named(two).run("go", run_id="r", checkpoint_storage=storage)
    with pytest.raises(StepMismatchError, match="give each call its own key"):
        await named(one_more).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert made == ["b", "c"]


async def test_a_call_that_was_added_is_not_repeated_either(storage: Storage) -> None:
    async def asks_twice(_: str, ctx: RunContext) -> list[str]:
        found = [await plain("b"), await plain("c"), await plain("d")]
        return [*found, await ctx.request_info("well?", str), await ctx.request_info("and now?", str)]

    await named(two).run("go", run_id="r", checkpoint_storage=storage)
    await named(asks_twice).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    result = await named(asks_twice).run(run_id="r", responses={"auto::1": "no"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid b", "paid c", "paid d", "yes", "no"]]
    assert made == ["b", "c", "d"]


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


async def test_a_step_that_was_taken_out_is_told_at_the_end(storage: Storage) -> None:
    await named(two).run("go", run_id="r", checkpoint_storage=storage)
    result = await named(one_less).run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert "without calling steps that are recorded for it: charge" in warnings_in(result)


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


@pytest.mark.parametrize("after", [cancelled_first, counted])
async def test_an_answer_is_not_used_for_another_question(
    storage: Storage, after: Callable[..., Awaitable[Any]]
) -> None:
    await named(reminded).run("go", run_id="r", checkpoint_storage=storage)
    await storage.respond("r", {"auto::0": True})
    with pytest.raises(StepMismatchError, match="was recorded with another question"):
        await named(after).run(run_id="r", checkpoint_storage=storage)
    result = await named(reminded).run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [[True]]
