"""What steps set in the state is the same in every life, whichever of them was the faster one."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

import pytest

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    Retry,
    RunContext,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    step,
    workflow,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import FunctionalWorkflow, WorkflowRunResult
    from perdure.storage import StoreStorage as Storage


def warnings(result: WorkflowRunResult) -> list[str]:
    """What was warned of."""
    return [event.data for event in result if event.type == "warning"]


async def turns(count: int) -> None:
    """Let others go first."""
    for _ in range(count):
        await asyncio.sleep(0)


@step
async def put(text: str, waits: int, ctx: RunContext) -> str:
    """Sets one key."""
    await turns(waits)
    ctx.set_state("winner", text)
    return text


@step
async def append(text: str, waits: int, ctx: RunContext) -> None:
    """Adds to one key."""
    await turns(waits)
    ctx.set_state("all", [*ctx.get_state("all", []), text])


@pytest.mark.parametrize("waits", [(500, 0), (0, 500)])
async def test_of_steps_side_by_side_the_later_call_has_the_last_word(storage: Storage, waits: tuple[int, int]) -> None:
    seen: list[Any] = []

    @workflow
    async def race(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(put("first", waits[0]), put("second", waits[1]))
        seen.append(ctx.get_state("winner"))
        await ctx.request_info("well?", bool)
        return ctx.get_state("winner")

    first = await race.run("go", run_id="r", checkpoint_storage=storage)
    last = await race.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == ["second"]
    assert seen == ["second", "second"]
    assert [text for text in warnings(first) if "'winner'" in text and "'put'" in text]
    assert warnings(last) == []


@pytest.mark.parametrize("calls", [[("fast", 0), ("slow", 500)], [("slow", 500), ("fast", 0)]])
async def test_what_steps_side_by_side_saw_of_each_other_stays(storage: Storage, calls: list[tuple[str, int]]) -> None:
    seen: list[Any] = []

    @workflow
    async def lists(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(*(append(*call) for call in calls))
        seen.append(ctx.get_state("all"))
        await ctx.request_info("well?", bool)
        await append("last", 0)
        return ctx.get_state("all")

    first = await lists.run("go", run_id="r", checkpoint_storage=storage)
    last = await lists.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [["fast", "slow", "last"]]
    assert seen == [["fast", "slow"]] * 2
    assert warnings(first) == []


async def test_steps_one_after_the_other_set_one_key_without_a_warning(storage: Storage) -> None:
    @workflow
    async def chain(_: str, ctx: RunContext) -> Any:
        for text in ("a", "b", "c"):
            await append(text, 0)
        await put("set", 0)
        ctx.set_state("winner", f"{ctx.get_state('winner')} here")
        await ctx.request_info("well?", bool)
        return ctx.get_state("all"), ctx.get_state("winner")

    first = await chain.run("go", run_id="r", checkpoint_storage=storage)
    last = await chain.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [(["a", "b", "c"], "set here")]
    assert warnings(first) == warnings(last) == []


async def test_what_a_step_set_before_it_failed_is_not_kept() -> None:
    attempts: list[Any] = []

    @step(retry=Retry(attempts=2, backoff=0))
    async def shaky(ctx: RunContext) -> None:
        attempts.append(ctx.get_state("tried"))
        ctx.set_state("tried", 1)
        raise OSError("down")

    @workflow
    async def careful(_: str, ctx: RunContext) -> Any:
        try:
            await shaky()
        except OSError:
            return ctx.get_state("tried", "nothing")

    assert (await careful.run("go")).get_outputs() == ["nothing"]
    assert attempts == [None, None]


async def test_a_step_that_is_done_again_sees_what_those_beside_it_have_set(storage: Storage) -> None:
    failures = [OSError("down")]

    @step
    async def add(text: str, ctx: RunContext) -> None:
        if text == "b" and failures:
            await turns(500)
            raise failures.pop()
        ctx.set_state("all", sorted({*ctx.get_state("all", []), text}))

    @workflow
    async def sums(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(*(add(text) for text in "abc"))
        return ctx.get_state("all")

    with pytest.raises(OSError, match="down"):
        await sums.run("go", run_id="r", checkpoint_storage=storage)
    result = await sums.twin().run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [["a", "b", "c"]]


async def test_a_step_sees_what_it_and_the_steps_in_it_have_set(storage: Storage) -> None:
    @step
    async def inner(ctx: RunContext) -> None:
        ctx.set_state("inner", f"in {ctx.get_state('outer')}")

    @step
    async def outer(ctx: RunContext) -> str:
        ctx.set_state("outer", "out")
        await inner()
        return ctx.get_state("inner")

    @workflow
    async def boxes(_: str, ctx: RunContext) -> Any:
        found = await outer()
        await ctx.request_info("well?", bool)
        return found, ctx.get_state("outer"), ctx.get_state("inner")

    await boxes.run("go", run_id="r", checkpoint_storage=storage)
    last = await boxes.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [("in out", "out", "in out")]


async def test_what_a_step_sets_after_it_has_ended_is_refused() -> None:
    errors: list[Exception] = []
    tasks: list[asyncio.Task[None]] = []
    may_go_on = asyncio.Event()

    async def late(ctx: RunContext) -> None:
        await may_go_on.wait()
        try:
            ctx.set_state("late", 1)
        except RuntimeError as error:
            errors.append(error)

    @step
    async def early(ctx: RunContext) -> None:
        tasks.append(asyncio.create_task(late(ctx)))

    @workflow
    async def hasty(_: str) -> None:
        await early()
        may_go_on.set()
        await tasks[0]

    await hasty.run("go")
    assert "has ended" in str(errors[0])


async def test_a_plain_step_that_was_too_late_sets_nothing_any_more() -> None:
    may_go_on, has_ended, errors = threading.Event(), threading.Event(), list[Exception]()

    @step(timeout=0.01)
    def late(ctx: RunContext) -> None:
        ctx.set_state("late", 1)
        may_go_on.wait()
        try:
            ctx.set_state("late", 2)
        except RuntimeError as error:
            errors.append(error)
        has_ended.set()

    @workflow
    async def patient(_: str, ctx: RunContext) -> Any:
        with pytest.raises(TimeoutError):
            await late()
        before = ctx.get_state("late", "nothing")
        may_go_on.set()
        await asyncio.to_thread(has_ended.wait)
        return before, ctx.get_state("late", "nothing")

    assert (await patient.run("go")).get_outputs() == [("nothing", "nothing")]
    assert "has ended" in str(errors[0])


def plainly(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides that a function is async."""

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return called


