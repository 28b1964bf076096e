"""One request, one answer: whoever comes second learns who was first, whichever way the two came."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.inbox.bureau import Offer, Parcel, office
from tests.inbox.meddling import meddled

from perdure import AlreadyAnsweredError, FunctionExecutor, RunBusyError, WorkflowBuilder, WorkflowContext
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conftest import Storage

    from perdure.storage import StoreStorage


async def asked(storage: Storage, *ids: str, expects: Any = str) -> None:
    await office(storage, expects).run(list(ids or "q"), run_id="r")


async def outputs(storage: StoreStorage) -> list[Any]:
    """What the run has ever committed as its outputs."""
    return [event.data async for event in storage.events("r") if event.type == "output"]


async def test_the_same_answer_again_is_accepted_as_long_as_it_waits(storage: Storage) -> None:
    await asked(storage)
    for by in ("ann", "bob"):
        await storage.respond("r", {"q": "yes"}, by=by)
    (request,) = await storage.requests("r")
    assert request.answered_by == "ann"
    assert (await office(storage).run(run_id="r")).get_outputs() == ["q: 'yes'"]


async def test_the_same_answer_with_its_keys_in_another_order_is_the_same(storage: Storage) -> None:
    await asked(storage, expects=Parcel)
    await storage.respond("r", {"q": {"name": "x", "weight": 2}})
    await storage.respond("r", {"q": {"weight": 2, "name": "x"}})


async def test_true_is_another_answer_than_one(storage: Storage) -> None:
    await asked(storage, expects=int)
    await storage.respond("r", {"q": 1})
    with pytest.raises(AlreadyAnsweredError):
        await storage.respond("r", {"q": True})


async def test_another_answer_is_refused_and_told_who_answered_what_and_when(
    open_storage: Callable[..., Storage],
) -> None:
    clock = ManualClock()
    async with open_storage(clock=clock) as storage:
        await asked(storage)
        at = clock.now().isoformat()
        await storage.respond("r", {"q": "yes"}, by="ann")
        clock.advance(timedelta(hours=1))
        for _ in ("while it waits", "and after it was taken in"):
            with pytest.raises(AlreadyAnsweredError) as caught:
                await storage.respond("r", {"q": "no"}, by="bob")
            assert (caught.value.by, caught.value.what, caught.value.answered_at) == ("ann", "'yes'", at)
            assert str(caught.value) == (
                f"request 'q' of run 'r' was answered by ann at {at} with 'yes'; continue with run(run_id='r'), "
                "or ask again in a fork of the checkpoint"
            )
            await office(storage).run(run_id="r")
        assert await outputs(storage) == ["q: 'yes'"]


async def test_once_it_was_taken_in_the_same_answer_is_refused_too(storage: Storage) -> None:
    await asked(storage)
    await storage.respond("r", {"q": "yes"}, by="ann")
    await office(storage).run(run_id="r")
    with pytest.raises(AlreadyAnsweredError, match=r"was answered by ann at .* with 'yes'"):
        await storage.respond("r", {"q": "yes"}, by="ann")


async def test_a_long_answer_is_told_in_short(storage: Storage) -> None:
    await asked(storage)
    await storage.respond("r", {"q": "y" * 9000})
    with pytest.raises(AlreadyAnsweredError) as caught:
        await storage.respond("r", {"q": "n" * 9000})
    assert caught.value.what == f"'{'y' * 78}…"
    assert (await office(storage).run(run_id="r")).get_outputs() == [f"q: {'y' * 9000!r}"]


async def test_of_several_answers_none_stands_if_one_of_the_requests_has_another(storage: Storage) -> None:
    await asked(storage, "a", "b")
    await storage.respond("r", {"b": "yes"})
    with pytest.raises(AlreadyAnsweredError, match="'b'"):
        await storage.respond("r", {"a": "no", "b": "no"})
    assert [request.answered_by is None for request in await storage.requests("r")] == [True, False]


async def test_an_answer_in_a_call_that_already_waits_is_taken_in_once(storage: Storage) -> None:
    await asked(storage)
    await storage.respond("r", {"q": "yes"}, by="ann")
    result = await office(storage).run(run_id="r", responses={"q": "yes"})
    assert result.get_outputs() == ["q: 'yes'"]
    assert await storage.store.inbox("r") == []


async def test_an_answer_in_a_call_is_compared_as_the_type_that_was_asked_for(storage: Storage) -> None:
    await asked(storage, expects=Parcel)
    await storage.respond("r", {"q": {"name": "box", "weight": 1}})
    result = await office(storage, Parcel).run(run_id="r", responses={"q": Parcel(name="box")})
    assert result.get_outputs() == [f"q: {Parcel(name='box')!r}"]


async def test_another_answer_in_a_call_is_refused_by_the_one_that_waits(storage: Storage) -> None:
    await asked(storage)
    await storage.respond("r", {"q": "yes"}, by="ann")
    with pytest.raises(AlreadyAnsweredError, match=r"was answered by ann at .* with 'yes'"):
        await office(storage).run(run_id="r", responses={"q": "no"})
    assert (await office(storage).run(run_id="r")).get_outputs() == ["q: 'yes'"]


async def test_an_answer_in_a_call_waits_its_turn_behind_one_that_will_prove_not_to_fit(storage: Storage) -> None:
    await asked(storage, expects=Offer)
    await storage.respond("r", {"q": {"item": "tea", "price": "dear"}}, by="ann")
    good = {"q": {"item": "tea", "price": "2"}}
    with pytest.raises(AlreadyAnsweredError, match=r"by ann .* continue with run\(run_id='r'\)"):
        await office(storage, Offer).run(run_id="r", responses=good)
    await office(storage, Offer).run(run_id="r")
    assert len((await office(storage, Offer).run(run_id="r", responses=good)).get_outputs()) == 1


async def answer_by_store(storage: StoreStorage, answer: str) -> None:
    await storage.respond("r", {"q": answer}, by=f"who says {answer}")


async def answer_by_call(storage: StoreStorage, answer: str) -> None:
    await office(storage).run(run_id="r", responses={"q": answer})


async def answer_by_handle(storage: StoreStorage, answer: str) -> None:
    run = office(storage).start(run_id="r")
    await run.result()
    await run.respond({"q": answer})
    await run.result()


WAYS = [answer_by_store, answer_by_call, answer_by_handle]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["post", "commit", "claim", "inbox", "run"])
async def test_an_answer_that_comes_while_another_is_being_given_stands_alone(
    storage: Storage, way: Callable[[StoreStorage, str], Awaitable[None]], call: str
) -> None:
    """Just before some call to the store, somebody else gives another answer."""
    await asked(storage)
    was_first: list[str] = []

    async def meddle() -> None:
        await answer_by_store(storage, "first")
        was_first.append("first")

    refusals: list[AlreadyAnsweredError] = []
    try:
        await way(meddled(storage, **{call: meddle}), "second")
    except AlreadyAnsweredError as error:
        refusals.append(error)
    assert [(error.by, error.what) for error in refusals] == [("who says first", "'first'")] * len(was_first)
    await office(storage).run(run_id="r")
    assert await outputs(storage) == [f"q: {'first' if was_first else 'second'!r}"]
    assert await storage.store.inbox("r") == []


@pytest.mark.parametrize("call", ["post", "inbox", "manifest", "run"])
async def test_an_answer_by_the_store_that_comes_after_the_run_took_another_in_is_refused(
    storage: Storage, call: str
) -> None:
    await asked(storage)

    async def meddle() -> None:
        await answer_by_call(storage, "first")

    with pytest.raises(AlreadyAnsweredError, match=r"was answered by process .* with 'first'"):
        await meddled(storage, **{call: meddle}).respond("r", {"q": "second"})
    assert await outputs(storage) == ["q: 'first'"]


async def test_of_many_that_answer_at_once_in_one_process_one_is_heard(storage: Storage) -> None:
    await asked(storage)
    works = [way(storage, f"{way.__name__} {number}") for number in range(4) for way in WAYS]
    refused = [error for error in await asyncio.gather(*works, return_exceptions=True) if error is not None]
    assert len(refused) < len(works)
    assert {type(error) for error in refused} <= {AlreadyAnsweredError, RunBusyError}
    await office(storage).run(run_id="r")
    assert len(await outputs(storage)) == 1


async def test_an_answer_is_taken_in_between_two_supersteps_while_another_task_drives_the_run(storage: Storage) -> None:
    at_work, may_go_on = asyncio.Event(), asyncio.Event()

    async def work(number: int, ctx: WorkflowContext[int, str]) -> None:
        if number == 1:
            at_work.set()
            await may_go_on.wait()
        if number < 3:
            await ctx.send_message(number + 1)

    async def start(texts: list[str], ctx: WorkflowContext[list[str] | int]) -> None:
        await ctx.send_message(texts)
        await ctx.send_message(0)

    both = FunctionExecutor(start, "start")
    worker = FunctionExecutor(work, "worker")
    official = office(None).executors["official"]
    builder = WorkflowBuilder(name="office", start_executor=both, checkpoint_storage=storage)
    workflow = builder.add_edge(both, official).add_edge(both, worker).add_edge(worker, worker).build()
    run = await workflow.start(["q"], run_id="r")
    reading = asyncio.ensure_future(run.result())
    await at_work.wait()
    await run.respond({"q": "yes"})
    with pytest.raises(AlreadyAnsweredError):
        await run.respond({"q": "no"})
    may_go_on.set()
    assert (await reading).get_outputs() == ["q: 'yes'"]
    assert await storage.store.inbox("r") == []
