"""The log of a run's events, replayed and followed on each store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.events.samples import LARGE, SHOP, Cart, Teller, numbered

from perdure.errors import EventsForgottenError, RunNotFoundError
from perdure.events import Undecoded
from perdure.records import Command, KeepLast, Retention
from perdure.storage import committed_events, storages as following

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from tests.conftest import Storage

    from perdure.events import WorkflowEvent
    from perdure.storage import Store


def read(store: Store, run_id: str = "r", **options: Any) -> AsyncGenerator[WorkflowEvent[Any]]:
    return committed_events(store, lambda: SHOP, run_id, **options)


async def waiting(work: Awaitable[Any]) -> asyncio.Task[Any]:
    """A task that has gone as far as it can without anything happening."""
    task = asyncio.ensure_future(work)
    for _ in range(200):
        await asyncio.sleep(0)
    return task


async def test_a_run_is_replayed_in_the_order_and_with_the_numbers_of_its_commits(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a", "b")
    await run.tell()
    await run.tell("c")
    assert await numbered(read(storage.store)) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("start", range(1, 8))
async def test_a_replay_begins_at_the_number_that_is_asked_for(storage: Storage, start: int) -> None:
    run = await Teller.start(storage.store)
    await run.tell(1, 2, 3)
    await run.tell(4, 5)
    expected = [(number, number) for number in range(start, 6)]
    assert await numbered(read(storage.store, from_seq=start)) == expected


@pytest.mark.parametrize("start", [0, -1])
async def test_there_is_no_event_before_the_first(storage: Storage, start: int) -> None:
    with pytest.raises(ValueError, match="numbered from 1 on"):
        await numbered(read(storage.store, from_seq=start))


async def test_an_unknown_run_is_an_error_that_names_it(storage: Storage) -> None:
    with pytest.raises(RunNotFoundError, match="'nowhere'"):
        await numbered(read(storage.store, "nowhere"))


async def test_a_run_that_has_told_nothing_has_an_empty_log(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell()
    assert await numbered(read(storage.store)) == []


@pytest.mark.parametrize("per_page", [1, 2, 3])
async def test_a_log_longer_than_a_page_is_read_to_its_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, per_page: int
) -> None:
    monkeypatch.setattr(following, "BATCHES_PER_PAGE", per_page)
    run = await Teller.start(storage.store)
    for number in range(0, 14, 2):
        await run.tell(number, number + 1)
    assert await numbered(read(storage.store)) == [(number + 1, number) for number in range(14)]
    assert await numbered(read(storage.store, from_seq=8)) == [(number + 1, number) for number in range(7, 14)]


async def test_large_data_is_read_from_its_blobs(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    cart = Cart("ada", ["x" * LARGE])
    await run.tell(cart)
    await storage.collect()
    assert await numbered(read(storage.store)) == [(1, cart)]


async def test_a_replay_ends_where_the_log_ended_when_it_began(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a", "b")
    events = read(storage.store)
    assert (await anext(events)).data == "a"
    await run.tell("c")
    assert await numbered(events) == [(2, "b")]


async def test_a_follower_is_told_what_is_committed_while_it_waits(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a")
    events = read(storage.store, follow=True)
    assert (await anext(events)).seq == 1
    for number in range(2, 6):
        pull = await waiting(anext(events))
        assert not pull.done()
        await run.tell(f"event {number}")
        event = await pull
        assert (event.seq, event.data) == (number, f"event {number}")
    await events.aclose()


async def test_a_follower_misses_nothing_and_hears_nothing_twice_beside_a_busy_run(storage: Storage) -> None:
    run = await Teller.start(storage.store)

    async def advance() -> None:
        for number in range(0, 90, 3):
            await run.tell(number, number + 1, number + 2)
            await asyncio.sleep(0)
        await run.tell("end", status="idle")

    async def follow(start: int) -> list[tuple[int | None, Any]]:
        return await numbered(read(storage.store, from_seq=start, follow=True, until_rest=True))

    logs = await asyncio.gather(*(follow(start) for start in (1, 2, 40)), advance())
    expected = [(number + 1, number) for number in range(90)] + [(91, "end")]
    assert logs[:3] == [expected, expected[1:], expected[39:]]


async def test_what_is_committed_between_the_reading_and_the_waiting_is_told(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a")
    events = read(storage.store, follow=True)
    await anext(events)
    await run.tell("b")
    await run.tell("c")
    assert [(await anext(events)).data for _ in range(2)] == ["b", "c"]
    await events.aclose()


async def test_a_follower_can_wait_for_a_run_to_begin(storage: Storage) -> None:
    pull = await waiting(numbered(read(storage.store, follow=True, until_rest=True)))
    assert not pull.done()
    run = await Teller.start(storage.store)
    await run.tell("a")
    await run.tell("b", status="idle")
    assert await pull == [(1, "a"), (2, "b")]


async def test_a_follower_can_ask_for_an_event_that_is_not_there_yet(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a")
    events = read(storage.store, from_seq=4, follow=True)
    pull = await waiting(anext(events))
    await run.tell("b", "c")
    await run.tell("d", "e")
    event = await pull
    assert (event.seq, event.data) == (4, "d")
    await events.aclose()


@pytest.mark.parametrize("status", ["idle", "waiting", "sleeping", "cancelled"])
async def test_following_until_rest_ends_with_the_commit_that_leaves_nothing_to_do(
    storage: Storage, status: Any
) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a")
    log = await waiting(numbered(read(storage.store, follow=True, until_rest=True)))
    assert not log.done()
    await run.tell("b", status=status)
    assert await log == [(1, "a"), (2, "b")]


async def test_following_until_rest_goes_on_while_a_command_waits_for_the_owner(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a", status="idle")
    await run.run.post(Command("next", "message", b"{}"))
    log = await waiting(numbered(read(storage.store, follow=True, until_rest=True)))
    assert not log.done()
    await run.run.commit(consumed=("next",))
    await run.tell("b", status="idle")
    assert await log == [(1, "a"), (2, "b")]


async def test_without_an_owner_a_command_that_waits_does_not_hold_up_the_end(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a", status="idle")
    await run.run.release()
    await run.run.post(Command("next", "message", b"{}"))
    assert await numbered(read(storage.store, follow=True, until_rest=True)) == [(1, "a")]


async def test_a_follower_that_is_cancelled_leaves_nothing_running(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    await run.tell("a")
    before = asyncio.all_tasks()
    log = await waiting(numbered(read(storage.store, follow=True)))
    log.cancel()
    with pytest.raises(asyncio.CancelledError):
        await log
    assert asyncio.all_tasks() == before


async def test_a_follower_of_a_run_that_is_removed_is_told_so(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    head = await run.tell("a")
    await run.run.release()
    events = read(storage.store, follow=True)
    await anext(events)
    pull = await waiting(anext(events))
    await storage.delete(head)
    with pytest.raises(RunNotFoundError, match="'r'"):
        await pull


async def test_a_fork_has_a_log_of_its_own_that_begins_with_one(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    head = await run.tell("a", "b")
    fork = await Teller.start(storage.store, "fork", parent=head)
    assert await numbered(read(storage.store, "fork")) == []
    await fork.tell("c")
    assert await numbered(read(storage.store, "fork")) == [(1, "c")]
    assert await numbered(read(storage.store)) == [(1, "a"), (2, "b")]


async def test_the_numbers_go_on_after_the_run_was_put_back(storage: Storage) -> None:
    run = await Teller.start(storage.store)
    first = await run.tell("a")
    await run.tell("b")
    await run.run.rewind(first)
    await run.tell("another b")
    assert await numbered(read(storage.store)) == [(1, "a"), (2, "b"), (3, "another b")]


async def test_events_that_were_pruned_are_an_error_that_says_where_the_log_begins(
    open_storage: Callable[..., Storage],
) -> None:
    async with open_storage(retention=Retention(events=KeepLast(2))) as storage:
        run = await Teller.start(storage.store)
        for number in range(1, 9, 2):
            await run.tell(number, number + 1)
        with pytest.raises(EventsForgottenError, match=r"event 2 of run 'r'.*oldest one left is 5") as caught:
            await numbered(read(storage.store, from_seq=2))
        assert (caught.value.asked, caught.value.first) == (2, 5)
        assert await numbered(read(storage.store, from_seq=6)) == [(6, 6), (7, 7), (8, 8)]


async def test_a_follower_that_is_too_slow_is_told_that_it_has_missed_events(
    open_storage: Callable[..., Storage],
) -> None:
    async with open_storage(retention=Retention(events=KeepLast(1))) as storage:
        run = await Teller.start(storage.store)
        await run.tell("a")
        events = read(storage.store, follow=True)
        await anext(events)
        await run.tell("b")
        await run.tell("c")
        with pytest.raises(EventsForgottenError, match="event 2 of run 'r'"):
            await anext(events)


async def test_blobs_that_went_with_their_events_are_no_damage(open_storage: Callable[..., Storage]) -> None:
    async with open_storage(retention=Retention(events=KeepLast(2))) as storage:
        run = await Teller.start(storage.store)
        await run.tell("a")
        await run.tell(Cart("ada", ["x" * LARGE]))
        events = read(storage.store)
        await anext(events)
        await run.tell("c")
        await run.tell("d")
        await storage.collect()
        with pytest.raises(EventsForgottenError, match="event 2 of run 'r'"):
            await anext(events)


async def test_a_storage_tells_the_events_of_a_run_with_what_it_trusts(open_storage: Callable[..., Storage]) -> None:
    async with open_storage() as storage:
        run = await Teller.start(storage.store)
        await run.tell(Cart("ada", []), "next")
        first, second = [event async for event in storage.events("r")]
        assert isinstance(first.data, Undecoded)
        assert (first.data.json["fields"], second.data) == ({"owner": "ada", "lines": []}, "next")


async def test_a_storage_that_is_told_to_trust_a_type_tells_its_values(open_storage: Callable[..., Storage]) -> None:
    async with open_storage(allowed_checkpoint_types=[Cart]) as storage:
        run = await Teller.start(storage.store)
        await run.tell(Cart("ada", []))
        await run.tell("end", status="idle")
        told = await numbered(storage.events("r", follow=True, until_rest=True))
        assert told == [(1, Cart("ada", [])), (2, "end")]
        assert await numbered(storage.events("r", from_seq=2)) == [(2, "end")]
