"""Messages from outside: to an executor of a run that is under way, or as its next turn."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.inbox.bureau import SixMethods, office, warnings
from tests.inbox.counter import counting, held, told
from tests.inbox.meddling import meddled

from perdure import Undecoded, UndeliveredError, UndeliveredMessage, WorkflowException, WorkflowRunState
from perdure.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Storage


@dataclass
class Note:
    """A message of a type that only one program knows."""

    text: str


async def test_a_message_to_an_executor_is_taken_in_between_two_supersteps_once(storage: Storage) -> None:
    counter = held()
    run = await counting(storage, counter).start(0, run_id="r")
    reading = asyncio.ensure_future(run.result())
    await counter.is_at_one.wait()
    await run.send("hello", target="listener")
    counter.may_go_on.set()
    assert (await reading).get_outputs() == ["0", "1", "2", "heard hello", "3"]
    assert await told(storage) == ["0", "1", "2", "heard hello", "3"]
    assert await storage.store.inbox("r") == []


async def test_a_message_of_another_process_is_taken_in_while_the_run_is_driven(
    open_on_disk: Callable[[], Any], stranger: Callable[..., Any]
) -> None:
    async with open_on_disk() as storage:
        counter = held()
        running = asyncio.ensure_future(counting(storage, counter).run(0, run_id="r"))
        await counter.is_at_one.wait()
        await asyncio.to_thread(stranger, storage, "send", "r", json.dumps("hello"), "listener")
        counter.may_go_on.set()
        await running
        assert await told(storage) == ["0", "1", "2", "heard hello", "3"]


async def test_a_message_to_a_run_that_nobody_drives_waits_until_somebody_does(storage: Storage) -> None:
    await counting(storage).run(0, run_id="r")
    await storage.send("r", "hello", target="listener")
    assert len(await storage.store.inbox("r")) == 1
    await counting(storage).run(run_id="r")
    await counting(storage).run(run_id="r")
    assert await told(storage) == ["0", "1", "2", "3", "heard hello"]


async def test_a_handle_sends_to_an_idle_run_and_goes_on_when_it_is_read(storage: Storage) -> None:
    run = counting(storage).start(0, run_id="r")
    await run.result()
    await run.send("hello", target="listener")
    await run.result()
    assert await told(storage) == ["0", "1", "2", "3", "heard hello"]


@pytest.mark.parametrize(
    ("message", "target", "reason"),
    [
        ("hello", "nobody", "there are only counter, listener"),
        (5, "listener", "it takes str, not a int"),
        ("hello", None, "it takes int, not a str"),
        (Note("hello"), "listener", "it takes str, not a Note"),
    ],
)
async def test_a_message_that_can_not_be_delivered_is_told_with_the_message_and_holds_up_nothing(
    open_storage: Callable[..., Storage], message: Any, target: str | None, reason: str
) -> None:
    async with open_storage(allowed_checkpoint_types=[Note]) as storage:
        await counting(storage).run(0, run_id="r")
        await storage.send("r", message, target=target, by="ann")
        result = await counting(storage).run(run_id="r")
        (undelivered,) = [event.data for event in result if event.type == "undelivered"]
        assert undelivered == UndeliveredMessage(message, "ann", target or "counter", reason)
        assert [event.data async for event in storage.events("r") if event.type == "undelivered"] == [undelivered]
        assert await storage.store.inbox("r") == []
        await storage.send("r", 10)
        await counting(storage).run(run_id="r")
        assert await told(storage) == ["0", "1", "2", "3", "10", "11", "12", "13"]


async def test_a_strict_workflow_fails_of_a_message_that_can_not_be_delivered_once(storage: Storage) -> None:
    await counting(storage).run(0, run_id="r")
    await storage.send("r", 5, target="listener", by="ann")
    with pytest.raises(
        UndeliveredError, match="a message of ann to executor 'listener' was not delivered: it takes str"
    ):
        await counting(storage, undelivered="error").run(run_id="r")
    result = await counting(storage, undelivered="error").run(run_id="r")
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_message_that_a_later_program_can_not_read_is_in_the_log_as_plain_data(
    open_on_disk: Callable[..., Storage],
) -> None:
    async with open_on_disk(allowed_checkpoint_types=[Note]) as storage:
        await counting(storage).run(0, run_id="r")
        await storage.send("r", Note("hello"), target="listener")
    async with open_on_disk() as storage:
        await counting(storage).run(run_id="r")
        (data,) = [event.data async for event in storage.events("r") if event.type == "undelivered"]
        assert isinstance(data, Undecoded)
        assert "hello" in str(data.json)
        assert await storage.store.inbox("r") == []


async def test_a_message_that_could_not_be_read_back_is_refused_when_it_is_sent(storage: Storage) -> None:
    await counting(storage).run(0, run_id="r")
    with pytest.raises(EncodeError):
        await storage.send("r", Note("hello"))


async def test_messages_for_the_next_turn_wait_until_the_run_is_idle_and_come_in_order(storage: Storage) -> None:
    counter = held()
    running = asyncio.ensure_future(counting(storage, counter).run(0, run_id="r"))
    await counter.is_at_one.wait()
    for message in (13, 22, 33):
        await storage.send("r", message)
    await storage.send("r", "hello", target="listener")
    counter.may_go_on.set()
    result = await running
    expected = ["0", "1", "2", "heard hello", "3", "13", "22", "23", "33"]
    assert result.get_outputs() == expected
    assert await told(storage) == expected
    assert [event.type async for event in storage.events("r")].count("started") == 4


async def test_a_message_for_the_next_turn_does_not_wait_for_what_somebody_is_asked(storage: Storage) -> None:
    await office(storage).run(["tea", "milk"], run_id="r")
    await storage.send("r", ["bread"])
    asked = await office(storage).run(run_id="r")
    assert {event.request_id for event in asked.get_request_info_events()} == {"tea", "milk", "bread"}
    assert await storage.store.inbox("r") == []
    result = await office(storage).run(run_id="r", responses={"milk": "yes"})
    assert result.get_outputs() == ["milk: 'yes'"]


async def test_a_handle_that_is_read_meanwhile_gives_the_outputs_of_all_turns(storage: Storage) -> None:
    counter = held()
    run = await counting(storage, counter).start(0, run_id="r")
    reading = asyncio.ensure_future(run.result())
    await counter.is_at_one.wait()
    await storage.send("r", 13)
    counter.may_go_on.set()
    assert (await reading).get_outputs() == ["0", "1", "2", "3", "13"]


async def test_what_a_handle_is_given_while_its_run_is_under_way_is_durable_at_once(storage: Storage) -> None:
    run = await counting(storage).start(0, run_id="r")
    await run.send(12)
    await run.send("hello", target="listener")
    assert [command.kind for command in await storage.store.inbox("r")] == ["message", "message"]
    assert (await run.result()).get_outputs() == await told(storage)
    assert sorted(await told(storage)) == ["0", "1", "12", "13", "2", "3", "heard hello"]


async def test_a_message_sent_twice_under_one_id_while_it_waits_is_one(storage: Storage) -> None:
    await counting(storage).run(0, run_id="r")
    for text in ("hello", "hello", "something else"):
        assert await storage.send("r", text, target="listener", message_id="m") == "m"
    await counting(storage).run(run_id="r")
    assert await told(storage) == ["0", "1", "2", "3", "heard hello"]


async def test_a_message_that_is_sent_again_after_it_was_taken_in_is_no_news(storage: Storage) -> None:
    await counting(storage).run(0, run_id="r")
    for target in ("listener", None):
        for message in ("hello", "something else") if target else (12, 3):
            await storage.send("r", message, target=target, message_id=f"to {target}")
            await counting(storage).run(run_id="r")
    assert await told(storage) == ["0", "1", "2", "3", "heard hello", "12", "13"]
    assert await storage.store.inbox("r") == []


async def test_the_same_message_under_two_ids_is_two(storage: Storage) -> None:
    await counting(storage).run(0, run_id="r")
    ids = {await storage.send("r", "hello", target="listener") for _ in range(2)}
    assert len(ids) == 2
    await counting(storage).run(run_id="r")
    assert await told(storage) == ["0", "1", "2", "3", "heard hello", "heard hello"]


async def test_a_large_message_outlasts_a_collection_while_it_waits_and_when_it_was_taken_in(storage: Storage) -> None:
    text = "x" * 20000
    await counting(storage).run(0, run_id="r")
    await storage.send("r", text, target="listener")
    await storage.collect()

    async def collect() -> None:
        await storage.collect()

    await counting(meddled(storage, lease=collect, commit=collect)).run(run_id="r")
    assert (await told(storage))[-1] == f"heard {text}"


async def test_a_handle_refuses_what_can_not_be_delivered_at_once(storage: Storage) -> None:
    run = await counting(storage).start(0, run_id="r")
    with pytest.raises(
        ValueError, match="there is no executor 'nobody' to send to; the executors are counter, listener"
    ):
        await run.send("hello", target="nobody")
    with pytest.raises(TypeError, match="executor 'listener' has no handler for a int"):
        await run.send(5, target="listener")
    await run.result()
    assert await storage.store.inbox("r") == []


async def test_a_storage_with_six_methods_says_that_it_has_no_inbox(storage: Storage) -> None:
    run = await counting(SixMethods(storage)).start(0, run_id="r")
    with pytest.raises(WorkflowException, match="needs a checkpoint_storage of perdure"):
        await run.send("hello", target="listener")
    await run.send(10)
    assert (await run.result()).get_outputs() == ["0", "1", "2", "3", "10", "11", "12", "13"]


async def test_a_message_whose_commit_fails_is_not_taken_in_again_by_a_run_that_goes_on_without(
    storage: Storage,
) -> None:
    await counting(storage).run(0, run_id="r")
    await storage.send("r", "hello", target="listener")

    async def fail() -> None:
        raise OSError("the disk is full")

    frail = meddled(storage, commit=fail)
    result = await counting(frail, on_checkpoint_error="warn").run(run_id="r")
    assert result.get_outputs()[4:] == ["heard hello"]
    assert len(warnings(result)) == 1
    assert await storage.store.inbox("r") == []
    await storage.send("r", "again", target="listener")
    await counting(storage).run(run_id="r")
    assert await told(storage) == ["0", "1", "2", "3", "heard hello", "heard again"]
