"""Failures in the store: what was raised, in which executor, sub-workflow and step, and in which attempt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.storages.kinds import KINDS, opened

from perdure import (
    Failure,
    Host,
    InMemoryCheckpointStorage,
    Retry,
    RunFailedError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    executor,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.storage import StoreStorage

Context = WorkflowContext[str, str]


def look_up(sku: str) -> str:
    return {"sku-1": "a lamp"}[sku]


@executor(id="clerk")
async def clerk(sku: str, ctx: Context) -> None:
    secret = "a local value"
    await ctx.send_message(look_up(sku) + secret)


@executor(id="stepper")
async def stepper(sku: str, ctx: Context) -> None:
    await ctx.step("look up", look_up, sku)


@executor(id="persistent", retry=Retry(3, backoff=0))
async def persistent(sku: str, ctx: Context) -> None:
    del ctx
    look_up(sku)


@executor(id="sender")
async def sender(sku: str, ctx: Context) -> None:
    await ctx.send_message(sku)


def alone(first: Any) -> Workflow:
    return WorkflowBuilder(name="orders", start_executor=first).build()


def conditional() -> Workflow:
    return (
        WorkflowBuilder(name="orders", start_executor=sender)
        .add_edge(sender, clerk, condition=lambda sku: look_up(sku) == "a lamp")
        .build()
    )


def nested() -> Workflow:
    inner = WorkflowExecutor(WorkflowBuilder(name="inner", start_executor=stepper).build(), id="middle")
    return alone(WorkflowExecutor(WorkflowBuilder(name="outer", start_executor=inner).build(), id="outer"))


async def failure_of(make: Callable[[], Workflow], storage: StoreStorage) -> Failure:
    with pytest.raises(KeyError, match="sku-17"):
        await make().run("sku-17", run_id="r", checkpoint_storage=storage)
    failure = (await storage.run("r")).failure
    assert failure is not None
    assert (failure.error_type, failure.message) == ("KeyError", "'sku-17'")
    return failure


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_run_has_its_traceback(kind: str, tmp_path: Path) -> None:
    failure = await failure_of(lambda: alone(clerk), opened(kind, tmp_path))
    assert (failure.executor_id, failure.path, failure.step, failure.attempt) == ("clerk", (), None, 1)
    assert failure.traceback is not None
    assert 'return {"sku-1": "a lamp"}[sku]' in failure.traceback
    assert failure.traceback.endswith("KeyError: 'sku-17'\n")


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: alone(stepper), ("stepper", (), "look up", 1)),
        (lambda: alone(persistent), ("persistent", (), None, 3)),
        (conditional, ("sender", (), None, 1)),
        (nested, ("stepper", ("outer", "middle"), "look up", 1)),
    ],
)
async def test_a_failure_names_its_place(
    make: Callable[[], Workflow], place: tuple[str, tuple[str, ...], str | None, int]
) -> None:
    failure = await failure_of(make, InMemoryCheckpointStorage())
    assert (failure.executor_id, failure.path, failure.step, failure.attempt) == place


@pytest.mark.parametrize("kind", KINDS)
async def test_followers_see_each_failure_once_with_its_number(kind: str, tmp_path: Path) -> None:
    storage = opened(kind, tmp_path)
    following = asyncio.create_task(_failed_events(storage, 2))
    failures = [await failure_of(lambda: alone(stepper), storage)]
    with pytest.raises(KeyError):
        await alone(stepper).run(run_id="r", checkpoint_storage=storage)
    info = await storage.run("r")
    assert info.failure is not None
    events = await following
    assert [event.data for event in events] == [*failures, info.failure]
    assert [(event.at, event.superstep) for event in events] == [(each.data.at, 1) for each in events]
    assert [event.seq for event in events] == [info.events - 1, info.events]
    assert (await storage.run("r")).checkpoint_id == "r@0"
    details = events[0].details
    assert details is not None
    assert (details.error_type, details.executor_id) == ("KeyError", "stepper")


async def _failed_events(storage: StoreStorage, number: int) -> list[WorkflowEvent[Any]]:
    found: list[WorkflowEvent[Any]] = []
    async for event in storage.events("r", follow=True):
        found += [event] if event.type == "failed" else []
        if len(found) == number:
            break
    return found


async def test_events_have_the_time_of_their_commit_and_their_superstep() -> None:
    clock = ManualClock()
    storage = InMemoryCheckpointStorage(clock=clock)
    workflow = WorkflowBuilder(name="orders", start_executor=sender).add_edge(sender, executor(id="clerk")(_mended))
    await workflow.build().run("sku-1", run_id="r", checkpoint_storage=storage)
    events = [event async for event in storage.events("r")]
    assert {event.at for event in events} == {clock.now().isoformat()}
    supersteps = [-1 if event.superstep is None else event.superstep for event in events]
    assert supersteps == sorted(supersteps)
    assert set(supersteps) == {0, 1, 2}
    assert supersteps[:2] == [0, 0]
    assert [event.superstep for event in events if event.executor_id == "clerk"] == [2, 2, 2]


async def test_a_failure_ends_when_the_run_goes_on() -> None:
    storage = InMemoryCheckpointStorage()
    await failure_of(lambda: alone(clerk), storage)
    workflow = WorkflowBuilder(name="orders", start_executor=executor(id="clerk")(_mended)).build()
    await workflow.run(run_id="r", checkpoint_storage=storage)
    assert (await storage.run("r")).failure is None


async def _mended(sku: str, ctx: Context) -> None:
    await ctx.yield_output(sku)


async def test_the_error_of_a_hosted_run_carries_the_failure() -> None:
    host = Host(InMemoryCheckpointStorage())
    host.register(lambda: alone(clerk))
    async with host:
        run = await host.start("orders", "sku-17")
        with pytest.raises(RunFailedError) as raised:
            await run.result()
    assert raised.value.failure is not None
    assert raised.value.failure.executor_id == "clerk"
    assert (await run.info()).failure == raised.value.failure


async def test_a_long_traceback_is_cut_at_its_beginning() -> None:
    @executor(id="deep")
    async def deep(sku: str, ctx: Context) -> None:
        del ctx

        def call(depth: int) -> None:
            if depth:
                exec(f"call({depth - 1})  # {'x' * 100}", {"call": call})
            raise KeyError(sku)

        call(100)

    failure = await failure_of(lambda: alone(deep), InMemoryCheckpointStorage())
    assert failure.traceback is not None
    assert len(failure.traceback) < 17_000
    assert failure.traceback.endswith("KeyError: 'sku-17'\n")


async def test_an_exception_object_that_is_raised_again_has_its_last_place() -> None:
    error = KeyError("sku-17")

    @executor(id="first", retry=Retry(2, backoff=0))
    async def first(sku: str, ctx: Context) -> None:
        del sku, ctx
        raise error

    @executor(id="second")
    async def second(sku: str, ctx: Context) -> None:
        del sku, ctx
        raise error

    for node, attempt in ((first, 2), (second, 1)):
        failure = await failure_of(lambda node=node: alone(node), InMemoryCheckpointStorage())
        assert (failure.executor_id, failure.path, failure.attempt) == (node.id, (), attempt)