class Look:
    """An object that is called, and to be awaited."""

    async def __call__(self, text: str, ctx: RunContext) -> str:
        await turns(1)
        ctx.set_state("object", text)
        return text


@step
@plainly
async def look(text: str, ctx: RunContext) -> str:
    """Not seen to be async."""
    await turns(1)
    ctx.set_state("hidden", text)
    return await asyncio.create_task(nod(text))


@step
async def nod(text: str) -> str:
    """Called inside of another."""
    return text


@step
def begin(text: str, ctx: RunContext) -> Any:
    """Sets something in its thread, and something later."""
    ctx.set_state("early", text)

    async def rest() -> str:
        await turns(1)
        ctx.set_state("later", ctx.get_state("early") * 2)
        return text

    return rest()


async def test_state_is_kept_of_steps_that_can_not_be_seen_to_be_async(storage: Storage) -> None:
    look_object, keys = step(name="object")(Look()), ("hidden", "object", "early", "later")

    @workflow
    async def looks(text: str, ctx: RunContext) -> Any:
        assert [await look(text), await look_object(text), await begin(text)] == [text] * 3
        await ctx.request_info("well?", bool)
        return [ctx.get_state(key) for key in keys]

    await looks.run("owl", run_id="r", checkpoint_storage=storage)
    last = await looks.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert last.get_outputs() == [["owl", "owl", "owl", "owlowl"]]


async def test_a_step_that_asks_forgets_what_it_had_set_before() -> None:
    @step
    async def review(ctx: RunContext) -> str:
        ctx.set_state("reviewed", ctx.get_state("reviewed", 0) + 1)
        return await ctx.request_info("well?", str)

    @workflow
    async def reviewed(_: str, ctx: RunContext) -> Any:
        return await review(), ctx.get_state("reviewed")

    storage = InMemoryCheckpointStorage()
    await reviewed.run("go", run_id="r", checkpoint_storage=storage)
    last = await reviewed.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert last.get_outputs() == [("yes", 1)]


