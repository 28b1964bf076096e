"""Requests to the outside and their answers, on one instance."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from tests.workflow.nodes import MaybeStorage, live_and_checkpointed, read, told

from perdure import (
    AlreadyAnsweredError,
    AnswerTypeError,
    Executor,
    UnknownRequestError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)


@dataclass
class Approval:
    granted: bool
    by: str = "nobody"


class Rating(BaseModel):
    stars: int


@dataclass
class Question:
    text: str
    wanted: Any


class Asker(Executor):
    """Asks one question for each of its messages, under the question's text as id."""

    @handler
    async def ask(self, message: list[Question], ctx: WorkflowContext[str, Any]) -> None:
        for question in message:
            await ctx.request_info(question.text, question.wanted, request_id=question.text)

    @response_handler
    async def on(self, request: str, response: Any, ctx: WorkflowContext[str, Any]) -> None:
        await ctx.yield_output((request, response))


class Chooser(Executor):
    """Tells which of its response handlers was called."""

    @handler
    async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(message, int | str, request_id="r")

    @response_handler
    async def a_number(self, request: str, response: int, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"number {response} for {request}")

    @response_handler
    async def b_text(self, request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"text {response} for {request}")


async def asked(*questions: Question, storage: Any = None) -> Workflow:
    workflow = WorkflowBuilder(start_executor=Asker("asker"), checkpoint_storage=storage).build()
    result = await workflow.run(list(questions))
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    return workflow


@live_and_checkpointed
async def test_a_request_event_says_who_asks_what_for_what(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Asker("asker"), checkpoint_storage=storage()).build()
    (event,) = (await workflow.run([Question("q", Approval)])).get_request_info_events()
    assert (event.request_id, event.source_executor_id, event.data) == ("q", "asker", "q")
    assert (event.request_type, event.response_type) == (str, Approval)


