"""An inbox over crashes, restores and forks: nothing in it is lost, and nothing is taken in twice."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import pytest
from tests.conftest import opened
from tests.inbox.bureau import office
from tests.inbox.counter import counting, told
from tests.soak import MEMORY

from perdure.errors import AlreadyAnsweredError
from perdure.testing.crash import CrashError, CrashPoint, crashing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Storage

    from perdure.storage import StoreStorage

COUNTED = ["0", "1", "2", "3"]
Moment = Literal["before", "after"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", ["file", "sqlite", *MEMORY])
async def test_a_run_that_crashes_at_any_call_while_it_takes_messages_in_loses_none_and_doubles_none(
    kind: str, moment: Moment, tmp_path: Path
) -> None:
    for call in count():
        (tmp_path / str(call)).mkdir()
        storage = opened(kind, tmp_path / str(call))
        await counting(storage).run(0, run_id="r")
        await storage.send("r", 12)
        await storage.send("r", "hello", target="listener")
        await storage.send("r", 23)
        point = CrashPoint(call, moment)
        try:
            await counting(crashing(storage, point)).run(run_id="r")
        except CrashError:
            await counting(storage).run(run_id="r")
        assert await told(storage) == [*COUNTED, "12", "heard hello", "13", "23"]
        assert await storage.store.inbox("r") == []
        await storage.close()
        if not point.was_hit:
            assert {"inbox", "commit", "acquire"} <= set(point.calls)
            return


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_sender_that_crashes_at_any_call_and_sends_again_under_the_same_id_has_sent_once(
    open_storage: Callable[..., Storage], moment: Moment
) -> None:
    async with open_storage() as storage:
        await counting(storage).run(0, run_id="r0")
        for call in count():
            run_id = f"r{call}"
            await counting(storage).run(0, run_id=run_id)
            point = CrashPoint(call, moment)
            try:
                await crashing(storage, point).send(run_id, "hello", target="listener", message_id="m")
            except CrashError:
                await storage.send(run_id, "hello", target="listener", message_id="m")
            await counting(storage).run(run_id=run_id)
            assert await told(storage, run_id) == [*COUNTED, "heard hello"]
            if not point.was_hit:
                return


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_answer_is_taken_in_once_though_the_answerer_and_the_run_crash_at_any_call(
    open_storage: Callable[..., Storage], moment: Moment
) -> None:
    async def live(storage: StoreStorage, run_id: str) -> None:
        await office(storage).run(["q"], run_id=run_id)
        with suppress(AlreadyAnsweredError):
            await storage.respond(run_id, {"q": "yes"}, by="ann")
        await office(storage).run(run_id=run_id)

    async with open_storage() as storage:
        for call in count():
            point, run_id = CrashPoint(call, moment), f"r{call}"
            try:
                await live(crashing(storage, point), run_id)
            except CrashError:
                await live(storage, run_id)
            assert await told(storage, run_id) == ["q: 'yes'"]
            if not point.was_hit:
                assert "post" in point.calls
                return


async def test_what_is_restored_has_lost_the_answers_that_waited_and_kept_the_messages(storage: Storage) -> None:
    run = office(storage).start(["q"], run_id="r")
    await run.result()
    await storage.send("r", ["p"])
    await storage.respond("r", {"q": "yes"})
    head = (await run.checkpoints())[-1]
    await run.restore(head.checkpoint_id)
    assert [command.kind for command in await storage.store.inbox("r")] == ["message"]
    (request,) = await storage.requests("r")
    assert request.answered_by is None
    await storage.respond("r", {"q": "no"})
    await run.result()
    assert await told(storage) == ["q: 'no'"]
    assert [request.request_id for request in await storage.requests("r")] == ["p"]


async def test_a_fork_has_an_inbox_of_its_own(storage: Storage) -> None:
    run = office(storage).start(["q"], run_id="r")
    await run.result()
    await storage.respond("r", {"q": "yes"}, by="ann")
    await storage.send("r", ["p"])
    fork = await run.fork()
    await fork
    (mine,), (its,) = await storage.requests("r"), await storage.requests(fork.run_id)
    assert (mine.answered_by, its.answered_by) == ("ann", None)
    assert (its.run_id, its.request_id, its.data) == (fork.run_id, "q", mine.data)
    assert await storage.store.inbox(fork.run_id) == []
    await storage.respond(fork.run_id, {"q": "no"}, by="bob")
    await fork.result()
    await office(storage).run(run_id="r")
    await office(storage).run(run_id=fork.run_id)
    assert (await told(storage), await told(storage, fork.run_id)) == (["q: 'yes'"], ["q: 'no'"])
    assert [request.request_id for request in await storage.requests(fork.run_id)] == []


async def test_a_fork_that_has_committed_nothing_yet_is_asked_and_answered_by_its_own_name(storage: Storage) -> None:
    first = office(storage).start(["q"], run_id="r")
    await first.result()
    fork = await first.fork()
    forks: list[Any] = [record for record in await storage.store.runs() if record.run_id != "r"]
    assert [request.run_id for request in await storage.requests()] == ["r", *(record.run_id for record in forks)]
    await storage.respond(forks[0].run_id, {"q": "no"})
    await fork.result()
    assert await told(storage, forks[0].run_id) == ["q: 'no'"]
    (waiting,) = await storage.requests()
    assert (waiting.run_id, waiting.answered_by) == ("r", None)
