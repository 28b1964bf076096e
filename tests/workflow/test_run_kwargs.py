"""Run kwargs: who sees which, and how long they last."""

from typing import Any

from tests.workflow.nodes import Context, MaybeStorage, live_and_checkpointed, node

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)

KEY = "_workflow_run_kwargs"


async def show(_: Any, ctx: Context) -> None:
    await ctx.yield_output(ctx.get_state(KEY))


def showing(storage: Any = None) -> Workflow:
    return WorkflowBuilder(start_executor=node("a", show), checkpoint_storage=storage).build()


class Asker(Executor):
    """Asks, and shows the kwargs when it is answered."""

    @handler
    async def ask(self, message: str, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.request_info(message, str, request_id="r")

    @response_handler
    async def on(self, request: str, response: str, ctx: WorkflowContext[str, Any]) -> None:
        del request, response
        await ctx.yield_output(ctx.get_state(KEY))


@live_and_checkpointed
async def test_without_kwargs_the_reserved_key_is_empty(storage: MaybeStorage) -> None:
    assert (await showing(storage()).run(1)).get_outputs() == [{}]


@live_and_checkpointed
async def test_kwargs_are_for_all_unless_a_key_is_an_executor(storage: MaybeStorage) -> None:
    result = await showing(storage()).run(
        1, function_invocation_kwargs={"user": "u1", "depth": 2}, client_kwargs={"a": {"temperature": 1}, "x": 3}
    )
    assert result.get_outputs() == [
        {
            "function_invocation_kwargs": {"__global__": {"user": "u1", "depth": 2}},
            "client_kwargs": {"a": {"temperature": 1}, "x": 3},
        }
    ]


@live_and_checkpointed
async def test_a_fresh_message_without_kwargs_has_none(storage: MaybeStorage) -> None:
    workflow = showing(storage())
    await workflow.run(1, client_kwargs={"x": 1})
    assert (await workflow.run(2)).get_outputs() == [{}]


@live_and_checkpointed
async def test_answers_keep_the_kwargs_of_their_turn_unless_new_ones_are_given(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Asker("asker"), checkpoint_storage=storage()).build()
    await workflow.run("q", client_kwargs={"x": 1}, function_invocation_kwargs={"y": 2})
    kept = (await workflow.run(responses={"r": "a"})).get_outputs()
    assert kept == [{"client_kwargs": {"__global__": {"x": 1}}, "function_invocation_kwargs": {"__global__": {"y": 2}}}]
    workflow = WorkflowBuilder(start_executor=Asker("asker"), checkpoint_storage=storage()).build()
    await workflow.run("q", client_kwargs={"x": 1})
    changed = (await workflow.run(responses={"r": "a"}, client_kwargs={"x": 9})).get_outputs()
    assert changed[0]["client_kwargs"] == {"__global__": {"x": 9}}


async def test_kwargs_that_were_handed_out_can_not_be_changed_for_others() -> None:
    async def meddle(message: Any, ctx: Context) -> None:
        ctx.get_state(KEY)["client_kwargs"]["__global__"] = {"x": "meddled"}
        await ctx.send_message(message)

    a, b = node("a", meddle), node("b", show)
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b).build()
    result = await workflow.run(1, client_kwargs={"x": 1})
    assert result.get_outputs() == [{"client_kwargs": {"__global__": {"x": 1}}}]


@live_and_checkpointed
async def test_a_sub_workflow_sees_the_kwargs_of_its_parent(storage: MaybeStorage) -> None:
    sub = WorkflowExecutor(showing(), "sub", allow_direct_output=True)
    workflow = WorkflowBuilder(start_executor=sub, checkpoint_storage=storage()).build()
    result = await workflow.run(
        1, client_kwargs={"x": 1}, function_invocation_kwargs={"a": {"only": "for a"}, "sub": {"not": "for a"}}
    )
    (seen,) = result.get_outputs()
    assert seen["client_kwargs"] == {"__global__": {"x": 1}}
    assert seen["function_invocation_kwargs"]["a"] == {"only": "for a"}


async def test_an_object_that_can_not_be_stored_is_still_handed_to_the_executors() -> None:
    class Connection: ...

    connection = Connection()
    (seen,) = (await showing().run(1, client_kwargs={"connection": connection})).get_outputs()
    assert seen["client_kwargs"]["__global__"]["connection"] is connection


async def test_kwargs_given_with_a_checkpoint_replace_the_stored_ones() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=Asker("asker"), checkpoint_storage=storage, name="w").build()
    await workflow.run("q", client_kwargs={"x": 1}, function_invocation_kwargs={"y": 2})
    head = await storage.get_latest(workflow_name="w")
    assert head is not None
    again = WorkflowBuilder(start_executor=Asker("asker"), checkpoint_storage=storage, name="w").build()
    result = await again.run(checkpoint_id=head.checkpoint_id, responses={"r": "a"}, client_kwargs={"x": 9})
    assert result.get_outputs() == [
        {"client_kwargs": {"__global__": {"x": 9}}, "function_invocation_kwargs": {"__global__": {"y": 2}}}
    ]
