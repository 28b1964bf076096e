"""Answers: partly, in any order, of the right type. A wrong one changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import permutations
from typing import TYPE_CHECKING, Any, Never

import pytest
from pydantic import BaseModel
from shapes import Clerk, Question, asking, nested, requests, types_of

from perdure import (
    AlreadyAnsweredError,
    AnswerTypeError,
    Executor,
    UnknownRequestError,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowException,
    WorkflowRunState,
    handler,
    response_handler,
)

if TYPE_CHECKING:
    from conftest import Storage
    from perdure import Workflow

IDLE, WAITING = WorkflowRunState.IDLE, WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


@pytest.mark.parametrize("order", list(permutations(["a", "b", "c"])))
async def test_requests_are_answered_one_by_one_in_any_order(storage: Storage, order: tuple[str, ...]) -> None:
    workflow = asking(storage)
    assert (await workflow.run(["a", "b", "c"])).get_final_state() is WAITING
    outputs: list[str] = []
    for word in order:
        result = await workflow.run(responses={f"about-{word}": word.upper()})
        outputs += result.get_outputs()
        assert result.get_final_state() is (IDLE if word == order[-1] else WAITING)
    assert outputs == [f"{word}: {word.upper()}" for word in order]


async def test_a_loop_over_the_requests_of_each_result_answers_all(storage: Storage) -> None:
    workflow = asking(storage)
    result, asked = await workflow.run(["a", "b", "c"]), list[list[str]]()
    while requests_left := result.get_request_info_events():
        asked.append([event.request_id for event in requests_left])
        result = await workflow.run(responses={asked[-1][0]: "yes"})
    assert asked == [["about-a", "about-b", "about-c"], ["about-b", "about-c"], ["about-c"]]
    assert result.get_final_state() is IDLE


async def test_requests_are_answered_one_by_one_each_by_another_instance(storage: Storage) -> None:
    first = asking(storage)
    await first.run(["a", "b", "c"])
    assert first.run_id is not None
    for word in "cab":
        await asking(storage).run(run_id=first.run_id, responses={f"about-{word}": word.upper()})
    last = await storage.get_latest(workflow_name="asking")
    assert last is not None
    assert last.state["_executor_state"] == {"clerk": {"log": ["C", "A", "B"]}}
    assert last.pending_request_info_events == {}


async def test_several_answers_of_one_call_are_handled_in_the_order_given(storage: Storage) -> None:
    clerk = Clerk()
    workflow = asking(storage, clerk=clerk)
    await workflow.run(["a", "b", "c"])
    result = await workflow.run(responses={"about-c": "C", "about-a": "A"})
    assert result.get_outputs() == ["c: C", "a: A"]
    assert clerk.log == ["C", "A"]
    assert result.get_final_state() is WAITING


async def test_a_fresh_message_leaves_requests_answerable(storage: Storage) -> None:
    workflow = asking(storage)
    await workflow.run(["a"])
    result = await workflow.run(["b"])
    assert result.get_final_state() is WAITING
    answered = await workflow.run(responses={"about-a": "A", "about-b": "B"})
    assert answered.get_outputs() == ["a: A", "b: B"]


async def test_the_state_at_the_end_is_computed_from_what_is_pending(storage: Storage) -> None:
    workflow = asking(storage)
    await workflow.run(["a", "b"])
    partly = await workflow.run(responses={"about-a": "A"}, include_status_events=True)
    assert [event.state for event in partly.status_timeline()] == [
        *(WorkflowRunState.IN_PROGRESS, WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS),
        WAITING,
    ]
    assert workflow.status is WAITING
    assert workflow.run_id is not None
    ended = await asking(storage).run(run_id=workflow.run_id, responses={"about-b": "B"})
    assert ended.get_final_state() is IDLE


async def stored(storage: Storage) -> list[Any]:
    """All that is stored, to be compared."""
    return [
        (m.checkpoint_id, m.header, dict(m.toc), await storage.store.blobs(m.toc.values()))
        for m in await storage.store.manifests()
    ]


WRONG = [
    (
        {"about-time": "late"},
        UnknownRequestError,
        "no request 'about-time' to answer: pending are 'about-a', 'about-b'",
    ),
    ({"about-a": 7}, AnswerTypeError, "request 'about-a' asks for a str, the answer is 7, which does not fit"),
    ({"about-a": "fine", "about-b": None}, AnswerTypeError, "'about-b'"),
    ({"about-a": "fine", "about-c": "again"}, AlreadyAnsweredError, "request 'about-c' of run"),
]


@pytest.mark.parametrize(("responses", "error", "match"), WRONG)
async def test_a_wrong_answer_changes_nothing(
    storage: Storage, responses: dict[str, Any], error: type[Exception], match: str
) -> None:
    workflow = asking(storage)
    await workflow.run(["a", "b", "c"])
    await workflow.run(responses={"about-c": "C"})
    before = await stored(storage)
    with pytest.raises(error, match=match) as caught:
        await workflow.run(responses=responses)
    assert isinstance(caught.value, (ValueError, WorkflowException))
    assert workflow.status is WAITING
    assert await stored(storage) == before
    assert (await workflow.run(responses={"about-a": "A", "about-b": "B"})).get_outputs() == ["a: A", "b: B"]


@pytest.mark.parametrize(("responses", "error", "match"), WRONG)
async def test_a_wrong_answer_from_another_instance_changes_nothing(
    storage: Storage, responses: dict[str, Any], error: type[Exception], match: str
) -> None:
    first = asking(storage)
    await first.run(["a", "b", "c"])
    await first.run(responses={"about-c": "C"})
    before = await stored(storage)
    assert first.run_id is not None
    workflow = asking(storage)
    with pytest.raises(error, match=match):
        await workflow.run(run_id=first.run_id, responses=responses)
    assert workflow.status is IDLE
    assert await stored(storage) == before
    result = await workflow.run(run_id=first.run_id, responses={"about-a": "A", "about-b": "B"})
    assert result.get_outputs() == ["a: A", "b: B"]


@pytest.mark.parametrize(("responses", "error", "match"), WRONG)
async def test_a_wrong_answer_in_memory_changes_nothing(
    responses: dict[str, Any], error: type[Exception], match: str
) -> None:
    workflow = asking(None)
    await workflow.run(["a", "b", "c"])
    await workflow.run(responses={"about-c": "C"})
    with pytest.raises(error, match=match):
        await workflow.run(responses=responses)
    assert workflow.status is WAITING
    assert (await workflow.run(responses={"about-a": "A", "about-b": "B"})).get_outputs() == ["a: A", "b: B"]


async def test_an_answer_that_is_given_again_says_when_it_was_given(storage: Storage) -> None:
    workflow = asking(storage)
    await workflow.run(["a"])
    await workflow.run(responses={"about-a": "A"})
    told = r"was answered by process \d+ on .+ at \d{4}-\d\d-\d\dT.+ with "
    with pytest.raises(AlreadyAnsweredError, match=told) as caught:
        await workflow.run(responses={"about-a": "A"})
    assert caught.value.run_id == workflow.run_id


async def test_answers_where_nothing_was_asked_are_a_runtime_error(storage: Storage) -> None:
    with pytest.raises(RuntimeError, match="no request 'about-a' to answer"):
        await asking(storage).run(responses={"about-a": "A"})
    with pytest.raises(RuntimeError, match="no request 'about-a' to answer"):
        await asking(None).run(responses={"about-a": "A"})


class Shade(Enum):
    LIGHT = "light"
    DARK = "dark"


@dataclass
class Point:
    x: int
    shade: Shade


@dataclass
class Shape:
    name: str
    points: list[Point]
    scale: float = 1.0


class Order(BaseModel):
    item: str
    amount: int = 1


class Asker(Executor):
    """Asks for one answer of a type, and keeps what it got."""

    def __init__(self, expected: Any) -> None:
        super().__init__("asker")
        self.expected = expected
        self.got: list[Any] = []

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(Question(text), self.expected, request_id="it")

    @response_handler
    async def told(
        self,
        question: Question,
        answer: float | Shape | Order | Shade | list[Point] | dict[str, Point] | bool | str | None,  # noqa: FBT001
        ctx: WorkflowContext[Never, Any],
    ) -> None:
        del question, ctx
        self.got.append(answer)


def for_type(storage: Storage, asker: Asker) -> Workflow:
    return WorkflowBuilder(start_executor=asker, name="typed", checkpoint_storage=storage).build()


@pytest.mark.parametrize(
    ("expected", "given", "got"),
    [
        (float, 3, 3.0),
        (Shade, "dark", Shade.DARK),
        (Order, {"item": "tea"}, Order(item="tea")),
        (
            Shape,
            {"name": "dot", "points": [{"x": 1, "shade": "light"}], "scale": 2},
            Shape("dot", [Point(1, Shade.LIGHT)], 2.0),
        ),
        (list[Point], [{"x": 1, "shade": "dark"}], [Point(1, Shade.DARK)]),
        (dict[str, Point], {"a": {"x": 1, "shade": "dark"}}, {"a": Point(1, Shade.DARK)}),
        (Order | None, None, None),
        (Order | None, {"item": "tea"}, Order(item="tea")),
        (bool, True, True),
    ],
)
async def test_plain_data_becomes_the_type_that_was_asked_for(
    storage: Storage, expected: Any, given: Any, got: Any
) -> None:
    await for_type(storage, Asker(expected)).run("x")
    head = await storage.get_latest(workflow_name="typed")
    assert head is not None
    asker = Asker(expected)
    await for_type(storage, asker).run(checkpoint_id=head.checkpoint_id, responses={"it": given})
    assert asker.got == [got]
    assert type(asker.got[0]) is type(got)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (float, "3"),
        (bool, 1),
        (bool, "yes"),
        (str, {"a": 1}),
        (Shade, "purple"),
        (Order, {"amount": 1}),
        (Order, {"item": "tea", "amount": "2"}),
        (Order, "tea"),
        (Shape, {"name": "dot"}),
        (Shape, {"name": "dot", "points": [], "colour": "red"}),
        (Shape, {"name": 5, "points": []}),
        (Shape, {"name": "dot", "points": [{"x": "one", "shade": "dark"}]}),
        (list[Point], {"x": 1}),
        (dict[str, Point], [1]),
        (Order | None, 5),
    ],
)
async def test_data_that_is_not_of_the_type_that_was_asked_for_is_refused(
    storage: Storage, expected: Any, given: Any
) -> None:
    asker = Asker(expected)
    workflow = for_type(storage, asker)
    await workflow.run("x")
    before = await stored(storage)
    with pytest.raises(AnswerTypeError, match="request 'it' asks for"):
        await workflow.run(responses={"it": given})
    assert await stored(storage) == before
    assert asker.got == []


async def test_an_answer_that_no_handler_takes_is_refused_and_the_request_stays(storage: Storage) -> None:
    class Deaf(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(Question(text), int, request_id="it")

        @response_handler
        async def told(self, question: Question, answer: str, ctx: WorkflowContext) -> None:
            raise AssertionError((question, answer, ctx))

    workflow = WorkflowBuilder(start_executor=Deaf("deaf"), name="deaf", checkpoint_storage=storage).build()
    result = await workflow.run("x")
    assert "warning" in types_of(result)
    with pytest.raises(AnswerTypeError, match="what a @response_handler of executor 'deaf' takes"):
        await workflow.run(responses={"it": 5})
    assert workflow.status is WAITING


async def test_a_wrong_answer_to_a_request_of_a_sub_workflow_is_refused_before_anything_runs(storage: Storage) -> None:
    workflow = nested(storage)
    await workflow.run(["hue"])
    before = await stored(storage)
    with pytest.raises(AnswerTypeError):
        await workflow.run(responses={"about-hue": 5})
    assert await stored(storage) == before
    assert (await workflow.run(responses={"about-hue": "red"})).get_outputs() == ["heard hue: red"]


async def test_a_response_handler_may_ask_again(storage: Storage) -> None:
    class Stubborn(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.request_info(Question(text), str)

        @response_handler
        async def told(self, question: Question, answer: str, ctx: WorkflowContext[Never, str]) -> None:
            if answer == "please":
                await ctx.yield_output(question.text)
            else:
                await ctx.request_info(question, str)

    def build() -> Workflow:
        return WorkflowBuilder(start_executor=Stubborn("s"), name="stubborn", checkpoint_storage=storage).build()

    workflow = build()
    result = await workflow.run("x")
    assert workflow.run_id is not None
    for _ in range(3):
        (request_id,) = requests(result)
        result = await build().run(run_id=workflow.run_id, responses={request_id: "no"})
    (request_id,) = requests(result)
    result = await build().run(run_id=workflow.run_id, responses={request_id: "please"})
    assert result.get_outputs() == ["x"]
    assert result.get_final_state() is IDLE


async def test_max_iterations_count_from_the_last_answer(storage: Storage) -> None:
    class Loop(Executor):
        @handler
        async def step(self, number: int, ctx: WorkflowContext[int, int]) -> None:
            if number % 3:
                await ctx.send_message(number + 1)
            else:
                await ctx.request_info(Question(str(number)), str, request_id=f"after-{number}")

        @response_handler
        async def told(self, question: Question, answer: str, ctx: WorkflowContext[int, int]) -> None:
            del answer
            await ctx.send_message(int(question.text) + 1)

    loop = Loop("loop")
    builder = WorkflowBuilder(5, start_executor=loop, name="loop", checkpoint_storage=storage)
    workflow = builder.add_edge(loop, loop).build()
    await workflow.run(1)
    for number in (3, 6, 9):
        assert (await workflow.run(responses={f"after-{number}": "go"})).get_final_state() is WAITING
