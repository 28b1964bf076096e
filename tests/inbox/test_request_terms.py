"""Requests with a deadline, and requests that say what an answer approves, seen from outside."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never

import pytest
from tests.inbox.bureau import Question, SixMethods, office
from tests.inbox.meddling import meddled

from perdure import (
    AlreadyAnsweredError,
    Executor,
    FunctionExecutor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.checkpoint import answer_command
from perdure.errors import ApprovalMismatchError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.conftest import Storage

    from perdure.storage import StoreStorage

HOUR = timedelta(hours=1)
TERMS: dict[str, Any] = {"deadline": HOUR, "default": "no"}


async def outputs(storage: StoreStorage) -> list[Any]:
    return [event.data async for event in storage.events("r") if event.type == "output"]


def beside_a_sleeper(storage: Storage, clock: ManualClock) -> Workflow:
    """An office beside which somebody sleeps for two hours, so that the run is driven all the time."""

    async def start(texts: list[str], ctx: WorkflowContext[list[str] | int]) -> None:
        await ctx.send_message(texts)
        await ctx.send_message(2)

    async def sleep(hours: int, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.sleep(timedelta(hours=hours))
        await ctx.yield_output("slept")

    both, sleeper = FunctionExecutor(start, "start"), FunctionExecutor(sleep, "sleeper")
    official = office(None, **TERMS).executors["official"]
    builder = WorkflowBuilder(name="office", start_executor=both, checkpoint_storage=storage, clock=clock)
    return builder.add_edge(both, official).add_edge(both, sleeper).build()


async def test_a_deadline_that_passes_while_the_run_is_driven_answers_with_the_default_at_its_time(
    storage: Storage,
) -> None:
    clock = ManualClock(skips=True)
    begun = clock.now()
    result = await beside_a_sleeper(storage, clock).run(["q"], run_id="r")
    assert result.get_outputs() == ["q: 'no'", "slept"]
    with pytest.raises(AlreadyAnsweredError) as caught:
        await storage.respond("r", {"q": "yes"})
    at = (begun + HOUR).isoformat()
    assert f"was answered by its deadline at {at} with the default" in str(caught.value)


async def test_the_deadline_of_the_run_stops_it_while_it_sleeps(storage: Storage) -> None:
    clock = ManualClock(skips=True)
    begun = clock.now()
    result = await beside_a_sleeper(storage, clock).run(["q"], run_id="r", deadline=timedelta(minutes=30))
    assert result.get_final_state() is WorkflowRunState.CANCELLED
    assert clock.now() == begun + timedelta(minutes=30)


async def test_a_deadline_that_has_passed_answers_when_the_run_is_resumed(storage: Storage) -> None:
    clock = ManualClock()
    await office(storage, clock=clock, **TERMS).run(["q"], run_id="r")
    (request,) = await storage.requests("r")
    assert request.deadline == (clock.now() + HOUR).isoformat()
    clock.advance(HOUR - timedelta(seconds=1))
    assert (await office(storage, clock=clock, **TERMS).run(run_id="r")).get_outputs() == []
    clock.advance(timedelta(seconds=1))
    assert (await office(storage, clock=clock, **TERMS).run(run_id="r")).get_outputs() == ["q: 'no'"]
    assert (await office(storage, clock=clock, **TERMS).run(run_id="r")).get_outputs() == ["q: 'no'"]
    assert await outputs(storage) == ["q: 'no'"]


@pytest.mark.parametrize(
    "storage",
    [None, SixMethods(InMemoryCheckpointStorage(allowed_checkpoint_types=[Question]))],
    ids=["none", "six methods"],
)
async def test_a_deadline_needs_no_inbox(storage: Any) -> None:
    clock = ManualClock()
    workflow = office(storage, clock=clock, **TERMS)
    await workflow.run(["q"], run_id="r")
    clock.advance(HOUR)
    assert (await workflow.run(run_id="r")).get_outputs() == ["q: 'no'"]
    with pytest.raises(AlreadyAnsweredError, match="by its deadline"):
        await workflow.run(responses={"q": "yes"})


async def test_an_answer_that_waits_when_the_deadline_is_noticed_stands(storage: Storage) -> None:
    clock = ManualClock()
    await office(storage, clock=clock, **TERMS).run(["q"], run_id="r")
    clock.advance(HOUR)
    await storage.respond("r", {"q": "yes"})
    assert (await office(storage, clock=clock, **TERMS).run(run_id="r")).get_outputs() == ["q: 'yes'"]


async def test_an_answer_that_comes_while_the_default_is_being_committed_stands(storage: Storage) -> None:
    clock = ManualClock()
    await office(storage, clock=clock, **TERMS).run(["q"], run_id="r")
    clock.advance(HOUR)

    async def answer() -> None:
        await storage.respond("r", {"q": "yes"}, by="ann")

    slow = meddled(storage, commit=answer)
    assert (await office(slow, clock=clock, **TERMS).run(run_id="r")).get_outputs() == ["q: 'yes'"]
    with pytest.raises(AlreadyAnsweredError, match="by ann"):
        await storage.respond("r", {"q": "no"})
    assert await outputs(storage) == ["q: 'yes'"]


@pytest.mark.parametrize("call", ["post", "run", "inbox"])
async def test_an_answer_that_comes_after_the_default_was_committed_is_refused(storage: Storage, call: str) -> None:
    clock = ManualClock()
    await office(storage, clock=clock, **TERMS).run(["q"], run_id="r")
    clock.advance(HOUR)

    async def notice() -> None:
        await office(storage, clock=clock, **TERMS).run(run_id="r")

    with pytest.raises(AlreadyAnsweredError, match="by its deadline"):
        await meddled(storage, **{call: notice}).respond("r", {"q": "yes"})
    assert await outputs(storage) == ["q: 'no'"]


async def test_where_an_answer_does_not_fit_and_the_deadline_has_passed_the_default_stands(storage: Storage) -> None:
    def build() -> Workflow:
        return office(storage, int, clock=clock, deadline=HOUR, default=0)

    clock = ManualClock()
    await build().run(["q"], run_id="r")
    await storage.store.post("r", (await misfit(storage)))
    clock.advance(HOUR)
    result = await build().run(run_id="r")
    assert result.get_outputs() == ["q: 0"]
    assert await storage.store.inbox("r") == []


async def misfit(storage: Storage) -> Any:
    """An answer that a program without the extra for schemas may have let through."""
    (request,) = await storage.requests("r")
    path = f"request/{request.request_id}"
    head = await storage.get_latest(workflow_name="office")
    assert head is not None
    address = (await storage.store.manifest(head.checkpoint_id)).toc[path]
    return answer_command(storage.codec(), "q", "many", at="now", by="ann", expects=(path, address))


class Payer(Executor):
    """Asks before it pays, and pays what it then finds."""

    def __init__(self, amount: int) -> None:
        super().__init__("payer")
        self.amount = amount

    @handler
    async def ask(self, amount: int, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.request_info(f"pay {amount}?", bool, request_id="q", approves={"pay": amount})

    @response_handler
    async def pay(self, request: str, response: bool, ctx: WorkflowContext[Never, str]) -> None:  # noqa: FBT001 - an answer
        del request, response
        ctx.require_approved({"pay": self.amount})
        await ctx.yield_output(f"paid {self.amount}")


def paying(storage: Storage, amount: int) -> Workflow:
    return WorkflowBuilder(name="paying", start_executor=Payer(amount), checkpoint_storage=storage).build()


async def test_an_approval_of_something_else_than_what_is_asked_is_refused(storage: Storage) -> None:
    await paying(storage, 5).run(5, run_id="r")
    await paying(storage, 6).run(6, run_id="other")
    (request,), (other,) = await storage.requests("r"), await storage.requests("other")
    assert request.approves is not None
    assert other.approves is not None
    with pytest.raises(ApprovalMismatchError, match=f"it approves {other.approves}, this is {request.approves}"):
        await storage.respond("r", {"q": True}, approves={"q": other.approves})
    assert await storage.store.inbox("r") == []
    await storage.respond("r", {"q": True}, approves={"q": request.approves})
    assert (await paying(storage, 5).run(run_id="r")).get_outputs() == ["paid 5"]


async def test_a_digest_for_a_request_that_names_nothing_is_refused(storage: Storage) -> None:
    await office(storage).run(["q"], run_id="r")
    with pytest.raises(ApprovalMismatchError, match="this is something that was not named"):
        await storage.respond("r", {"q": "yes"}, approves={"q": "abc"})


async def test_an_approval_is_for_the_request_as_it_was_seen_though_it_is_asked_anew_meanwhile(
    storage: Storage,
) -> None:
    """The request is answered by somebody else and asked again, under the same id, about another amount."""
    await paying(storage, 5).run(5, run_id="r")
    (request,) = await storage.requests("r")
    assert request.approves is not None

    async def ask_again() -> None:
        workflow = paying(storage, 5)
        await workflow.run(run_id="r", responses={"q": True})
        await workflow.run(500)

    with pytest.raises(ApprovalMismatchError):
        await meddled(storage, post=ask_again).respond("r", {"q": True}, approves={"q": request.approves})
    assert await outputs(storage) == ["paid 5"]


async def test_if_what_would_be_done_has_changed_since_it_was_approved_the_run_stands_until_that_is_mended(
    storage: Storage,
) -> None:
    await paying(storage, 5).run(5, run_id="r")
    await storage.respond("r", {"q": True}, by="ann")
    for _ in range(2):
        with pytest.raises(ApprovalMismatchError, match="ask again for what is to be done now"):
            await paying(storage, 500).run(run_id="r")
    assert await outputs(storage) == []
    assert (await paying(storage, 5).run(run_id="r")).get_outputs() == ["paid 5"]