class Shaky:
    """Lets the step of a name fail in the first life, when the function says that it is time for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_time, self.is_over = asyncio.Event(), asyncio.Event()
        self.has_failed = False

    async def call(self, name: str) -> None:
        """A step of this name is called."""
        if name == self.name and not self.has_failed:
            await self.is_time.wait()
            self.has_failed = True
            self.is_over.set()
            raise OSError("down")

    async def wait(self) -> None:
        """Go on in the second life alone."""
        if not self.has_failed:
            self.is_time.set()
            await self.is_over.wait()
            raise OSError("down as well")


async def failed_and_resumed(definition: FunctionalWorkflow, storage: Storage) -> WorkflowRunResult:
    """What comes of a run that fails once, in another instance."""
    with pytest.raises(OSError, match="down"):
        await definition.run("go", run_id="r", checkpoint_storage=storage)
    return await definition.twin().run(run_id="r", checkpoint_storage=storage)


@pytest.mark.parametrize("steps_before", [0, 3, 30])
async def test_a_step_that_is_done_sees_what_was_recorded_however_late_the_function_comes_to_that(
    storage: Storage, steps_before: int
) -> None:
    shaky = Shaky("b")

    @step
    async def prepare(number: int) -> int:
        return number

    @step
    async def add(name: str, ctx: RunContext) -> None:
        await shaky.call(name)
        ctx.set_state("count", ctx.get_state("count", 0) + 1)

    async def branch(name: str, steps: int) -> None:
        for number in range(steps):
            await prepare(number)
        await add(name)
        shaky.is_time.set()

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(branch("a", steps_before), branch("b", 0))
        return ctx.get_state("count")

    result = await failed_and_resumed(counts, storage)
    assert result.get_outputs() == [2]
    assert warnings(result) == []


async def test_who_overwrites_what_is_recorded_and_was_not_looked_at_is_warned(storage: Storage) -> None:
    shaky = Shaky("second")

    @step
    async def choose(name: str, ctx: RunContext) -> None:
        await shaky.call(name)
        ctx.set_state("winner", name)

    async def branch(name: str, waits: int) -> None:
        await turns(waits)
        await choose(name)
        shaky.is_time.set()

    @workflow
    async def race(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(branch("first", 100 if shaky.has_failed else 0), branch("second", 0))
        return ctx.get_state("winner")

    result = await failed_and_resumed(race, storage)
    assert [text for text in warnings(result) if "'winner'" in text and "'choose'" in text]


async def test_between_steps_the_function_sees_what_it_saw_before(storage: Storage) -> None:
    shaky, seen = Shaky("last"), list[Any]()

    @step
    async def add(name: str, ctx: RunContext) -> None:
        await shaky.call(name)
        ctx.set_state("all", [*ctx.get_state("all", []), name])

    @workflow
    async def lists(_: str, ctx: RunContext) -> Any:
        ctx.set_state("all", ["begun"])
        shaky.is_time.set()
        for name in ("one", "two", "last"):
            seen.append(ctx.get_state("all"))
            await add(name)
        return ctx.get_state("all")

    result = await failed_and_resumed(lists, storage)
    assert result.get_outputs() == [["begun", "one", "two", "last"]]
    assert seen == [["begun"], ["begun", "one"], ["begun", "one", "two"]] * 2


@pytest.mark.parametrize("retried", ["executor", "step"])
async def test_a_step_of_a_later_attempt_sees_what_was_recorded_by_an_earlier_one(
    storage: Storage, retried: str
) -> None:
    attempts: list[int] = []

    @step
    async def add(name: str, ctx: RunContext) -> int:
        await turns(500 if name == "b" and len(attempts) == 1 else 0)
        ctx.set_state("count", ctx.get_state("count", 0) + 1)
        if name == "b" and len(attempts) == 1:
            raise ConnectionError("once")
        return ctx.get_state("count")

    async def other() -> None:
        await turns(500 if len(attempts) > 1 else 0)
        await add("a")

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        attempts.append(1)
        await asyncio.gather(other(), add("b"))
        return ctx.get_state("count")

    @step(retry=Retry(2, 0))
    async def counted() -> Any:
        return (await counts.run("go")).get_outputs()[0]

    @workflow
    async def outer(_: str) -> Any:
        return await counted()

    class Counter(Executor):
        @handler
        async def count(self, message: str, ctx: WorkflowContext[Never, int]) -> None:
            (found,) = (await counts.run(message)).get_outputs()
            await ctx.yield_output(found)

    counter = Counter("counter", retry=Retry(2, 0))
    graph = WorkflowBuilder(name="w", start_executor=counter, checkpoint_storage=storage).build()
    ended = await (graph.run("go") if retried == "executor" else outer.run("go", checkpoint_storage=storage))
    assert ended.get_outputs() == [2]
    assert len(attempts) == 2


async def test_a_step_that_others_have_built_on_is_done_again_beneath_them(storage: Storage) -> None:
    shaky = Shaky("a")

    @step
    async def add(name: str, ctx: RunContext) -> None:
        for _ in range(2):
            ctx.set_state("count", ctx.get_state("count", 0) + 1)
            await turns(10)
        await shaky.call(name)

    async def other() -> None:
        await add("b")
        shaky.is_time.set()

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(add("a"), other())
        return ctx.get_state("count")

    result = await failed_and_resumed(counts, storage)
    assert result.get_outputs() == [4]


@pytest.mark.parametrize("fails", ["outer", "beside"])
async def test_what_a_step_inside_of_an_unfinished_one_has_set_counts_once(storage: Storage, fails: str) -> None:
    shaky, inner_is_done = Shaky(fails), asyncio.Event()

    @step
    async def add(name: str, ctx: RunContext) -> None:
        await shaky.call(name)
        ctx.set_state("count", ctx.get_state("count", 0) + 1)

    @step
    async def outer(ctx: RunContext) -> None:
        await turns(100)
        ctx.set_state("count", ctx.get_state("count", 0) + 1)
        await add("inner")
        ctx.set_state("count", ctx.get_state("count", 0) + 1)
        if fails == "outer":
            inner_is_done.set()
            await shaky.call("outer")
        else:
            await shaky.wait()

    async def beside() -> None:
        if fails == "outer":
            await inner_is_done.wait()
        await add("beside")
        shaky.is_time.set()

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(outer(), beside())
        return ctx.get_state("count")

    result = await failed_and_resumed(counts, storage)
    assert result.get_outputs() == [4]


async def test_what_a_failed_step_has_had_set_inside_of_it_is_seen_by_no_life(storage: Storage) -> None:
    shaky = Shaky("beside")

    @step
    async def add(name: str, ctx: RunContext) -> None:
        await shaky.call(name)
        ctx.set_state("count", ctx.get_state("count", 0) + 1)

    @step
    async def outer() -> None:
        await add("inner")
        raise ValueError("not like this")

    async def caught() -> None:
        with pytest.raises(ValueError, match="not like this"):
            await outer()
        await add("after")
        shaky.is_time.set()

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(caught(), add("beside"))
        return ctx.get_state("count")

    result = await failed_and_resumed(counts, storage)
    assert result.get_outputs() == [2]


async def test_what_a_function_inside_has_set_is_its_own_in_every_life(storage: Storage) -> None:
    shaky = Shaky("beside")

    @step
    async def add(name: str, ctx: RunContext) -> None:
        await shaky.call(name)
        ctx.set_state("count", ctx.get_state("count", 0) + 1)

    @workflow
    async def inner(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(add("here"), add("there"))
        await shaky.wait()
        return ctx.get_state("count")

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        await asyncio.gather(inner.run("go"), add("beside"))
        return ctx.get_state("count")

    result = await failed_and_resumed(counts, storage)
    assert result.get_outputs() == [1]


async def test_a_type_that_only_a_step_names_does_not_keep_others_from_the_state(storage: Storage) -> None:
    shaky = Shaky("b")

    @dataclass
    class Receipt:
        number: int

    @step
    async def add(name: str, ctx: RunContext) -> Receipt:
        await shaky.call(name)
        ctx.set_state("count", ctx.get_state("count", 0) + 1)
        return Receipt(ctx.get_state("count"))

    async def branch(waits: int) -> Receipt:
        await turns(waits)
        receipt = await add("a")
        shaky.is_time.set()
        return receipt

    @workflow
    async def counts(_: str, ctx: RunContext) -> Any:
        receipts = await asyncio.gather(branch(500 if shaky.has_failed else 0), add("b"))
        return [each.number for each in receipts], ctx.get_state("count")

    result = await failed_and_resumed(counts, storage)
    assert result.get_outputs() == [([1, 2], 2)]
