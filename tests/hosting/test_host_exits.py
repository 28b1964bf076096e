"""Users' code that ends the process: on a host it fails its own run, elsewhere it does what it always does."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosting.flows import pass_on, row, shout

from perdure import (
    FunctionExecutor,
    Host,
    InMemoryCheckpointStorage,
    RunFailedError,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.workflow.nodes import Context

    from perdure.records import RunRecord


class OddError(BaseException):
    """What no `except Exception` catches."""


def leave(*_: object) -> None:
    sys.exit(3)


async def leave_later(*_: object) -> None:
    await asyncio.sleep(0)
    sys.exit(3)


async def leave_in_a_step(_: Any, ctx: Context) -> None:
    await ctx.step("leave", leave_later)


async def leave_in_the_thread_of_a_step(_: Any, ctx: Context) -> None:
    await ctx.step("leave", leave)


async def raise_something_odd(*_: object) -> None:
    raise OddError("boo")


def in_a_thread() -> Workflow:
    def function(message: str, ctx: WorkflowContext[str, str]) -> None:
        leave(message, ctx)

    return WorkflowBuilder(name="w", start_executor=FunctionExecutor(function, "f")).build()


def in_a_condition() -> Workflow:
    def condition(_: str) -> bool:
        sys.exit(3)

    async def send(message: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(message)

    async def end(message: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(message)

    first, last = FunctionExecutor(send, "first"), FunctionExecutor(end, "last")
    return WorkflowBuilder(name="w", start_executor=first).add_edge(first, last, condition=condition).build()


def in_a_sub_workflow() -> Workflow:
    return WorkflowBuilder(name="w", start_executor=WorkflowExecutor(in_a_thread(), "sub")).build()


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        pytest.param(row("w", leave_later), "SystemExit", id="handler"),
        pytest.param(row("w", leave_in_a_step), "SystemExit", id="step"),
        pytest.param(row("w", leave_in_the_thread_of_a_step), "SystemExit", id="thread of a step"),
        pytest.param(row("w", raise_something_odd), "OddError.*boo", id="another base exception"),
        pytest.param(in_a_thread, "SystemExit", id="function in a thread"),
        pytest.param(in_a_condition, "SystemExit", id="condition"),
        pytest.param(in_a_sub_workflow, "SystemExit", id="sub-workflow"),
    ],
)
async def test_a_run_that_exits_the_process_fails_and_the_host_continues(
    factory: Callable[[], Workflow], reason: str
) -> None:
    host = Host(InMemoryCheckpointStorage())
    host.register(factory)
    host.register(row("other", pass_on, shout))
    async with host:
        run = await host.start("w", "hi")
        with pytest.raises(RunFailedError, match=reason):
            await run.result()
        assert (await (await host.start("other", "hi")).result()).get_outputs() == ["hi!"]
        assert host.is_serving
    info = await run.info()
    assert (info.status, info.owner) == ("failed", None)


async def test_a_factory_that_exits_the_process_is_retried() -> None:
    calls: list[str] = []

    def build() -> Workflow:
        calls.append("built")
        if len(calls) == 4:
            sys.exit(3)
        return row("w", shout)()

    host = Host(InMemoryCheckpointStorage())
    host.register(build)
    run = await host.start("w", "hi")
    async with host:
        assert (await run.result()).get_outputs() == ["hi!"]
    assert len(calls) == 5


async def interrupt(*_: object) -> None:
    # As the interpreter does it on a second Ctrl-C.
    await asyncio.sleep(0)
    raise KeyboardInterrupt


def standing(path: Path) -> RunRecord:
    async def look() -> RunRecord:
        async with SqliteCheckpointStorage(path) as storage:
            found = await storage.store.run("r")
            assert found is not None
            return found

    return asyncio.run(look())


def test_an_interrupt_ends_a_host_and_does_not_harm_the_run(tmp_path: Path) -> None:
    async def serve() -> None:
        host = Host(SqliteCheckpointStorage(tmp_path / "runs.db"))
        host.register(row("w", interrupt))
        async with host:
            await (await host.start("w", "hi", run_id="r")).result()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(serve())
    assert standing(tmp_path / "runs.db").run_status == "running"


def test_a_plain_run_that_exits_the_process_can_be_resumed(tmp_path: Path) -> None:
    async def run() -> None:
        await row("w", leave_later)().run("hi", run_id="r", checkpoint_storage=SqliteCheckpointStorage(tmp_path / "db"))

    with pytest.raises(SystemExit):
        asyncio.run(run())
    record = standing(tmp_path / "db")
    assert (record.run_status, record.halt) == ("running", None)
