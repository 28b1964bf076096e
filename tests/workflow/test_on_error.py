"""`on_error` in a graph: who may be named, how failures get there, and how it is drawn."""

from typing import Any

import pytest

from perdure import (
    Executor,
    FailedMessage,
    GraphConnectivityError,
    InMemoryCheckpointStorage,
    TypeCompatibilityError,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowErrorDetails,
    WorkflowViz,
    executor,
    handler,
)
from perdure.engine import Routing, route

FAILURE = FailedMessage("order", "worker", WorkflowErrorDetails("ValueError", "no such order"), attempts=3)


class Worker(Executor):
    """Hands on what it is given to its `on_error`, without having failed."""

    @handler
    async def work(self, message: str, ctx: WorkflowContext[FailedMessage | str]) -> None:
        await ctx.send_message(FAILURE if message == "fail" else message, target_id="mourner")


class Mourner(Executor):
    @handler
    async def mourn(self, failure: FailedMessage, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{failure.executor_id}: {failure.error.message}")


class Echo(Executor):
    @handler
    async def echo(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(message)


def started(start: Executor, **options: Any) -> WorkflowBuilder:
    return WorkflowBuilder(start_executor=start, **options)


def test_an_executor_given_as_on_error_is_part_of_the_graph_with_those_behind_it() -> None:
    @executor
    async def last(failure: FailedMessage) -> None: ...

    workflow = started(Worker("worker", on_error=Mourner("mourner", on_error=last))).build()
    assert list(workflow.executors) == ["worker", "mourner", "last"]


def test_an_executor_named_as_on_error_need_not_be_reached_by_an_edge() -> None:
    mourner = Mourner("mourner")
    echo = Echo("echo", on_error="mourner")
    workflow = started(Worker("worker", on_error=mourner)).add_edge(mourner, echo).build()
    assert set(workflow.executors) == {"worker", "mourner", "echo"}


def test_an_on_error_outside_of_the_graph_is_refused() -> None:
    with pytest.raises(GraphConnectivityError, match=r"on_error of executor 'worker' names 'mourner'.*not an executor"):
        started(Worker("worker", on_error="mourner")).build()


def test_an_executor_can_not_be_its_own_on_error() -> None:
    with pytest.raises(GraphConnectivityError, match="on_error of executor 'mourner' is that executor itself"):
        started(Mourner("mourner", on_error="mourner")).build()


def test_an_on_error_that_takes_no_failures_is_refused_and_both_ends_are_named() -> None:
    with pytest.raises(TypeCompatibilityError, match=r"'worker' -> 'echo'.*FailedMessage.*str"):
        started(Worker("worker", on_error=Echo("echo"))).build()


def test_an_on_error_with_the_id_of_another_executor_is_refused_and_changes_nothing() -> None:
    builder = started(Mourner("mourner"))
    with pytest.raises(ValueError, match="duplicate executor id 'mourner'"):
        builder.add_edge(Worker("worker", on_error=Mourner("mourner")), Echo("echo"))
    assert list(builder.build().executors) == ["mourner"]


async def test_a_failure_goes_to_the_on_error_of_its_executor_without_an_edge() -> None:
    workflow = started(Worker("worker", on_error=Mourner("mourner"))).build()
    assert (await workflow.run("fail")).get_outputs() == ["worker: no such order"]


async def test_a_failure_that_waits_for_its_executor_survives_a_restart() -> None:
    storage = InMemoryCheckpointStorage()

    def built() -> WorkflowBuilder:
        return started(Worker("worker", on_error=Mourner("mourner")), name="w", checkpoint_storage=storage)

    await built().build().run("fail")
    checkpoints = await storage.list_checkpoints(workflow_name="w")
    waiting = next(checkpoint for checkpoint in checkpoints if checkpoint.messages.get("worker"))
    result = await built().build().run(checkpoint_id=waiting.checkpoint_id)
    assert result.get_outputs() == ["worker: no such order"]


async def test_the_condition_of_an_edge_to_the_on_error_is_not_asked_about_a_failure() -> None:
    worker, mourner = Worker("worker", on_error="mourner"), Mourner("mourner")
    graph = started(worker).add_edge(worker, mourner, lambda _: False).build().graph
    assert await route(graph, source_id="worker", target_id="mourner", message=FAILURE) == Routing(("mourner",))
    assert await route(graph, source_id="worker", target_id=None, message=FAILURE) == Routing()


async def test_only_failures_go_the_way_of_on_error() -> None:
    workflow = started(Worker("worker", on_error=Mourner("mourner"))).build()
    reasons = [event.data.reason for event in await workflow.run("anything else") if event.type == "undelivered"]
    assert reasons == ["executor 'mourner' is not connected to 'worker'"]


def test_a_graph_has_the_same_signature_whoever_is_told_of_failures() -> None:
    def signature(on_error: str | None) -> object:
        worker, mourner = Worker("worker", on_error=on_error), Mourner("mourner")
        return started(worker).add_edge(worker, mourner).build().graph_signature_hash

    assert signature(None) == signature("mourner")


def test_the_way_of_failures_is_drawn_dashed() -> None:
    viz = WorkflowViz(started(Worker("worker", on_error=Mourner("mourner"))).build())
    assert "worker -. on error .-> mourner;" in viz.to_mermaid()
    assert '"worker" -> "mourner" [style=dashed, label="on error"];' in viz.to_digraph()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_workflow_keeps_payloads_if_it_was_told_to(wanted: bool) -> None:  # noqa: FBT001 - a parameter of a test
    workflow = started(Mourner("mourner"), record_payloads=wanted).build()
    assert workflow.graph.rules.record_payloads is wanted


def test_payloads_are_not_kept_otherwise() -> None:
    assert not started(Mourner("mourner")).build().graph.rules.record_payloads
