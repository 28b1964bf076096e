"""Properties and methods that describe a `Workflow`."""

import asyncio
import json

from tests.workflow.nodes import Gate, ending, failing, passing, read

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, WorkflowExecutor, WorkflowRunState, handler


class First(Executor):
    @handler
    async def go(self, message: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.send_message(message)

    @handler
    async def text(self, message: str | bytes, ctx: WorkflowContext[int]) -> None: ...


class Last(Executor):
    @handler
    async def go(self, message: int, ctx: WorkflowContext[int, str | list[int]]) -> None:
        await ctx.yield_output(str(message))


def build() -> Workflow:
    first, last = First("first"), Last("last")
    return WorkflowBuilder(9, "two", "two in a row", start_executor=first).add_edge(first, last).build()


def test_a_workflow_has_the_attributes_of_its_definition() -> None:
    workflow = build()
    assert (workflow.name, workflow.description, workflow.max_iterations) == ("two", "two in a row", 9)
    assert workflow.start_executor_id == "first"
    assert list(workflow.executors) == ["first", "last"]
    assert workflow.get_start_executor().id == "first"
    assert [executor.id for executor in workflow.get_executors_list()] == ["first", "last"]


def test_every_instance_has_an_id_of_its_own() -> None:
    assert build().id != build().id


def test_it_takes_what_its_start_executor_takes() -> None:
    assert build().input_types == [int, str | bytes]


def test_it_gives_what_all_its_executors_declare_each_type_once() -> None:
    types = build().output_types
    assert len(types) == 2
    assert set(map(str, types)) == set(map(str, [str, list[int]]))


def test_it_stands_for_no_run_before_the_first() -> None:
    workflow = build()
    assert (workflow.run_id, workflow.status) == (None, WorkflowRunState.IDLE)


async def test_the_status_follows_the_run() -> None:
    gate = Gate("gate")
    workflow = WorkflowBuilder(start_executor=gate.executor).build()
    running = asyncio.ensure_future(workflow.run(1))
    await gate.begun.wait()
    assert workflow.status is WorkflowRunState.IN_PROGRESS
    gate.opened.set()
    await running
    assert workflow.status is WorkflowRunState.IDLE


async def test_the_status_after_a_failure_is_failed() -> None:
    workflow = WorkflowBuilder(start_executor=failing("a", ValueError("no"))).build()
    await read(workflow.run(1, stream=True))
    assert workflow.status is WorkflowRunState.FAILED


def test_as_a_dict_it_tells_the_definition() -> None:
    workflow = build()
    told = workflow.to_dict()
    assert {key: told[key] for key in ("name", "id", "start_executor_id", "max_iterations", "description")} == {
        "name": "two",
        "id": workflow.id,
        "start_executor_id": "first",
        "max_iterations": 9,
        "description": "two in a row",
    }
    assert told["executors"] == {"first": {"id": "first", "type": "First"}, "last": {"id": "last", "type": "Last"}}
    assert [group["type"] for group in told["edge_groups"]].count("SingleEdgeGroup") == 1
    assert (told["output_executors"], told["intermediate_executors"]) == (None, None)
    assert json.loads(workflow.to_json()) == told


def test_the_dict_names_the_designated_executors() -> None:
    first, last = First("first"), Last("last")
    workflow = (
        WorkflowBuilder(start_executor=first, output_from=[last], intermediate_output_from=[first])
        .add_edge(first, last)
        .build()
    )
    told = workflow.to_dict()
    assert (told["output_executors"], told["intermediate_executors"]) == (["last"], ["first"])
    assert "description" not in told


def test_the_dict_of_a_sub_workflow_contains_the_workflow() -> None:
    inner = build()
    outer = WorkflowBuilder(start_executor=WorkflowExecutor(inner, "sub")).build()
    assert outer.to_dict()["executors"]["sub"]["workflow"] == inner.to_dict()
    assert json.loads(outer.to_json())["executors"]["sub"]["type"] == "WorkflowExecutor"


async def test_changing_the_lists_that_were_handed_out_does_not_change_the_workflow() -> None:
    a, b = passing("a"), ending("b")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b).build()
    workflow.executors.clear()
    workflow.edge_groups.clear()
    assert (await workflow.run(1)).get_outputs() == [1]
