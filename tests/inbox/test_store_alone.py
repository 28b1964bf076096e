"""Requests are listed and answered with the store alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Never

import pytest
from tests.inbox.bureau import Colour, Offer, Official, Parcel, Question, branch, office, warnings
from tests.inbox.meddling import meddled

from perdure import (
    AnswerTypeError,
    InMemoryCheckpointStorage,
    RunNotFoundError,
    UnknownRequestError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
)
from perdure.records import LatestOnly, NewRun, Retention
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Storage

OFFER = {"item": "tea", "price": "1.50", "colours": ["red"], "until": "2030-01-01T00:00:00+00:00"}
MADE = Offer("tea", Decimal("1.50"), frozenset({Colour.RED}), datetime(2030, 1, 1, tzinfo=UTC))


async def test_a_process_that_knows_no_types_sees_the_request_as_plain_data_with_the_schema_of_an_answer(
    open_on_disk: Callable[[], Any], stranger: Callable[..., Any]
) -> None:
    class Detailed(Official):
        @handler
        async def ask(self, texts: list[str], ctx: WorkflowContext[Never, str]) -> None:
            moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
            question = Question("which?", moment, ("a", "b"), {"old": Offer("x", Decimal(1)), "many": ["y" * 9] * 900})
            await ctx.request_info(question, Offer, request_id=texts[0], approves=texts)

    async with open_on_disk() as storage:
        clock = ManualClock()
        await (
            WorkflowBuilder(name="office", start_executor=Detailed(), checkpoint_storage=storage, clock=clock)
            .build()
            .run(["q"], run_id="r")
        )
        (request,) = await storage.requests("r")
        (seen,) = stranger(storage, "requests", "r")
    assert seen["data"] == {
        "text": "which?",
        "asked_at": "2024-05-01T12:00:00+00:00",
        "choices": ["a", "b"],
        "notes": {"old": {"item": "x", "price": "1", "colours": [], "until": None}, "many": ["y" * 9] * 900},
    }
    assert seen["schema"]["required"] == ["item", "price"]
    assert (seen["request_type"], seen["response_type"]) == ("Question", "Offer")
    assert (seen["run_id"], seen["workflow_name"]) == ("r", "office")
    assert (seen["request_id"], seen["executor_id"]) == ("q", "official")
    assert seen["opened_at"] == clock.now().isoformat()
    assert (seen["deadline"], seen["refusals"], seen["answered_by"]) == (None, [], None)
    assert seen["approves"] == request.approves
    assert isinstance(request.data, Question)


@pytest.mark.parametrize(
    ("expects", "given", "got"),
    [
        (Offer, OFFER, MADE),
        (list[Offer], [OFFER], [MADE]),
        (Colour, "blue", Colour.BLUE),
        (Parcel, {"name": "box"}, Parcel(name="box")),
        (Literal["yes", "no"], "yes", "yes"),
        (int | None, None, None),
    ],
)
async def test_plain_data_answers_and_the_run_makes_it_what_it_asked_for(
    open_on_disk: Callable[[], Any], stranger: Callable[..., Any], expects: Any, given: Any, got: Any
) -> None:
    async with open_on_disk() as storage:
        await office(storage, expects).run(["q"], run_id="r")
        assert stranger(storage, "respond", "r", json.dumps({"q": given}), "ann") is None
        (waiting,) = await storage.requests("r")
        assert waiting.answered_by == "ann"
        result = await office(storage, expects).run(run_id="r")
        assert result.get_outputs() == [f"q: {got!r}"]
        assert await storage.requests("r") == []
        assert await storage.store.inbox("r") == []


async def test_data_that_the_schema_does_not_allow_is_refused_with_the_reason(
    open_on_disk: Callable[[], Any], stranger: Callable[..., Any]
) -> None:
    async with open_on_disk() as storage:
        await office(storage, Offer).run(["q"], run_id="r")
        wrong = json.dumps({"q": {"item": 5, "price": "2"}})
        assert stranger(storage, "respond", "r", wrong, "ann") == (
            "AnswerTypeError: request 'q' asks for an Offer, the answer is {'item': 5, 'price': '2'}, "
            "which does not fit: at $.item: 5 is not of type 'string'; answer again, with an Offer"
        )
        assert await storage.store.inbox("r") == []


async def test_an_answer_that_passes_the_schema_but_can_not_be_made_the_type_opens_the_request_again(
    storage: Storage,
) -> None:
    await office(storage, Offer).run(["q"], run_id="r")
    for answer in ({"item": "tea", "price": "dear"}, {"item": "tea", "price": "-1"}):
        await storage.respond("r", {"q": answer}, by="ann")
        result = await office(storage, Offer).run(run_id="r")
        assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
        assert warnings(result)[0].startswith("the answer of ann does not fit: request 'q' asks for an Offer")
    (request,) = await storage.requests("r")
    assert ["Input should be a valid decimal" in reason for reason in request.refusals] == [True, False]
    assert "nobody pays to sell" in request.refusals[1]
    assert request.answered_by is None
    told = [event async for event in storage.events("r")]
    assert len(warnings(told)) == 2
    await storage.respond("r", {"q": {"item": "tea", "price": "2"}})
    assert (await office(storage, Offer).run(run_id="r")).get_outputs() == [f"q: {Offer('tea', Decimal(2))!r}"]


async def test_an_answer_of_a_type_that_the_run_does_not_know_opens_the_request_again() -> None:
    class Foreign(Parcel):
        pass

    storage = InMemoryCheckpointStorage(allowed_checkpoint_types=[Foreign])
    await office(storage, Offer).run(["q"], run_id="r")
    await storage.respond("r", {"q": Foreign(name="x")}, by="ann")
    result = await office(storage, Offer).run(run_id="r")
    assert len(warnings(result)) == 1
    (request,) = await storage.requests("r")
    assert len(request.refusals) == 1


async def test_the_requests_of_all_runs_are_listed_in_the_order_in_which_the_runs_began(storage: Storage) -> None:
    for run_id in ("r2", "r1"):
        await office(storage).run([f"{run_id} a", f"{run_id} b"], run_id=run_id)
    await branch(storage).run(["c"], run_id="r3")
    await office(storage).run([], run_id="r4")
    listed = [request.request_id for request in await storage.requests()]
    assert listed == ["r2 a", "r2 b", "r1 a", "r1 b", "c"]
    assert [request.request_id for request in await storage.requests(workflow_name="head office")] == ["c"]


async def test_a_run_that_is_just_beginning_does_not_disturb_the_list(storage: Storage) -> None:
    await office(storage).run(["a"], run_id="r1")
    lease = await storage.store.acquire("r2", create=NewRun("r2", "office", "2024-01-01T00:00:00+00:00", "nonce"))
    assert [request.request_id for request in await storage.requests()] == ["a"]
    await storage.store.release(lease)


async def test_who_is_not_there_can_not_be_asked_answered_or_sent_to(storage: Storage) -> None:
    for work in (storage.requests("nobody"), storage.respond("nobody", {"q": 1}), storage.send("nobody", 1)):
        with pytest.raises(RunNotFoundError, match="no run 'nobody'"):
            await work


async def test_an_answer_to_an_unknown_request_names_those_that_are_pending(storage: Storage) -> None:
    await office(storage).run(["a", "b"], run_id="r")
    with pytest.raises(UnknownRequestError, match=r"no request 'c' to answer: pending are 'a', 'b'"):
        await storage.respond("r", {"c": "x"})


async def test_of_several_answers_none_stands_if_one_is_refused(storage: Storage) -> None:
    await office(storage).run(["a", "b"], run_id="r")
    with pytest.raises(AnswerTypeError):
        await storage.respond("r", {"a": "fine", "b": 5})
    assert await storage.store.inbox("r") == []


async def test_the_requests_of_a_sub_workflow_are_listed_and_answered_the_same_way(
    open_on_disk: Callable[[], Any], stranger: Callable[..., Any]
) -> None:
    def build() -> Workflow:
        return branch(storage, Offer)

    async with open_on_disk() as storage:
        await build().run(["q"], run_id="r")
        (request,) = stranger(storage, "requests", "r")
        assert (request["executor_id"], request["data"]["text"]) == ("branch", "q")
        wrong = json.dumps({"q": {"item": "tea"}})
        assert "'price' is a required property" in stranger(storage, "respond", "r", wrong, "ann")
        assert stranger(storage, "respond", "r", json.dumps({"q": OFFER}), "ann") is None
        assert (await build().run(run_id="r")).get_outputs() == [f"heard q: {MADE!r}"]


async def test_a_head_that_is_replaced_and_forgotten_while_it_is_read_is_read_anew(
    open_storage: Callable[..., Storage],
) -> None:
    async with open_storage(retention=Retention(checkpoints=LatestOnly())) as storage:
        await office(storage).run(["a", "b"], run_id="r")

        async def go_on() -> None:
            await office(storage).run(run_id="r", responses={"a": "first"})
            await storage.collect()

        assert [each.request_id for each in await meddled(storage, manifest=go_on).requests("r")] == ["b"]
