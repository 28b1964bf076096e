"""A step is known by its name and key, or by its name, its arguments and the ordinal among equal calls."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, MendableError, lone

from perdure import Executor, InMemoryCheckpointStorage, StepMismatchError, WorkflowBuilder, handler
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


async def fetch(name: str) -> str:
    """Do recorded work with an argument."""
    done.append(name)
    return f"found {name}"


@dataclass
class Shop:
    """An object that can be encoded."""

    name: str

    def sell(self) -> str:
        done.append(self.name)
        return f"sold by {self.name}"


class Socket:
    """An object that can't be encoded."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    def send(self) -> str:
        return "sent"


async def gathered(calls: list[Callable[[], Any]], *, is_reversed: bool) -> list[Any]:
    """Make each call in a task of its own, and let the last one come first if it is reversed."""
    gates = [asyncio.Event() for _ in calls]
    order = list(range(len(calls)))[:: -1 if is_reversed else 1]
    gates[order[0]].set()

    async def one(number: int) -> Any:
        await gates[number].wait()
        result = calls[number]()
        for follower in order[order.index(number) + 1 :][:1]:
            gates[follower].set()
        return await result

    return list(await asyncio.gather(*map(one, range(len(calls)))))


@pytest.mark.parametrize("has_storage", [True, False])
async def test_a_closure_needs_a_key_in_a_subtask_even_if_it_is_the_only_one(*, has_storage: bool) -> None:
    async def do(_: str, ctx: Context) -> None:
        name = "a"

        def greet(text: str) -> str:
            return f"{text} {name}"

        with pytest.raises(StepMismatchError, match="lambda or closure that is called in a subtask"):
            await asyncio.gather(asyncio.create_task(_in_task(lambda: ctx.step("greet", lambda: f"hello {name}"))))
        with pytest.raises(StepMismatchError, match="give it its own key"):
            await _as_task(lambda: ctx.step("greet", functools.partial(greet, "x")))
        await ctx.yield_output(await _as_task(lambda: ctx.step("greet", lambda: f"hello {name}", key=name)))

    result = await lone(do, storage=InMemoryCheckpointStorage() if has_storage else None).run("go")
    assert result.get_outputs() == ["hello a"]


async def _in_task(call: Callable[[], Any]) -> Any:
    return await call()


def _as_task(call: Callable[[], Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(_in_task(call))


async def test_a_method_of_an_object_that_can_not_be_encoded_needs_a_key_in_a_subtask() -> None:
    async def do(_: str, ctx: Context) -> None:
        socket = Socket()
        with pytest.raises(StepMismatchError, match="give it its own key"):
            await _as_task(lambda: ctx.step("send", socket.send))
        await ctx.yield_output(await _as_task(lambda: ctx.step("send", socket.send, key="it")))

    assert (await lone(do, storage=InMemoryCheckpointStorage()).run("go")).get_outputs() == ["sent"]


async def test_calls_in_subtasks_find_their_records_in_any_order() -> None:
    entries: list[int] = []

    async def do(_: str, ctx: Context) -> None:
        entries.append(1)
        shops = [Shop("corner"), Shop("market")]
        calls: list[Callable[[], Any]] = [
            lambda: ctx.step("fetch", fetch, "a"),
            lambda: ctx.step("fetch", fetch, "b"),
            lambda: ctx.step("fetch", functools.partial(fetch, "c")),
            lambda: ctx.step("fetch", functools.partial(fetch, "d")),
            lambda: ctx.step("sell", shops[0].sell),
            lambda: ctx.step("sell", shops[1].sell),
        ]
        found = await gathered(calls, is_reversed=len(entries) > 1)
        if len(entries) == 1:
            raise MendableError
        await ctx.yield_output(found)

    storage = InMemoryCheckpointStorage()
    with pytest.raises(MendableError):
        await lone(do, storage=storage).run("go", run_id="r")
    result = await lone(do, storage=storage).run(run_id="r")
    assert result.get_outputs() == [["found a", "found b", "found c", "found d", "sold by corner", "sold by market"]]
    assert sorted(done) == ["a", "b", "c", "corner", "d", "market"]


async def test_a_method_of_the_executor_itself_needs_no_key_in_a_subtask() -> None:
    class Fetcher(Executor):
        @handler
        async def fetch_all(self, message: str, ctx: Context) -> None:
            async def one(name: str) -> str:
                return await ctx.step("fetch", self.fetch, name)

            await ctx.yield_output(await asyncio.gather(*map(one, message)))

        def fetch(self, name: str) -> str:
            return name.upper()

    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=Fetcher("fetcher"), checkpoint_storage=storage).build()
    assert (await workflow.run("ab")).get_outputs() == [["A", "B"]]


async def test_other_arguments_in_sequential_code_are_refused() -> None:
    names = iter(["a", "b", "a"])

    async def do(_: str, ctx: Context) -> None:
        name = next(names)
        await ctx.step("fetch", fetch, name)
        if name == "a" and len(done) == 1:
            done.append("failed")
            raise MendableError

    storage = InMemoryCheckpointStorage()
    with pytest.raises(MendableError):
        await lone(do, storage=storage).run("go", run_id="r")
    with pytest.raises(StepMismatchError, match="recorded with other arguments"):
        await lone(do, storage=storage).run(run_id="r")
    await lone(do, storage=storage).run(run_id="r")
    assert done == ["a", "failed"]


async def test_other_arguments_in_parallel_code_run_and_the_skipped_records_are_named() -> None:
    names = iter([("a", "b"), ("b", "c")])

    async def do(_: str, ctx: Context) -> None:
        chosen = next(names)
        await asyncio.gather(*(ctx.step("fetch", fetch, name) for name in chosen))
        if chosen[0] == "a":
            raise MendableError

    storage = InMemoryCheckpointStorage()
    with pytest.raises(MendableError):
        await lone(do, storage=storage).run("go", run_id="r")
    result = await lone(do, storage=storage).run(run_id="r")
    assert done == ["a", "b", "c"]
    (warning,) = [event.data for event in result if event.type == "warning"]
    assert "without calling steps that are recorded for it: fetch" in warning


async def test_an_error_that_a_handler_has_caught_is_raised_again_and_its_step_is_not_repeated() -> None:
    clock, storage = ManualClock(skips=True), InMemoryCheckpointStorage()
    seen: list[str] = []

    def fail() -> None:
        done.append("failed")
        raise OSError("down")

    async def do(_: str, ctx: Context) -> None:
        try:
            await ctx.step("fail", fail)
        except OSError as error:
            seen.append(str(error))
        found = await ctx.step("fetch", fetch, "instead")
        await ctx.sleep(timedelta(hours=1))
        await ctx.yield_output(found)

    result = await lone(do, storage=storage, clock=clock).run("go")
    assert result.get_outputs() == ["found instead"]
    assert done == ["failed", "instead"]
    assert seen == ["down", "down"]


async def test_two_calls_with_equal_arguments_in_sequence_are_two_steps() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output([await ctx.step("fetch", fetch, "a"), await ctx.step("fetch", fetch, "a")])

    await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert done == ["a", "a"]
