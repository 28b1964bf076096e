"""A run without a stream emits the same events, one superstep at a time."""

from typing import Any

from tests.workflow.nodes import ending, passing, told

from perdure import Executor, FailedMessage, WorkflowBuilder, WorkflowContext, WorkflowEvent, WorkflowExecutor, handler
from perdure.codec import LiveValues
from perdure.engine import RunLoop
from perdure.kernel import Snapshot, begin_turn


class Breaking(Executor):
    """Yields, and fails."""

    @handler
    async def handle(self, message: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.yield_output(message)
        raise ValueError("broken")


class Mourner(Executor):
    """Is told of failures."""

    @handler
    async def handle(self, failed: FailedMessage, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(failed.error.message)


def driver(*, streaming: bool) -> RunLoop:
    a, b = passing("a"), ending("b")
    graph = WorkflowBuilder(start_executor=a).add_edge(a, b).build().graph
    values = LiveValues()
    snapshot = begin_turn(Snapshot(), target_id="a", value=values.fix(1, "message"))
    return RunLoop(graph=graph, snapshot=snapshot, values=values, committer=None, root_id="run", streaming=streaming)


async def batches_of(driver: RunLoop) -> list[list[WorkflowEvent[Any]]]:
    return [batch async for batch in driver.run()]


async def test_the_events_are_those_of_a_stream_in_the_same_order() -> None:
    live = [event for batch in await batches_of(driver(streaming=True)) for event in batch]
    whole = [event for batch in await batches_of(driver(streaming=False)) for event in batch]
    assert told(whole) == told(live)


async def test_events_of_a_failed_sub_workflow_are_in_the_result_without_its_discarded_output() -> None:
    inner = WorkflowBuilder(start_executor=Breaking("inner")).build()
    outer = WorkflowExecutor(inner, id="outer", on_error=Mourner("mourner"))
    result = await WorkflowBuilder(start_executor=outer).build().run(1)
    assert [event.data.type for event in result if event.type == "sub_workflow"] == [
        *("superstep_started", "executor_invoked", "executor_failed")
    ]
    assert result.get_outputs() == ["broken"]
