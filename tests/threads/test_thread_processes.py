"""Several real processes on one session store: who gets which number, and what is left of those that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from tests import warm
from tests.soak import IS_SOAK
from tests.threads.session_kinds import LASTING, ON_DISK, opened, place
from tests.threads.test_session_stores import said, texts

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Self

APPENDER = Path(__file__).with_name("appender.py")
SOME_LASTING = LASTING if IS_SOAK else LASTING[-1:]
SOME_ON_DISK = ON_DISK if IS_SOAK else ON_DISK[-1:]
"""One store for tests that start many processes; the soak uses all."""


class Appender:
    """A process with the session store open."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._process = warm.start(str(APPENDER), kind, *place(kind, directory), stdin=PIPE, stdout=PIPE)

    def tell(self, do: str, **arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, do: str, **arguments: object) -> Any:
        self.tell(do, **arguments)
        return self.hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Let it come to its end by itself; its exit code."""
        self._process.communicate(timeout=30)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Start(Protocol):
    """Starts processes on the store of the test, and waits until they listen."""

    def __call__(self, kind: str, number: int = 1) -> list[Appender]: ...


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    with contextlib.ExitStack() as children:

        def started(kind: str, number: int = 1) -> list[Appender]:
            processes = [children.enter_context(Appender(kind, tmp_path)) for _ in range(number)]
            assert [process.hear() for process in processes] == ["ready"] * number
            return processes

        yield started


@pytest.mark.parametrize("kind", SOME_LASTING)
async def test_parallel_appends_at_an_expected_number_have_one_winner_and_others_all_succeed(
    kind: str, start: Start, tmp_path: Path
) -> None:
    processes = start(kind, 8)
    async with opened(kind, tmp_path) as sessions:
        for expected in range(3):
            for number, process in enumerate(processes):
                process.tell("append", texts=[f"{number}"], expected=expected)
            answers = [process.hear() for process in processes]
            (winner,) = (number for number, answer in enumerate(answers) if answer == {"ok": expected + 1})
            assert answers.count({"error": "ThreadConflictError"}) == 7
            assert (await texts(sessions))[expected:] == [f"{winner}"]
        for _ in range(3):
            for number, process in enumerate(processes):
                process.tell("append", texts=[f"{number}", f"{number} too"])
        told = [[process.hear()["ok"] for _ in range(3)] for process in processes]
        found = await texts(sessions)
    assert len(found) == 3 + 8 * 3 * 2
    for number, ends in enumerate(told):
        assert [found[end - 2 : end] for end in ends] == [[f"{number}", f"{number} too"]] * 3


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_step_that_is_done_again_after_a_kill_appends_nothing_twice(
    kind: str, start: Start, tmp_path: Path
) -> None:
    (first,) = start(kind)
    assert first.ask("append", texts=["before"]) == {"ok": 1}
    # It has appended, and is killed before it can note so.
    assert first.ask("append", texts=["a", "b"], key="step", since=1) == {"ok": 3}
    first.kill()
    second, third = start(kind, 2)
    assert third.ask("append", texts=["meanwhile"]) == {"ok": 4}
    assert second.ask("append", texts=["a", "b"], key="step", since=1) == {"ok": 3}
    async with opened(kind, tmp_path) as sessions:
        assert await texts(sessions) == ["before", "a", "b", "meanwhile"]


@pytest.mark.parametrize("kind", SOME_ON_DISK)
async def test_killed_appenders_lose_and_repeat_nothing(kind: str, start: Start, tmp_path: Path) -> None:
    told: dict[str, int] = {}
    for heard in (1, 4, 9):
        processes = start(kind, 2)
        for who, process in enumerate(processes):
            # Each life begins again from the first.
            process.tell("append on and on", **{"as": f"p{who}"})
        for process in processes:
            for _ in range(heard):
                who, number, sequence = process.hear()
                told[f"{who} {number}"] = sequence
            process.kill()
    async with opened(kind, tmp_path) as sessions:
        events = await sessions.read("s", "t")
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert set(Counter(event.message.text for event in events).values()) == {1}
    assert {text: events[sequence - 1].message.text for text, sequence in told.items()} == {text: text for text in told}


@pytest.mark.parametrize("kind", ON_DISK)
async def test_forks_of_killed_processes_are_whole_or_not_there(kind: str, start: Start, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sessions:
        await sessions.append("s", "t", said("a"))
        last = -1
        for heard in (1, 3):
            (process,) = start(kind)
            process.tell("fork on and on")
            last = max(last, *(process.hear() for _ in range(heard)))
            process.kill()
        forks = [thread for thread in await sessions.threads("s") if thread.forked_from]
        assert len(forks) > last
        for thread in forks:
            assert await texts(sessions, thread.thread_id) in (["a"], ["a", thread.thread_id[1:]])
        # Whoever does it again gets the same.
        (process,) = start(kind)
        assert process.ask("fork", to="f0") == {"ok": 2}


async def test_a_process_that_holds_a_thread_and_does_nothing_is_taken_over(start: Start, tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as sessions:
        await sessions.append("s", "t", said("a"))
        (process,) = start("sqlite")
        assert process.ask("hold") == {"ok": None}
        assert await sessions.append("s", "t", said("b"), expected=1) == 2


@pytest.mark.parametrize("kind", LASTING)
def test_a_store_outlives_event_loops_and_holds_up_no_exit(kind: str, start: Start, tmp_path: Path) -> None:
    (process,) = start(kind)
    # Each order has an event loop of its own, and nobody closes the store.
    assert [process.ask("append", texts=["a"]) for _ in range(2)] == [{"ok": 1}, {"ok": 2}]
    assert process.end() == 0
    sessions = opened(kind, tmp_path)
    assert asyncio.run(texts(sessions)) == ["a", "a"]
    assert asyncio.run(sessions.append("s", "t", said("b"))) == 3
    asyncio.run(sessions.close())
    assert asyncio.run(texts(sessions)) == ["a", "a", "b"]
    asyncio.run(sessions.close())
