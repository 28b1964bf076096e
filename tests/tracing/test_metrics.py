"""Metrics: counters and durations, collected by the SDK's reader."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader

from perdure import (
    Host,
    InMemoryCheckpointStorage,
    Retry,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from perdure.agents import Agent
from perdure.testing import ScriptedChatClient

_DELTA = {Counter: AggregationTemporality.DELTA, Histogram: AggregationTemporality.DELTA}
READER = InMemoryMetricReader(preferred_temporality=_DELTA)
metrics.set_meter_provider(MeterProvider([READER]))


@pytest.fixture(autouse=True)
def _collect_first() -> None:  # pyright: ignore[reportUnusedFunction]
    READER.get_metrics_data()


def collected() -> dict[str, list[Any]]:
    """Return the data points of each metric since the last call."""
    data: Any = READER.get_metrics_data()
    found: list[Any] = [] if data is None else data.resource_metrics
    return {
        metric.name: list(metric.data.data_points)
        for resource in found
        for scope in resource.scope_metrics
        if scope.scope.name == "perdure"
        for metric in scope.metrics
    }


@executor(id="work", retry=Retry(attempts=2, backoff=0))
async def work(number: int, ctx: WorkflowContext[None, int]) -> None:
    await ctx.step("double", lambda: 2 * number)
    if number < 0:
        raise ValueError("negative")
    await ctx.yield_output(number)


async def test_a_run_is_counted_and_its_parts_are_measured() -> None:
    workflow = WorkflowBuilder(
        name="numbers", start_executor=work, checkpoint_storage=InMemoryCheckpointStorage()
    ).build()
    await workflow.run(1)
    found = collected()
    assert [point.attributes for point in found["perdure.run.started"]] == [{"perdure.workflow": "numbers"}]
    ended = found["perdure.run.ended"]
    assert [(point.value, point.attributes["perdure.status"]) for point in ended] == [(1, "idle")]
    for name in ("superstep", "activation", "step", "commit"):
        (point,) = found[f"perdure.{name}.duration"]
        assert point.attributes["perdure.workflow"] == "numbers"
        assert point.count == (2 if name == "commit" else 1)
    assert found["perdure.activation.duration"][0].attributes["perdure.executor_id"] == "work"
    assert found["perdure.commit.size"][0].sum > 0


async def test_failures_and_retries_are_counted() -> None:
    workflow = WorkflowBuilder(name="numbers", start_executor=work).build()
    with pytest.raises(ValueError, match="negative"):
        await workflow.run(-1)
    found = collected()
    assert [point.value for point in found["perdure.retry"]] == [1]
    assert [point.attributes["perdure.status"] for point in found["perdure.run.ended"]] == ["failed"]
    assert [point.attributes["error.type"] for point in found["perdure.activation.duration"]] == ["ValueError"]


async def test_a_finished_run_that_is_read_again_is_not_counted_again() -> None:
    workflow = WorkflowBuilder(
        name="numbers", start_executor=work, checkpoint_storage=InMemoryCheckpointStorage()
    ).build()
    await workflow.run(1, run_id="once")
    collected()
    await workflow.run(run_id="once")
    assert "perdure.run.ended" not in collected()


async def test_model_calls_have_the_names_of_the_convention() -> None:
    client = ScriptedChatClient(["Hello."])
    await Agent(client, name="greeter").run("Hi")
    found = collected()
    assert found["gen_ai.client.operation.duration"][0].attributes["gen_ai.operation.name"] == "chat"


async def test_a_host_reports_its_queue(tmp_path: Any) -> None:
    host = Host(SqliteCheckpointStorage(tmp_path / "runs.db"))
    host.register(lambda: WorkflowBuilder(name="numbers", start_executor=work).build())
    run = await host.start("numbers", 3)
    async with host:
        assert (await run.result()).get_outputs() == [3]
    assert "perdure.host.queue.depth" in collected()


def test_without_a_meter_provider_nothing_is_measured() -> None:
    program = (
        "import sys, perdure.metrics as m\n"
        "assert not m.is_measured() and 'opentelemetry' not in sys.modules\n"
        "import opentelemetry.metrics\n"
        "assert not m.is_measured()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
