"""Older spellings of the same calls."""

from typing import Any

from tests.workflow.nodes import ending, passing

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)


class Asker(Executor):
    @handler
    async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(message, str, request_id="r")

    @response_handler
    async def on(self, request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{request} {response}")


def asker(storage: Any = None) -> Workflow:
    builder = WorkflowBuilder(name="asker").set_start_executor(Asker("asker"))
    return (builder.with_checkpointing(storage) if storage is not None else builder).build()


async def test_a_builder_may_be_told_step_by_step() -> None:
    storage = InMemoryCheckpointStorage()
    a, b = passing("a"), ending("b")
    workflow = (
        WorkflowBuilder(name="w")
        .add_edge(a, b)
        .set_start_executor(a)
        .set_max_iterations(5)
        .with_checkpointing(storage)
        .build()
    )
    assert (await workflow.run(1)).get_outputs() == [1]
    assert workflow.max_iterations == 5
    assert len(await storage.list_checkpoints()) == 3


async def test_run_stream_and_run_streaming_are_run_with_a_stream() -> None:
    a, b = passing("a"), ending("b")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b).build()
    for former in (workflow.run_stream, workflow.run_streaming):
        outputs = [event.data async for event in former(1) if event.type == "output"]
        assert outputs == [1]


async def test_answers_may_be_sent_by_their_former_names() -> None:
    workflow = asker()
    await workflow.run("q")
    assert (await workflow.send_responses({"r": "a"})).get_outputs() == ["q a"]
    workflow = asker()
    await workflow.run("q")
    stream = workflow.send_responses_streaming({"r": "a"})
    assert [event.data async for event in stream if event.type == "output"] == ["q a"]


async def test_resuming_by_its_former_names() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asker(storage)
    await workflow.run("q")
    head = await storage.get_latest(workflow_name="asker")
    assert head is not None
    again = await asker().run_from_checkpoint(head.checkpoint_id, storage)
    assert [event.request_id for event in again.get_request_info_events()] == ["r"]
    stream = asker().run_stream_from_checkpoint(head.checkpoint_id, checkpoint_storage=storage, responses={"r": "a"})
    assert [event.data async for event in stream if event.type == "output"] == ["q a"]
