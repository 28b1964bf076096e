"""One clock for a storage, its runs and its hosts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.workflow.nodes import node

from perdure import (
    Agent,
    FileCheckpointStorage,
    Host,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    SystemClock,
    Workflow,
    WorkflowBuilder,
    WorkflowRunState,
    workflow,
)
from perdure.agent_workflows import AgentWorkflow
from perdure.testing import ScriptedChatClient
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.workflow.nodes import Context

    from perdure import CheckpointStorage, Clock, RunContext

MONTH = timedelta(days=30)
START = datetime(2024, 1, 1, tzinfo=UTC)
CONFLICT = "has a ManualClock and its InMemoryCheckpointStorage another clock, a ManualClock.*clock=clock"


def sleeper(*, storage: CheckpointStorage | str | None = None, clock: Clock | None = None) -> Workflow:
    """A workflow that sleeps for a month."""

    async def wait(_: str, ctx: Context) -> None:
        await ctx.sleep(MONTH)
        await ctx.yield_output("awake")

    return WorkflowBuilder(
        name="sleeper", start_executor=node("sleeper", wait), checkpoint_storage=storage, clock=clock
    ).build()


def month_later(storage: Any) -> bool:
    return storage.clock.now() >= START + MONTH


async def test_runs_and_their_records_follow_the_clock_of_the_storage(tmp_path: Path) -> None:
    for storage in (
        InMemoryCheckpointStorage(clock=ManualClock(skips=True)),
        FileCheckpointStorage(tmp_path / "files", clock=ManualClock(skips=True)),
        SqliteCheckpointStorage(tmp_path / "runs.db", clock=ManualClock(skips=True)),
    ):
        result = await sleeper(storage=storage).run("go", run_id="r")
        assert result.get_outputs() == ["awake"]
        times = [checkpoint.timestamp for checkpoint in await storage.list_checkpoints(run_id="r")]
        assert times[0].startswith("2024-01-01")
        assert times[-1].startswith("2024-01-31")


async def test_a_storage_that_is_given_to_run_gives_the_clock_too() -> None:
    storage = InMemoryCheckpointStorage(clock=ManualClock(skips=True))
    assert (await sleeper().run("go", checkpoint_storage=storage)).get_outputs() == ["awake"]
    assert month_later(storage)


async def test_a_deadline_of_a_run_is_a_time_of_the_storage() -> None:
    storage = InMemoryCheckpointStorage(clock=ManualClock(skips=True))
    result = await sleeper().run("go", checkpoint_storage=storage, deadline=timedelta(days=1))
    assert result.get_final_state() is WorkflowRunState.CANCELLED
    assert START + timedelta(days=1) <= storage.clock.now() < START + MONTH


async def test_a_host_and_its_runs_follow_the_clock_of_the_storage() -> None:
    storage = InMemoryCheckpointStorage(clock=ManualClock(skips=True))
    host = Host(storage)
    host.register(sleeper)
    async with host:
        run = await host.start("sleeper", "go", run_id="r")
        assert (await run.result()).get_outputs() == ["awake"]
    assert month_later(storage)


async def test_a_function_and_an_agent_follow_the_clock_of_the_storage() -> None:
    storage = InMemoryCheckpointStorage(clock=ManualClock(skips=True))

    @workflow(checkpoint_storage=storage)
    async def wait(message: str, ctx: RunContext) -> str:
        await ctx.sleep(MONTH)
        return message

    updates = [update async for update in wait.as_agent().run("go", stream=True)]
    assert [update.created_at[:10] for update in updates if update.created_at] == ["2024-01-31"]


async def test_a_workflow_of_agents_follows_the_clock_of_the_storage() -> None:
    storage = InMemoryCheckpointStorage(clock=ManualClock())
    agent = Agent(ScriptedChatClient(["Hello."]), name="greeter")
    flow = AgentWorkflow.create().add_agent("greeter", agent).with_workflow_store(storage).build()
    result = await flow.run("hi")
    assert result.duration == 0


@pytest.mark.parametrize("is_taken", [False, True])
async def test_two_clocks_are_refused(is_taken: bool) -> None:  # noqa: FBT001 - a parameter of the test
    storage, clock = InMemoryCheckpointStorage(clock=None if is_taken else ManualClock()), ManualClock()
    if is_taken:
        sleeper(storage=storage, clock=ManualClock())
    with pytest.raises(ValueError, match=CONFLICT):
        sleeper(storage=storage, clock=clock)
    with pytest.raises(ValueError, match=CONFLICT):
        await sleeper(clock=clock).run("go", checkpoint_storage=storage)
    with pytest.raises(ValueError, match=CONFLICT):
        Host(storage).register(lambda: sleeper(clock=clock))
    assert await storage.list_checkpoints() == []


async def test_a_storage_without_a_clock_takes_that_of_the_first_workflow_that_has_one() -> None:
    storage, clock = InMemoryCheckpointStorage(), ManualClock(skips=True)
    other = sleeper(storage=storage)
    sleeper(storage=storage, clock=clock)
    assert storage.clock.now() == START
    assert (await other.run("go")).get_outputs() == ["awake"]
    assert storage.clock.now() == clock.now() == START + MONTH


async def test_clocks_of_the_machine_agree_and_the_same_clock_may_be_given_twice() -> None:
    sleeper(storage=InMemoryCheckpointStorage(), clock=SystemClock(grace_seconds=1))
    clock = ManualClock(skips=True)
    result = await sleeper(storage=InMemoryCheckpointStorage(clock=clock), clock=clock).run("go")
    assert result.get_outputs() == ["awake"]
