"""What a function has caught it catches again, what ends the run is tried again; what it cleans up, it does at last."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure import InMemoryCheckpointStorage, Retry, RunContext, step, workflow
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from perdure.storage import StoreStorage as Storage


async def newest(storage: Any, name: str) -> str:
    """The newest checkpoint."""
    found = await storage.get_latest(workflow_name=name)
    assert found is not None
    return found.checkpoint_id


async def test_a_failure_that_was_caught_is_not_tried_again_with_each_answer(storage: Storage) -> None:
    tried: list[str] = []

    @step(retry=Retry(attempts=3, backoff=0))
    async def pay() -> None:
        tried.append("pay")
        raise OSError(13, "declined")

    @workflow
    async def order(_: str, ctx: RunContext) -> list[Any]:
        said = None
        try:
            await pay()
        except PermissionError as error:
            said = error.strerror
        return [said, *[await ctx.request_info(f"question {number}", str) for number in range(2)]]

    await order.run("go", run_id="r", checkpoint_storage=storage)
    assert len(tried) == 3
    await order.twin().run(run_id="r", responses={"auto::0": "a"}, checkpoint_storage=storage)
    result = await order.twin().run(run_id="r", responses={"auto::1": "b"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["declined", "a", "b"]]
    assert len(tried) == 3


async def test_without_a_storage_an_error_of_any_type_is_caught_again() -> None:
    class DeclinedError(Exception):
        pass

    tried: list[str] = []

    @step
    async def pay() -> None:
        tried.append("pay")
        raise DeclinedError

    @workflow
    async def order(_: str, ctx: RunContext) -> str:
        try:
            await pay()
        except DeclinedError:
            return await ctx.request_info("how else?", str)
        return "paid"

    await order.run("go")
    assert (await order.run(responses={"auto::0": "cash"})).get_outputs() == ["cash"]
    assert tried == ["pay"]


async def test_an_error_that_can_not_be_kept_is_tried_again_by_another_life(storage: Storage) -> None:
    class DeclinedError(Exception):
        pass

    tried: list[str] = []

    @step
    async def pay() -> None:
        tried.append("pay")
        raise DeclinedError

    @workflow
    async def order(_: str, ctx: RunContext) -> str:
        try:
            await pay()
        except DeclinedError:
            return await ctx.request_info("how else?", str)
        return "paid"

    await order.run("go", run_id="r", checkpoint_storage=storage)
    result = await order.twin().run(run_id="r", responses={"auto::0": "cash"}, checkpoint_storage=storage)
    assert result.get_outputs() == ["cash"]
    assert tried == ["pay", "pay"]


async def test_what_was_done_after_a_failure_rests_on_it_though_nothing_was_waited_for(storage: Storage) -> None:
    down, made = [True], list[str]()

    @step
    async def fetch() -> str:
        made.append("fetch")
        if down[0]:
            raise ConnectionError("down")
        return "fresh"

    @step
    async def publish(text: str) -> str:
        made.append(text)
        return f"published {text}"

    @workflow
    async def paper(_: str) -> str:
        try:
            text = await fetch()
        except ConnectionError:
            text = "stale"
        published = await publish(text)
        if down[0]:
            raise ValueError("the press has stopped")
        return published

    with pytest.raises(ValueError, match="press"):
        await paper.run("go", checkpoint_storage=storage)
    down[0] = False
    result = await paper.twin().run(checkpoint_id=await newest(storage, "paper"), checkpoint_storage=storage)
    assert result.get_outputs() == ["published stale"]
    assert made == ["fetch", "stale"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_failure_that_ends_the_run_is_tried_again(storage: Storage, *, waits: bool) -> None:
    down, made = [True], list[str]()

    @step
    async def pay() -> str:
        made.append("pay")
        if down[0]:
            raise ConnectionError("down")
        return "paid"

    @step
    async def report() -> None:
        made.append("report")

    @workflow
    async def order(_: str, ctx: RunContext) -> str:
        try:
            return await pay()
        except ConnectionError as error:
            await report()
            if waits:
                await ctx.request_info("may it fail?", bool)
            raise RuntimeError("no payment") from error

    given = None
    if waits:
        await order.run("go", run_id="r", checkpoint_storage=storage)
        given = {"auto::0": True}
    with pytest.raises(RuntimeError, match="no payment"):
        await order.twin().run(None if waits else "go", responses=given, run_id="r", checkpoint_storage=storage)
    assert made == ["pay", "report"]
    down[0] = False
    assert (await order.twin().run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["paid"]
    assert made == ["pay", "report", "pay"]


async def _gathered(work: Coroutine[Any, Any, str]) -> str:
    (found,) = await asyncio.gather(work, return_exceptions=True)
    return "stale" if isinstance(found, ConnectionError) else str(found)


async def _in_a_group(work: Coroutine[Any, Any, str]) -> str:
    text = "stale"
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
        text = task.result()
    except* ConnectionError:
        pass
    return text


async def _awaited_in_time(work: Coroutine[Any, Any, str]) -> str:
    try:
        return await asyncio.wait_for(work, 600)
    except ConnectionError:
        return "stale"


@pytest.mark.parametrize("caught", [_gathered, _in_a_group, _awaited_in_time])
async def test_an_error_that_came_through_a_task_is_caught_again(
    storage: Storage, caught: Callable[[Coroutine[Any, Any, str]], Awaitable[str]]
) -> None:
    down, made = [True], list[str]()

    @step
    async def fetch() -> str:
        made.append("fetch")
        if down[0]:
            raise ConnectionError("down")
        return "fresh"

    @step
    async def publish(text: str) -> str:
        made.append(text)
        return f"published {text}"

    async def helped() -> str:
        return await fetch()

    @workflow
    async def paper(_: str) -> str:
        published = await publish(await caught(helped()))
        if down[0]:
            raise ValueError("the press has stopped")
        return published

    with pytest.raises(ValueError, match="press"):
        await paper.run("go", checkpoint_storage=storage)
    down[0] = False
    result = await paper.twin().run(checkpoint_id=await newest(storage, "paper"), checkpoint_storage=storage)
    assert result.get_outputs() == ["published stale"]
    assert made == ["fetch", "stale"]


async def test_an_error_that_another_task_has_caught_is_caught_again(storage: Storage) -> None:
    down, made = [True], list[str]()

    @step
    async def fetch() -> str:
        made.append("fetch")
        if down[0]:
            raise ConnectionError("down")
        return "fresh"

    @step
    async def publish(text: str) -> str:
        made.append(text)
        return f"published {text}"

    @workflow
    async def paper(_: str) -> list[str]:
        async def helped() -> str:
            return await fetch()

        shared = asyncio.create_task(helped())

        async def branch(name: str) -> str:
            try:
                text = await shared
            except ConnectionError:
                text = "stale"
            return await publish(f"{text} {name}")

        published = list(await asyncio.gather(branch("a"), branch("b")))
        if down[0]:
            raise ValueError("the press has stopped")
        return published

    with pytest.raises(ValueError, match="press"):
        await paper.run("go", checkpoint_storage=storage)
    down[0] = False
    result = await paper.twin().run(checkpoint_id=await newest(storage, "paper"), checkpoint_storage=storage)
    assert result.get_outputs() == [["published stale a", "published stale b"]]
    assert made == ["fetch", "stale a", "stale b"]


async def test_an_error_that_names_a_file_is_caught_again(storage: Storage, tmp_path: Path) -> None:
    missing, made = tmp_path / "missing", list[str]()

    @step
    def read() -> str:
        made.append("read")
        return missing.read_text("utf-8")

    @step
    async def publish(text: str) -> str:
        made.append(text)
        return f"published {text}"

    @workflow
    async def paper(_: str) -> str:
        try:
            text = await read()
        except FileNotFoundError as error:
            text = f"nothing of {error.filename}"
        published = await publish(text)
        if not missing.exists():
            raise ValueError("the press has stopped")
        return published

    with pytest.raises(ValueError, match="press"):
        await paper.run("go", checkpoint_storage=storage)
    missing.write_text("something", "utf-8")
    result = await paper.twin().run(checkpoint_id=await newest(storage, "paper"), checkpoint_storage=storage)
    assert result.get_outputs() == [f"published nothing of {missing}"]
    assert made == ["read", f"nothing of {missing}"]


async def test_an_error_that_was_gone_past_is_not_what_ended_the_run(storage: Storage) -> None:
    """What is raised while it is handled has it as its context, and comes of something else."""
    down, made = [True], list[str]()

    @step
    async def fetch() -> str:
        made.append("fetch")
        if down[0]:
            raise ConnectionError("down")
        return "fresh"

    @step
    async def look_up() -> str:
        made.append("look up")
        return "stale"

    @step
    async def publish(text: str) -> str:
        made.append(text)
        if down[0]:
            raise ValueError("the press has stopped")
        return f"published {text}"

    @workflow
    async def paper(_: str) -> str:
        try:
            text = await fetch()
        except ConnectionError:
            return await publish(await look_up())
        return await publish(text)

    with pytest.raises(ValueError, match="press"):
        await paper.run("go", checkpoint_storage=storage)
    down[0] = False
    result = await paper.twin().run(checkpoint_id=await newest(storage, "paper"), checkpoint_storage=storage)
    assert result.get_outputs() == ["published stale"]
    assert made == ["fetch", "look up", "stale", "stale"]


async def test_an_error_that_is_told_in_other_words_is_tried_again(storage: Storage) -> None:
    down, made = [True], list[str]()

    @step
    async def fetch() -> str:
        made.append("fetch")
        if down[0]:
            raise ConnectionError("down")
        return "fresh"

    @step
    async def prepare() -> None:
        made.append("prepare")

    @workflow
    async def paper(_: str) -> str:
        async def fetched() -> str:
            try:
                return await fetch()
            except ConnectionError:
                await asyncio.sleep(0)
                raise ValueError("no news today")  # noqa: B904 - as people do it

        async def prepared() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            await prepare()

        return (await asyncio.gather(fetched(), prepared()))[0]

    with pytest.raises(ValueError, match="no news"):
        await paper.run("go", checkpoint_storage=storage)
    down[0] = False
    result = await paper.twin().run(checkpoint_id=await newest(storage, "paper"), checkpoint_storage=storage)
    assert result.get_outputs() == ["fresh"]
    assert made.count("fetch") == 2


async def test_a_call_that_raised_before_another_of_its_key_gave_a_result_raises_again(storage: Storage) -> None:
    tried: list[str] = []

    @step(key=lambda: "the one")
    async def fetch() -> str:
        tried.append("fetch")
        if len(tried) == 1:
            raise ConnectionError("down")
        return "fresh"

    @step
    async def note(text: str) -> str:
        tried.append(text)
        return text

    @workflow
    async def paper(_: str, ctx: RunContext) -> list[str]:
        found: list[str] = []
        while not found:
            try:
                found.append(await fetch())
            except ConnectionError:
                await note("once more")
        return [*found, await ctx.request_info("go on?", str)]

    await paper.run("go", run_id="r", checkpoint_storage=storage)
    result = await paper.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["fresh", "yes"]]
    assert tried == ["fetch", "once more", "fetch"]
    assert not [event for event in result if event.type == "warning"]


async def test_an_error_that_nobody_had_looked_at_yet_is_tried_again_when_it_ends_the_run(storage: Storage) -> None:
    down, made = [True], list[str]()

    @step
    async def fetch() -> str:
        made.append("fetch")
        if down[0]:
            raise ConnectionError("down")
        return "fresh"

    @step
    async def prepare() -> str:
        made.append("prepare")
        return "prepared"

    async def helped() -> str:
        return await fetch()

    @workflow
    async def paper(_: str) -> str:
        task = asyncio.create_task(helped())
        await asyncio.wait([task])
        return f"{await prepare()} {await task}"

    with pytest.raises(ConnectionError, match="down"):
        await paper.run("go", checkpoint_storage=storage)
    down[0] = False
    result = await paper.twin().run(checkpoint_id=await newest(storage, "paper"), checkpoint_storage=storage)
    assert result.get_outputs() == ["prepared fresh"]
    assert made == ["fetch", "prepare", "fetch"]


async def test_a_loop_that_tries_one_key_until_it_works_goes_on_trying() -> None:
    clock, storage, made = ManualClock(), InMemoryCheckpointStorage(), list[int]()

    @step(key=str)
    async def pay(name: str) -> str:
        made.append(len(made))
        if len(made) < 3:
            raise ConnectionError("not yet")
        return f"{name} has paid"

    @workflow(clock=clock)
    async def order(name: str, ctx: RunContext) -> str:
        while True:
            try:
                return await pay(name)
            except ConnectionError:
                await ctx.sleep(timedelta(hours=1))

    await order.run("Ada", run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    clock.advance(timedelta(hours=2))
    await order.twin().run(run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert made == [0, 1]
    clock.advance(timedelta(hours=2))
    result = await order.twin().run(run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert result.get_outputs() == ["Ada has paid"]
    assert made == [0, 1, 2]


async def test_a_step_that_failed_inside_of_another_is_tried_again_with_it(storage: Storage) -> None:
    made: list[str] = []

    @step
    async def part(name: str) -> str:
        made.append(name)
        if len(made) == 1:
            raise ConnectionError("not yet")
        return name

    @step(retry=Retry(attempts=2, backoff=0))
    async def whole() -> str:
        try:
            return await part("a")
        except ConnectionError:
            await part("b")
            raise

    @workflow
    async def order(_: str) -> str:
        return await whole()

    assert (await order.run("go", checkpoint_storage=storage)).get_outputs() == ["a"]
    assert made == ["a", "b", "a"]


async def test_what_stands_in_finally_is_done_when_the_function_ends(storage: Storage) -> None:
    made: list[str] = []

    @step
    async def mark(name: str) -> None:
        made.append(name)

    @workflow
    async def change(_: str, ctx: RunContext) -> None:
        await mark("take")
        try:
            await ctx.request_info("may I?", bool)
            await mark("change")
        finally:
            await mark("release")

    await change.run("go", run_id="r", checkpoint_storage=storage)
    assert made == ["take"]
    await change.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert made == ["take", "change", "release"]


async def test_a_function_that_is_left_neither_asks_nor_sleeps_on_its_way_out(storage: Storage) -> None:
    @workflow
    async def talk(_: str, ctx: RunContext) -> list[str]:
        said: list[str] = []
        try:
            said.append(await ctx.request_info("first?", str))
        finally:
            await ctx.sleep(timedelta(0))
            said.append(await ctx.request_info("last?", str))
        return said

    async with asyncio.timeout(20):
        first = await talk.run("go", run_id="r", checkpoint_storage=storage)
        assert [event.data for event in first.get_request_info_events()] == ["first?"]
        await talk.twin().run(run_id="r", responses={"auto::0": "a"}, checkpoint_storage=storage)
        result = await talk.twin().run(run_id="r", responses={"auto::1": "b"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["a", "b"]]
