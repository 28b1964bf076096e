"""Forks of threads: where they begin, what they share, and what rests on what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.threads.session_kinds import ON_DISK, opened
from tests.threads.test_session_stores import said, texts

from perdure.agents import Message
from perdure.threads import ForkPoint, ThreadExistsError, ThreadInUseError, ThreadNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.threads import SessionStore


async def test_fork_starts_with_the_messages_of_its_thread_and_diverges(sessions: SessionStore) -> None:
    await sessions.append("s", "t", said("a", "b"))
    await sessions.append("s", "t", said("c"))
    fork = await sessions.fork("s", "t", "f", from_message=1)
    assert (fork.thread_id, fork.sequence, fork.forked_from) == ("f", 1, ForkPoint("t", 1))
    assert await texts(sessions, "f") == ["a"]
    assert await sessions.append("s", "f", said("x", "y"), expected=1) == 3
    assert await sessions.append("s", "t", said("d"), expected=3) == 4
    assert await texts(sessions, "f") == ["a", "x", "y"]
    assert await texts(sessions) == ["a", "b", "c", "d"]
    assert [event.sequence for event in await sessions.read("s", "f")] == [1, 2, 3]
    assert await texts(sessions, "f", after=1) == ["x", "y"]
    assert await texts(sessions, "f", until=1) == ["a"]
    assert await texts(sessions, "f", after=0, until=2) == ["a", "x"]


async def test_a_fork_of_a_fork_begins_with_both(sessions: SessionStore) -> None:
    await sessions.append("s", "t", said("a", "b", "c"))
    await sessions.fork("s", "t", "f", from_message=2)
    await sessions.append("s", "f", said("x", "y"))
    await sessions.fork("s", "f", "g", from_message=3)
    await sessions.append("s", "g", said("z"))
    assert await texts(sessions, "g") == ["a", "b", "x", "z"]
    # Also from before the point where the first one was forked itself.
    early = await sessions.fork("s", "f", "h", from_message=1)
    assert early.forked_from == ForkPoint("f", 1)
    assert await sessions.append("s", "h", said("q")) == 2
    assert await texts(sessions, "h") == ["a", "q"]
    assert [thread.thread_id for thread in await sessions.threads("s")] == ["t", "f", "g", "h"]


@pytest.mark.parametrize("wrong", [True, False, 1.0, b"id"])
async def test_fork_at_an_invalid_message_is_refused(sessions: SessionStore, wrong: Any) -> None:
    await sessions.append("s", "t", said("a"))
    with pytest.raises(TypeError, match="give the id of a message, its sequence number"):
        await sessions.fork("s", "t", "f", from_message=wrong)
    assert [thread.thread_id for thread in await sessions.threads("s")] == ["t"]


async def test_a_fork_begins_at_a_message_by_its_id(sessions: SessionStore) -> None:
    await sessions.append("s", "t", [Message("user", ["a"], message_id="mine"), *said("b", "c")])
    events = await sessions.read("s", "t")
    assert (await sessions.fork("s", "t", "f", from_message="mine")).sequence == 1
    assert (await sessions.fork("s", "t", "g", from_message=events[1].message_id)).sequence == 2
    # What a fork has inherited has the same ids.
    assert (await sessions.fork("s", "g", "h", from_message="mine")).forked_from == ForkPoint("g", 1)
    assert await texts(sessions, "h") == ["a"]


async def test_a_fork_begins_at_the_end_or_before_all(sessions: SessionStore) -> None:
    await sessions.append("s", "t", said("a", "b"))
    assert (await sessions.fork("s", "t", "end")).forked_from == ForkPoint("t", 2)
    assert (await sessions.fork("s", "t", "empty", from_message=0)).sequence == 0
    assert await sessions.append("s", "empty", said("x"), expected=0) == 1
    assert await texts(sessions, "empty") == ["x"]


async def test_repeated_fork_returns_the_existing_one(sessions: SessionStore) -> None:
    await sessions.append("s", "t", said("a", "b"))
    await sessions.fork("s", "t", "f", from_message=1)
    await sessions.append("s", "f", said("x"), tags={"by": "f"})
    again = await sessions.fork("s", "t", "f", from_message=1)
    assert again == await sessions.thread("s", "f")
    assert (again.sequence, again.tags) == (2, {"by": "f"})
    forks = await asyncio.gather(*(sessions.fork("s", "t", "g") for _ in range(4)))
    assert len({fork.created_at for fork in forks}) == 1


async def test_another_thread_of_that_name_is_not_replaced(sessions: SessionStore) -> None:
    await sessions.append("s", "t", said("a", "b"))
    await sessions.append("s", "u", said("a", "b"))
    await sessions.fork("s", "t", "f", from_message=1)
    with pytest.raises(ThreadExistsError, match="is a fork of 't' at 1, not at 2"):
        await sessions.fork("s", "t", "f")
    with pytest.raises(ThreadExistsError, match="is a fork of 't', not of 'u'"):
        await sessions.fork("s", "u", "f", from_message=1)
    with pytest.raises(ThreadExistsError, match="is no fork"):
        await sessions.fork("s", "t", "u")
    with pytest.raises(ThreadExistsError, match="itself"):
        await sessions.fork("s", "t", "t")
    assert await texts(sessions, "f") == ["a"]


@pytest.mark.parametrize("point", [3, -1, "nobody's"])
async def test_there_is_no_fork_from_where_nothing_is(sessions: SessionStore, point: str | int) -> None:
    with pytest.raises(ThreadNotFoundError, match="there is no thread 't'"):
        await sessions.fork("s", "t", "f")
    await sessions.append("s", "t", said("a", "b"))
    with pytest.raises(ThreadNotFoundError, match="has no message"):
        await sessions.fork("s", "t", "f", from_message=point)
    assert await sessions.thread("s", "f") is None
    assert await sessions.append("s", "f", said("x"), expected=0) == 1


async def test_two_who_fork_each_others_threads_do_not_wait_for_each_other(sessions: SessionStore) -> None:
    for thread_id in ("t", "u"):
        await sessions.append("s", thread_id, said("a"))
    crossed = [sessions.fork("s", "t", "u"), sessions.fork("s", "u", "t")]
    ends = await asyncio.gather(*crossed, return_exceptions=True)
    assert [type(end) for end in ends] == [ThreadExistsError, ThreadExistsError]


async def test_thread_with_forks_can_not_be_deleted(sessions: SessionStore) -> None:
    await sessions.append("s", "t", said("a", "b"))
    await sessions.fork("s", "t", "f", from_message=1)
    await sessions.fork("s", "f", "g")
    await sessions.append("s", "f", said("x"))
    with pytest.raises(ThreadInUseError, match="'f' was forked from it") as caught:
        await sessions.delete("s", "t")
    assert caught.value.forks == ("f",)
    with pytest.raises(ThreadInUseError):
        await sessions.delete("s", "f")
    assert await texts(sessions, "f") == ["a", "x"]
    for thread_id in ("g", "f", "t"):
        assert await sessions.delete("s", thread_id) is True
    assert await sessions.sessions() == []


async def test_a_fork_never_loses_what_it_begins_with_to_a_delete(sessions: SessionStore) -> None:
    for number in range(4):
        await sessions.append("s", f"t{number}", said("a"))
        await asyncio.gather(
            sessions.delete("s", f"t{number}"), sessions.fork("s", f"t{number}", f"f{number}"), return_exceptions=True
        )
        there = await sessions.thread("s", f"f{number}")
        assert await texts(sessions, f"f{number}") == ([] if there is None else ["a"])


async def test_a_key_that_a_fork_has_inherited_is_done_there_too(sessions: SessionStore) -> None:
    await sessions.append("s", "t", said("a"), key="greet")
    await sessions.fork("s", "t", "f")
    assert await sessions.append("s", "f", said("a"), key="greet") == 1
    assert await sessions.append("s", "f", said("b"), key="greet", since=1) == 2


@pytest.mark.parametrize("kind", ON_DISK)
async def test_fork_costs_only_what_it_adds(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sessions:
        # Each of these is too short to be a part, which would be shared anyway.
        await sessions.append("s", "t", said(*(f"{number} {'x' * 400}" for number in range(1000))))
        before = _size(tmp_path)
        for number in range(10):
            await sessions.fork("s", "t", f"f{number}")
        assert _size(tmp_path) - before < 2_000_000
        assert await texts(sessions, "f9", after=999) == [f"999 {'x' * 400}"]


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