@live_and_checkpointed
async def test_ids_are_given_to_requests_that_name_none_each_its_own(storage: MaybeStorage) -> None:
    class Two(Executor):
        @handler
        async def ask(self, message: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(message, str)
            await ctx.request_info(message, str)

        @response_handler
        async def on(self, request: str, response: str, ctx: WorkflowContext) -> None: ...

    workflow = WorkflowBuilder(start_executor=Two("two"), checkpoint_storage=storage()).build()
    first = (await workflow.run("x")).get_request_info_events()
    second = (await workflow.run("x")).get_request_info_events()
    assert len({event.request_id for event in (*first, *second)}) == 4


@live_and_checkpointed
async def test_requests_may_be_answered_partly_and_in_any_order(storage: MaybeStorage) -> None:
    workflow = await asked(*(Question(name, str) for name in "abc"), storage=storage())
    first = await workflow.run(responses={"c": "3"})
    assert (first.get_outputs(), first.get_final_state()) == ([("c", "3")], WorkflowRunState.IDLE_WITH_PENDING_REQUESTS)
    last = await workflow.run(responses={"b": "2", "a": "1"})
    assert last.get_outputs() == [("b", "2"), ("a", "1")]
    assert last.get_final_state() is WorkflowRunState.IDLE
    assert workflow.status is WorkflowRunState.IDLE


@live_and_checkpointed
async def test_an_unknown_request_is_refused_and_nothing_changes(storage: MaybeStorage) -> None:
    workflow = await asked(Question("a", str), storage=storage())
    events, error = await read(workflow.run(responses={"a": "1", "b": "2"}, stream=True))
    assert isinstance(error, UnknownRequestError)
    assert (error.request_id, error.pending) == ("b", ("a",))
    assert "FAILED" not in told(events)
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (await workflow.run(responses={"a": "1"})).get_outputs() == [("a", "1")]


@live_and_checkpointed
async def test_a_second_answer_is_refused_and_nothing_changes(storage: MaybeStorage) -> None:
    workflow = await asked(Question("a", str), Question("b", str), storage=storage())
    await workflow.run(responses={"a": "1"})
    with pytest.raises(AlreadyAnsweredError, match="request 'a'"):
        await workflow.run(responses={"a": "again", "b": "2"})
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (await workflow.run(responses={"b": "2"})).get_outputs() == [("b", "2")]


@live_and_checkpointed
async def test_an_answer_of_the_wrong_type_is_refused_and_nothing_changes(storage: MaybeStorage) -> None:
    workflow = await asked(Question("a", int), storage=storage())
    with pytest.raises(AnswerTypeError, match="request 'a' asks for an int, the answer is 'one'") as caught:
        await workflow.run(responses={"a": "one"})
    assert isinstance(caught.value, ValueError)
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (await workflow.run(responses={"a": 1})).get_outputs() == [("a", 1)]


@pytest.mark.parametrize(
    ("wanted", "given", "got"),
    [
        (float, 3, 3.0),
        (Approval, {"granted": True}, Approval(granted=True)),
        (Approval, Approval(granted=False), Approval(granted=False)),
        (Rating, {"stars": 4}, Rating(stars=4)),
        (list[int], [1, 2], [1, 2]),
        (str | None, None, None),
        (Any, {"as": "is"}, {"as": "is"}),
        (dict, {"x": 1}, {"x": 1}),
    ],
)
@live_and_checkpointed
async def test_an_answer_is_brought_to_the_type_that_was_asked_for(
    wanted: Any, given: Any, got: Any, storage: MaybeStorage
) -> None:
    workflow = await asked(Question("a", wanted), storage=storage())
    ((_, answer),) = (await workflow.run(responses={"a": given})).get_outputs()
    assert answer == got
    assert type(answer) is type(got)


@pytest.mark.parametrize(
    ("wanted", "given"),
    [(Approval, {"granted": True, "unknown": 1}), (Approval, {}), (Rating, {"stars": "many"}), (bool, 1), (int, 1.5)],
)
async def test_an_answer_that_can_not_be_brought_to_the_type_is_refused(wanted: Any, given: Any) -> None:
    workflow = await asked(Question("a", wanted))
    with pytest.raises(AnswerTypeError):
        await workflow.run(responses={"a": given})
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


@pytest.mark.parametrize(("answer", "told_as"), [(3, "number 3 for q"), ("three", "text three for q")])
async def test_the_answer_decides_between_the_response_handlers(answer: Any, told_as: str) -> None:
    workflow = WorkflowBuilder(start_executor=Chooser("c")).build()
    await workflow.run("q")
    assert (await workflow.run(responses={"r": answer})).get_outputs() == [told_as]


async def test_asking_without_a_fitting_response_handler_is_a_warning_and_the_answer_is_refused() -> None:
    class Deaf(Executor):
        @handler
        async def ask(self, message: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(message, int, request_id="r")

    workflow = WorkflowBuilder(start_executor=Deaf("deaf")).build()
    result = await workflow.run("q")
    assert [event.type for event in result if event.type in {"warning", "request_info"}] == ["warning", "request_info"]
    with pytest.raises(AnswerTypeError, match="@response_handler"):
        await workflow.run(responses={"r": 1})
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


@live_and_checkpointed
async def test_a_fresh_message_leaves_the_pending_requests_answerable(storage: MaybeStorage) -> None:
    workflow = await asked(Question("a", str), storage=storage())
    result = await workflow.run([Question("b", str)])
    assert [event.request_id for event in result.get_request_info_events()] == ["b"]
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (await workflow.run(responses={"a": "1", "b": "2"})).get_outputs() == [("a", "1"), ("b", "2")]


@live_and_checkpointed
async def test_a_turn_that_asks_nothing_still_ends_with_what_is_pending(storage: MaybeStorage) -> None:
    workflow = await asked(Question("a", str), storage=storage())
    result = await workflow.run([])
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


async def test_an_id_that_is_open_already_is_refused_in_the_same_call() -> None:
    with pytest.raises(ValueError, match="request 'a' is open already"):
        await asked(Question("a", str), Question("a", str))


async def test_an_id_that_is_open_already_is_refused_in_a_later_turn() -> None:
    workflow = await asked(Question("a", str))
    with pytest.raises(ValueError, match="request 'a' is open already"):
        await workflow.run([Question("a", str)])


async def test_two_executors_can_not_open_the_same_id_in_one_superstep() -> None:
    class Fan(Executor):
        @handler
        async def go(self, message: list[Question], ctx: WorkflowContext[list[Question]]) -> None:
            await ctx.send_message(message)

    fan, one, two = Fan("fan"), Asker("one"), Asker("two")
    workflow = WorkflowBuilder(start_executor=fan).add_fan_out_edges(fan, [one, two]).build()
    with pytest.raises(ValueError, match="request 'a' is open already"):
        await workflow.run([Question("a", str)])


@live_and_checkpointed
async def test_an_id_may_be_used_again_once_it_was_answered(storage: MaybeStorage) -> None:
    workflow = await asked(Question("a", str), storage=storage())
    await workflow.run(responses={"a": "1"})
    await workflow.run([Question("a", str)])
    assert (await workflow.run(responses={"a": "2"})).get_outputs() == [("a", "2")]


@live_and_checkpointed
async def test_a_response_handler_may_ask_again(storage: MaybeStorage) -> None:
    class Stubborn(Executor):
        @handler
        async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.request_info(message, str)

        @response_handler
        async def on(self, request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
            if response == "yes":
                await ctx.yield_output("at last")
            else:
                await ctx.request_info(f"{request}?", str)

    workflow = WorkflowBuilder(start_executor=Stubborn("s"), max_iterations=2, checkpoint_storage=storage()).build()
    (event,) = (await workflow.run("really")).get_request_info_events()
    for rounds in range(1, 6):
        (event,) = (await workflow.run(responses={event.request_id: "no"})).get_request_info_events()
        assert event.data == "really" + "?" * rounds
    assert (await workflow.run(responses={event.request_id: "yes"})).get_outputs() == ["at last"]


@live_and_checkpointed
async def test_an_answer_whose_handler_failed_is_not_lost(storage: MaybeStorage) -> None:
    class Fragile(Executor):
        def __init__(self) -> None:
            super().__init__("fragile")
            self.must_fail = True

        @handler
        async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.request_info(message, str, request_id="r")

        @response_handler
        async def on(self, request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
            if self.must_fail:
                raise OSError("not now")
            await ctx.yield_output(f"{request} {response}")

    fragile = Fragile()
    workflow = WorkflowBuilder(start_executor=fragile, checkpoint_storage=storage()).build()
    await workflow.run("q")
    with pytest.raises(OSError, match="not now"):
        await workflow.run(responses={"r": "a"})
    fragile.must_fail = False
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == ["q a"]
