"""`WorkflowExecutor`: a workflow as a node of another."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from tests.workflow.nodes import (
    Context,
    Gate,
    MaybeStorage,
    ending,
    failing,
    keeping,
    live_and_checkpointed,
    node,
    other_tasks,
    passing,
    read,
    sending,
    told,
)

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    SubWorkflowRequestMessage,
    SubWorkflowResponseMessage,
    ValidationTypeEnum,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowConvergenceException,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowRunState,
    WorkflowValidationError,
    handler,
    response_handler,
)


@dataclass
class Ask:
    text: str


class Inner(Executor):
    """Yields its message, counted, in capitals."""

    def __init__(self, id: str = "inner") -> None:  # noqa: A002 - as the base class has it
        super().__init__(id)
        self.n = 0

    @handler
    async def go(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        self.n += 1
        ctx.set_state("n", ctx.get_state("n", 0) + 1)
        await ctx.yield_output(f"{message.upper()}{self.n}/{ctx.get_state('n')}")

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"n": self.n}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


class Asker(Executor):
    """Asks whether it may, and yields the answer."""

    @handler
    async def go(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(Ask(message), bool, request_id=f"may {message}")

    @response_handler
    async def on(self, request: Ask, response: bool, ctx: WorkflowContext[str, str]) -> None:  # noqa: FBT001 - an answer
        await ctx.yield_output(f"{request.text}: {'yes' if response else 'no'}")


class Parent(Executor):
    """Answers the requests of its sub-workflow, and yields what comes back."""

    def __init__(self, id: str = "parent") -> None:  # noqa: A002 - as the base class has it
        super().__init__(id)
        self.requests: list[SubWorkflowRequestMessage] = []

    @handler
    async def start(self, message: list[str], ctx: WorkflowContext[str]) -> None:
        for text in message:
            await ctx.send_message(text, "sub")

    @handler
    async def asked(self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage]) -> None:
        self.requests.append(request)
        may = request.source_event.data.text != "harm"
        await ctx.send_message(request.create_response(may), target_id=request.executor_id)

    @handler
    async def done(self, result: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(result)


def alone(executor: Executor, **options: Any) -> Workflow:
    return WorkflowBuilder(start_executor=executor, **options).build()


def around(inner: Workflow, *, storage: Any = None, **options: Any) -> Workflow:
    """A parent that runs `inner` as its only executor, with its outputs and requests as its own."""
    sub = WorkflowExecutor(inner, "sub", allow_direct_output=True, propagate_request=True, **options)
    return WorkflowBuilder(start_executor=sub, checkpoint_storage=storage).build()


def answering(inner: Workflow, *, storage: Any = None) -> tuple[Workflow, Parent]:
    parent, sub = Parent(), WorkflowExecutor(inner, "sub")
    builder = WorkflowBuilder(start_executor=parent, checkpoint_storage=storage)
    return builder.add_edge(parent, sub).add_edge(sub, parent).build(), parent


@live_and_checkpointed
async def test_the_outputs_of_the_child_are_sent_on_as_messages(storage: MaybeStorage) -> None:
    a, b = sending("a", "one", "two"), ending("b")
    inner = WorkflowBuilder(start_executor=a).add_edge(a, b).build()
    sub, kept = WorkflowExecutor(inner, "sub"), list[Any]()
    target = keeping("target", kept)
    workflow = WorkflowBuilder(start_executor=sub, checkpoint_storage=storage()).add_edge(sub, target).build()
    result = await workflow.run("x")
    assert kept == ["one", "two"]
    assert result.get_outputs() == []


@live_and_checkpointed
async def test_with_direct_output_the_outputs_of_the_child_are_those_of_the_parent(storage: MaybeStorage) -> None:
    result = await around(alone(Inner()), storage=storage()).run("hello")
    assert result.get_outputs() == ["HELLO1/1"]
    assert [event.executor_id for event in result if event.type == "output"] == ["sub"]


async def test_direct_outputs_are_designated_like_those_of_any_executor() -> None:
    sub = WorkflowExecutor(alone(Inner()), "sub", allow_direct_output=True)
    workflow = WorkflowBuilder(start_executor=sub, intermediate_output_from=[sub]).build()
    result = await workflow.run("x")
    assert (result.get_outputs(), result.get_intermediate_outputs()) == ([], ["X1/1"])


@live_and_checkpointed
async def test_intermediate_outputs_of_the_child_are_intermediate_in_the_parent_whatever_it_designates(
    storage: MaybeStorage,
) -> None:
    class Both(Executor):
        @handler
        async def go(self, message: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output(f"step {message}")
            await ctx.send_message(message)

    both, last = Both("both"), Inner("last")
    inner = (
        WorkflowBuilder(start_executor=both, output_from=[last], intermediate_output_from=[both])
        .add_edge(both, last)
        .build()
    )
    sub, end = WorkflowExecutor(inner, "sub"), Inner("end")
    workflow = (
        WorkflowBuilder(start_executor=sub, output_from=[end], checkpoint_storage=storage()).add_edge(sub, end).build()
    )
    result = await workflow.run("x")
    assert [(event.executor_id, event.data) for event in result if event.type == "intermediate"] == [("sub", "step x")]
    assert result.get_outputs() == ["X1/11/1"]


def test_a_sub_workflow_takes_what_its_start_takes_and_gives_what_it_yields() -> None:
    plain, asking = WorkflowExecutor(alone(Inner()), "s"), WorkflowExecutor(alone(Asker("a")), "s")
    assert plain.input_types == [str, SubWorkflowResponseMessage]
    assert plain.output_types == [str]
    assert plain.workflow_output_types == []
    assert asking.output_types == [str, SubWorkflowRequestMessage]
    direct = WorkflowExecutor(alone(Inner()), "s", allow_direct_output=True)
    assert direct.workflow_output_types == [str]
    assert direct.allow_direct_output


def test_the_flags_may_be_given_by_position() -> None:
    sub = WorkflowExecutor(alone(Inner()), "s", True, True)  # noqa: FBT003 - as programs write it
    assert (sub.allow_direct_output, sub.propagate_request) == (True, True)


def test_types_are_checked_through_the_sub_workflow() -> None:
    sub, numbers = WorkflowExecutor(alone(Inner()), "sub"), ending("numbers", takes=int)
    with pytest.raises(WorkflowValidationError, match="'sub' -> 'numbers'"):
        WorkflowBuilder(start_executor=sub).add_edge(sub, numbers).build()


async def test_a_message_that_the_child_can_not_take_is_not_delivered() -> None:
    start, sub = sending("start", 3), WorkflowExecutor(alone(Inner()), "sub")
    result = await WorkflowBuilder(start_executor=start).add_edge(start, sub).build().run(0)
    assert [event.data.reason for event in result if event.type == "undelivered"] == ["a int can't be handled by 'sub'"]
    with pytest.raises(RuntimeError, match="'sub' can't handle"):
        await around(alone(Inner())).run(3)


@live_and_checkpointed
async def test_the_child_runs_to_idle_inside_one_superstep_of_its_parent(storage: MaybeStorage) -> None:
    a, b, c = passing("a"), passing("b"), ending("c")
    inner = WorkflowBuilder(start_executor=a).add_chain([a, b, c]).build()
    result = await around(inner, storage=storage()).run("x")
    assert [event.iteration for event in result if event.type == "superstep_completed"] == [1]
    assert result.get_outputs() == ["x"]


@live_and_checkpointed
async def test_the_events_of_the_child_are_told_with_their_path(storage: MaybeStorage) -> None:
    result = await around(alone(Inner()), storage=storage()).run("x")
    assert [word for word in told(result) if word != "checkpoint"] == [
        *("superstep_started#1", "executor_invoked(sub)"),
        *("sub: superstep_started#1", "sub: executor_invoked(inner)", "sub: output(inner)"),
        *("sub: executor_completed(inner)", "sub: superstep_completed#1"),
        *("output(sub)", "executor_completed(sub)", "superstep_completed#1"),
    ]
    child = next(event for event in result if event.type == "sub_workflow")
    assert (child.executor_id, child.path) == ("sub", ("sub",))
    assert isinstance(child.data, WorkflowEvent)


async def test_the_events_of_the_child_are_told_while_it_runs() -> None:
    gate = Gate("gate")
    stream = around(alone(gate.executor)).run("x", stream=True)
    while told([await anext(stream)]) != ["sub: executor_invoked(gate)"]:
        pass
    assert not gate.opened.is_set()
    gate.opened.set()
    assert (await stream.get_final_response()).get_outputs() == ["x"]


async def test_custom_events_of_the_child_are_visible() -> None:
    async def tell(_: Any, ctx: Context) -> None:
        await ctx.add_event(WorkflowEvent("mine", 1))

    result = await around(alone(node("a", tell))).run("x")
    assert "sub: mine" in told(result)
    assert "mine" not in told(result)


@live_and_checkpointed
async def test_the_child_keeps_its_state_over_the_turns_of_its_parent(storage: MaybeStorage) -> None:
    workflow = around(alone(Inner()), storage=storage())
    assert [(await workflow.run("x")).get_outputs() for _ in range(3)] == [["X1/1"], ["X2/2"], ["X3/3"]]


@live_and_checkpointed
async def test_several_messages_of_one_superstep_are_turns_of_the_child_one_after_the_other(
    storage: MaybeStorage,
) -> None:
    workflow, _ = answering(alone(Inner()), storage=storage())
    assert (await workflow.run(["a", "b", "c"])).get_outputs() == ["A1/1", "B2/2", "C3/3"]


async def test_the_state_of_the_child_is_not_that_of_the_parent() -> None:
    seen: list[Any] = []

    async def look(message: Any, ctx: Context) -> None:
        seen.append(ctx.get_state("k"))
        ctx.set_state("k", "inner")
        await ctx.yield_output(message)

    async def set_first(message: Any, ctx: Context) -> None:
        ctx.set_state("k", "outer")
        await ctx.send_message(message)

    async def look_again(_: Any, ctx: Context) -> None:
        seen.append(ctx.get_state("k"))

    first, sub, last = node("first", set_first), WorkflowExecutor(alone(node("l", look)), "sub"), node("z", look_again)
    await WorkflowBuilder(start_executor=first).add_chain([first, sub, last]).build().run("x")
    assert seen == [None, "outer"]


@live_and_checkpointed
async def test_a_request_of_the_child_comes_to_the_parent_which_answers_it(storage: MaybeStorage) -> None:
    workflow, parent = answering(alone(Asker("asker")), storage=storage())
    result = await workflow.run(["help", "harm"])
    assert result.get_outputs() == ["help: yes", "harm: no"]
    assert result.get_final_state() is WorkflowRunState.IDLE
    (first, _) = parent.requests
    assert first.executor_id == "sub"
    assert (first.source_event.request_id, first.source_event.data) == ("may help", Ask("help"))
    assert first.source_event.response_type is bool


async def test_an_answer_of_the_wrong_type_can_not_be_made() -> None:
    workflow, parent = answering(alone(Asker("asker")))
    await workflow.run(["help"])
    with pytest.raises(TypeError, match="'may help' asks for a bool, not a str"):
        parent.requests[0].create_response("yes")


async def test_a_repeated_answer_of_the_parent_is_ignored_with_a_warning() -> None:
    class Twice(Parent):
        @handler
        async def asked(
            self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage]
        ) -> None:
            for _ in range(2):
                await ctx.send_message(request.create_response(True), request.executor_id)  # noqa: FBT003 - an answer

    parent, sub = Twice(), WorkflowExecutor(alone(Asker("asker")), "sub")
    workflow = WorkflowBuilder(start_executor=parent).add_edge(parent, sub).add_edge(sub, parent).build()
    result = await workflow.run(["help"])
    assert result.get_outputs() == ["help: yes"]
    assert len([event for event in result if event.type == "warning" and "ignored" in event.data]) == 1


@live_and_checkpointed
async def test_a_propagated_request_is_a_request_of_the_parent_under_the_same_id(storage: MaybeStorage) -> None:
    workflow = around(alone(Asker("asker")), storage=storage())
    result = await workflow.run("help")
    (event,) = result.get_request_info_events()
    assert (event.request_id, event.source_executor_id, event.data) == ("may help", "sub", Ask("help"))
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    answered = await workflow.run(responses={"may help": True})
    assert answered.get_outputs() == ["help: yes"]
    assert answered.get_final_state() is WorkflowRunState.IDLE


@live_and_checkpointed
async def test_propagated_requests_may_be_answered_one_by_one_in_any_order(storage: MaybeStorage) -> None:
    workflow = around(alone(Asker("asker")), storage=storage())
    await workflow.run("a")
    second = await workflow.run("b")
    assert any("are open" in event.data for event in second if event.type == "warning")
    assert (await workflow.run(responses={"may b": False})).get_outputs() == ["b: no"]
    last = await workflow.run(responses={"may a": True})
    assert (last.get_outputs(), last.get_final_state()) == (["a: yes"], WorkflowRunState.IDLE)


class Insistent(Asker):
    """Asks on until it may."""

    @response_handler
    async def on(self, request: Ask, response: bool, ctx: WorkflowContext[str, str]) -> None:  # noqa: FBT001 - an answer
        if response:
            await ctx.yield_output(request.text)
        else:
            await ctx.request_info(request, bool, request_id=f"may {request.text}")


@live_and_checkpointed
async def test_the_parent_is_asked_again_under_the_same_id(storage: MaybeStorage) -> None:
    sub, answers = WorkflowExecutor(alone(Insistent("asker")), "sub", allow_direct_output=True), [True, False]

    async def reply(request: SubWorkflowRequestMessage, ctx: Context) -> None:
        await ctx.send_message(request.create_response(answers.pop()), request.executor_id)

    replying = node("replying", reply, takes=SubWorkflowRequestMessage)
    builder = WorkflowBuilder(start_executor=sub, checkpoint_storage=storage())
    workflow = builder.add_edge(sub, replying).add_edge(replying, sub).build()
    assert (await workflow.run("a")).get_outputs() == ["a"]


@live_and_checkpointed
async def test_a_propagated_request_may_be_asked_again_under_the_same_id(storage: MaybeStorage) -> None:
    workflow = around(alone(Insistent("asker")), storage=storage())
    await workflow.run("a")
    (again,) = (await workflow.run(responses={"may a": False})).get_request_info_events()
    assert again.request_id == "may a"
    last = await workflow.run(responses={"may a": True})
    assert (last.get_outputs(), last.get_final_state()) == (["a"], WorkflowRunState.IDLE)


async def test_a_propagated_request_wants_an_answer_of_its_type() -> None:
    workflow = around(alone(Asker("asker")))
    await workflow.run("a")
    with pytest.raises(ValueError, match="asks for a bool"):
        await workflow.run(responses={"may a": "yes"})
    assert (await workflow.run(responses={"may a": True})).get_outputs() == ["a: yes"]


@live_and_checkpointed
async def test_a_child_in_a_child(storage: MaybeStorage) -> None:
    middle = around(alone(Asker("asker")))
    workflow = around(middle, storage=storage())
    first = await workflow.run("help")
    (event,) = first.get_request_info_events()
    assert event.request_id == "may help"
    deep = [event for event in first if event.type == "sub_workflow" and len(event.path) == 2]
    assert {event.path for event in deep} == {("sub", "sub")}
    assert "executor_invoked(asker)" in told(event.data for event in deep)
    second = await workflow.run(responses={"may help": True})
    assert second.get_outputs() == ["help: yes"]
    assert second.get_final_state() is WorkflowRunState.IDLE


async def test_a_child_in_a_child_keeps_its_state_and_its_intermediate_outputs() -> None:
    inner = WorkflowBuilder(start_executor=(e := Inner()), intermediate_output_from=[e]).build()
    middle = alone(WorkflowExecutor(inner, "middle"))
    workflow = alone(WorkflowExecutor(middle, "outer"))
    results = [await workflow.run("x") for _ in range(2)]
    assert [result.get_intermediate_outputs() for result in results] == [["X1/1"], ["X2/2"]]
    assert [event.executor_id for event in results[0] if event.type == "intermediate"] == ["outer"]


@live_and_checkpointed
async def test_the_error_of_the_child_comes_out_unchanged(storage: MaybeStorage) -> None:
    error = ZeroDivisionError("deep")
    workflow = around(around(alone(failing("bad", error))), storage=storage())
    events, raised = await read(workflow.run("x", stream=True))
    assert raised is error
    words = told(events)
    assert "sub/sub: executor_failed(bad)" in words
    assert words[-4:] == ["sub: executor_failed(sub)", "executor_failed(sub)", "failed", "FAILED"]


@live_and_checkpointed
async def test_a_failed_child_begins_its_turn_again_when_the_run_goes_on(storage: MaybeStorage) -> None:
    calls: list[str] = []

    async def flaky(message: str, ctx: Context) -> None:
        calls.append(message)
        if len(calls) == 1:
            raise OSError("network")
        await ctx.yield_output(f"{message} {ctx.get_state('n', 0)}")

    async def count(message: str, ctx: Context) -> None:
        ctx.set_state("n", ctx.get_state("n", 0) + 1)
        await ctx.send_message(message)

    a, b = node("a", count), node("b", flaky)
    workflow = around(WorkflowBuilder(start_executor=a).add_edge(a, b).build(), storage=storage())
    with pytest.raises(OSError, match="network"):
        await workflow.run("x")
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == ["x 1"]


async def test_a_child_that_does_not_converge_fails_its_parent() -> None:
    a = passing("a")
    inner = WorkflowBuilder(3, start_executor=a, name="endless").add_edge(a, a).build()
    with pytest.raises(WorkflowConvergenceException, match="'endless' did not end within 3"):
        await around(inner).run("x")


@live_and_checkpointed
async def test_cancelling_the_parent_cancels_the_child(storage: MaybeStorage) -> None:
    gate = Gate("gate")
    workflow = around(around(alone(gate.executor)), storage=storage())
    running = asyncio.ensure_future(workflow.run("x"))
    await gate.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gate.has_cleaned_up
    assert other_tasks() == set()


async def test_running_as_a_child_does_not_make_a_run_of_the_inner_instance() -> None:
    inner = alone(Inner())
    await around(inner).run("x")
    assert (inner.run_id, inner.status) == (None, WorkflowRunState.IDLE)


def test_an_inner_workflow_with_a_storage_of_its_own_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    inner = alone(Inner(), checkpoint_storage=InMemoryCheckpointStorage())
    with caplog.at_level(logging.WARNING):
        WorkflowExecutor(inner, "sub")
    assert any("'sub'" in record.getMessage() and "storage" in record.getMessage() for record in caplog.records)


def test_one_inner_workflow_can_not_stand_in_two_places_of_a_graph() -> None:
    inner, start = alone(Inner()), passing("start")
    one, two = WorkflowExecutor(inner, "one"), WorkflowExecutor(inner, "two")
    builder = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [one, two])
    with pytest.raises(WorkflowValidationError, match="'one/inner' and 'two/inner' are the same executor") as caught:
        builder.build()
    assert caught.value.validation_type is ValidationTypeEnum.EXECUTOR_DUPLICATION


async def test_inner_workflows_built_apart_may_have_the_same_ids() -> None:
    start, one, two = passing("start"), WorkflowExecutor(alone(Inner()), "one"), WorkflowExecutor(alone(Inner()), "two")
    kept: list[Any] = []
    end = keeping("end", kept)
    workflow = (
        WorkflowBuilder(start_executor=start)
        .add_fan_out_edges(start, [one, two])
        .add_fan_in_edges([one, two], end)
        .build()
    )
    await workflow.run("x")
    assert kept == [["X1/1", "X1/1"]]
