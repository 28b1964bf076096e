"""What every session store does: threads that grow, are read, and are told apart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from perdure.agents import Content, Message
from perdure.testing.clock import ManualClock
from perdure.threads import InMemorySessionStore, ThreadConflictError, ThreadMessageError, ThreadNameError

if TYPE_CHECKING:
    from perdure.threads import SessionStore


def said(*texts: str) -> list[Message]:
    return [Message("user", [text]) for text in texts]


async def texts(sessions: SessionStore, thread_id: str = "t", **bounds: int) -> list[str]:
    return [event.message.text for event in await sessions.read("s", thread_id, **bounds)]


class TestAppending:
    async def test_messages_are_numbered_from_one_on(self, sessions: SessionStore) -> None:
        assert await sessions.append("s", "t", said("a", "b")) == 2
        assert await sessions.append("s", "t", said("c")[0]) == 3
        events = await sessions.read("s", "t")
        assert [(event.sequence, event.message.text) for event in events] == [(1, "a"), (2, "b"), (3, "c")]
        assert await sessions.messages("s", "t") == said("a", "b", "c")
        assert await sessions.messages("s", "t", until=2) == said("a", "b")

    async def test_any_stretch_can_be_read(self, sessions: SessionStore) -> None:
        await sessions.append("s", "t", said("a", "b", "c"))
        await sessions.append("s", "t", said("d", "e"))
        assert await texts(sessions, after=1) == ["b", "c", "d", "e"]
        assert await texts(sessions, after=1, until=4) == ["b", "c", "d"]
        assert await texts(sessions, after=3, until=3) == []
        assert await texts(sessions, after=5) == []
        assert await texts(sessions, until=0) == []

    async def test_an_append_at_another_number_writes_nothing(self, sessions: SessionStore) -> None:
        with pytest.raises(ThreadConflictError, match="'t' of session 's' is at 0, not at 1"):
            await sessions.append("s", "t", said("too early"), expected=1)
        assert await sessions.thread("s", "t") is None
        assert await sessions.sessions() == []
        assert await sessions.append("s", "t", said("a", "b"), expected=0) == 2
        for expected in (0, 1, 3):
            with pytest.raises(ThreadConflictError) as caught:
                await sessions.append("s", "t", said("lost"), expected=expected)
            error = caught.value
            assert (error.session_id, error.thread_id, error.expected, error.sequence) == ("s", "t", expected, 2)
        assert await sessions.append("s", "t", said("c"), expected=2) == 3
        assert await texts(sessions) == ["a", "b", "c"]

    async def test_one_of_many_appends_at_the_same_number_succeeds(self, sessions: SessionStore) -> None:
        tries = [sessions.append("s", "t", said(f"{number}"), expected=0) for number in range(5)]
        ends = await asyncio.gather(*tries, return_exceptions=True)
        assert [end for end in ends if not isinstance(end, ThreadConflictError)] == [1]
        assert len(await texts(sessions)) == 1

    async def test_all_who_expect_nothing_get_in(self, sessions: SessionStore) -> None:
        numbers = await asyncio.gather(*(sessions.append("s", "t", said(f"{number}")) for number in range(8)))
        assert sorted(numbers) == list(range(1, 9))
        found = await texts(sessions)
        assert [found[number - 1] for number in numbers] == [f"{number}" for number in range(8)]

    async def test_an_append_with_a_key_is_done_once(self, sessions: SessionStore) -> None:
        assert await sessions.append("s", "t", said("a", "b"), key="first", expected=0) == 2
        assert await sessions.append("s", "t", said("c"), key="second") == 3
        # The key counts before the number does: who does it again expects what was there then.
        assert await sessions.append("s", "t", said("a", "b"), key="first", expected=0) == 2
        assert await sessions.append("s", "t", said("c"), key="second", since=2) == 3
        assert await texts(sessions) == ["a", "b", "c"]
        assert [event.key for event in await sessions.read("s", "t")] == ["first", "first", "second"]

    async def test_a_key_is_looked_for_behind_a_number_only(self, sessions: SessionStore) -> None:
        await sessions.append("s", "t", said("a"), key="again")
        assert await sessions.append("s", "t", said("b"), key="again", since=1) == 2
        assert await sessions.append("s", "t", said("c"), key="again") == 2
        assert await texts(sessions) == ["a", "b"]

    async def test_appending_nothing_returns_the_last_number(self, sessions: SessionStore) -> None:
        assert await sessions.append("s", "t", []) == 0
        assert await sessions.thread("s", "t") is None
        await sessions.append("s", "t", said("a"))
        assert await sessions.append("s", "t", [], expected=1) == 1
        with pytest.raises(ThreadConflictError):
            await sessions.append("s", "t", [], expected=0)

    async def test_cancelled_append_leaves_the_thread_whole_and_free(self, sessions: SessionStore) -> None:
        for number in range(12):
            appending = asyncio.create_task(sessions.append("s", "t", said(f"{number}"), key=f"{number}"))
            for _ in range(number):
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait([appending])
            assert await sessions.append("s", "t", said(f"{number}"), key=f"{number}") == number + 1
        assert await texts(sessions) == [f"{number}" for number in range(12)]

    async def test_event_loops_of_several_threads_share_a_store(self, sessions: SessionStore) -> None:
        def work(name: str) -> list[int]:
            return [asyncio.run(sessions.append("s", "t", said(name))) for _ in range(4)]

        numbers = await asyncio.gather(*(asyncio.to_thread(work, name) for name in "abcd"))
        found = await texts(sessions)
        assert sorted(number for mine in numbers for number in mine) == list(range(1, 17))
        assert [[found[number - 1] for number in mine] for mine in numbers] == [[name] * 4 for name in "abcd"]

    async def test_many_appends_are_read_in_order(self, sessions: SessionStore) -> None:
        for number in range(30):
            await sessions.append("s", "t", said(f"{number}"))
        assert await texts(sessions) == [f"{number}" for number in range(30)]


class TestContents:
    async def test_every_content_comes_back_as_it_was(self, sessions: SessionStore) -> None:
        call = Content.from_function_call("c", "look", arguments={"at": (1, 2)})
        result = {"type": "plain", 1: b"bytes", "when": datetime(2024, 1, 1, tzinfo=UTC), "~": {"x"}}
        message = Message(
            "tool",
            [
                "text \ud800 \x00",
                call,
                Content.from_function_result("c", result=result, items=[Content.from_text("inner")]),
                Content.from_data(b"image" * 2000, "image/png", additional_properties={"n": 1.5}),
                Content.from_function_approval_request("r", call),
            ],
            author_name="ada",
            message_id="m",
            additional_properties={"nested": [{"deep": None}]},
        )
        await sessions.append("s", "t", [message, *said("x" * 5000)])
        assert await sessions.messages("s", "t") == [message, *said("x" * 5000)]

    async def test_later_changes_of_a_message_do_not_reach_the_thread(self, sessions: SessionStore) -> None:
        message = Message("user", ["a"], additional_properties={"list": [1]})
        appending = sessions.append("s", "t", message)
        await appending
        message.additional_properties["list"].append(2)
        (read,) = await sessions.messages("s", "t")
        read.contents.clear()
        assert await sessions.messages("s", "t") == [Message("user", ["a"], additional_properties={"list": [1]})]

    async def test_message_that_could_not_be_decoded_is_refused(self, sessions: SessionStore) -> None:
        @dataclass
        class Local:
            x: int

        odd = Message("tool", [Content.from_function_result("c", result=Local(1))])
        with pytest.raises(ThreadMessageError, match="message 1") as caught:
            await sessions.append("s", "t", [*said("a"), odd])
        assert "'t' of session 's'" in str(caught.value)
        assert await sessions.thread("s", "t") is None

    async def test_every_event_has_an_id_a_time_and_its_tags(self) -> None:
        sessions = InMemorySessionStore(clock=ManualClock())
        mine = Message("user", ["a"], message_id="mine")
        await sessions.append("s", "t", [mine, *said("b")], tags={"agent": "draft", "~": "x"})
        first, second = await sessions.read("s", "t")
        assert (first.message_id, first.message.message_id) == ("mine", "mine")
        assert second.message_id
        assert second.message.message_id is None
        assert first.at == second.at == datetime(2024, 1, 1, tzinfo=UTC).isoformat()
        assert first.tags == {"agent": "draft", "~": "x"}

    @pytest.mark.parametrize("given", ["text", [*said("a"), "text"], None, 3])
    async def test_only_messages_can_be_appended(self, given: Any) -> None:
        with pytest.raises(TypeError, match="made of messages"):
            await InMemorySessionStore().append("s", "t", given)

    async def test_tags_are_texts(self) -> None:
        tags: Any = {"number": 1}
        with pytest.raises(TypeError, match="tags are texts"):
            await InMemorySessionStore().append("s", "t", said("a"), tags=tags)


class TestListing:
    async def test_unknown_sessions_and_threads_are_empty(self, sessions: SessionStore) -> None:
        assert await sessions.read("s", "t") == []
        assert await sessions.messages("s", "t") == []
        assert await sessions.thread("s", "t") is None
        assert await sessions.threads("s") == []
        assert await sessions.sessions() == []
        assert await sessions.delete("s", "t") is False

    async def test_threads_and_sessions_are_listed_in_the_order_of_their_beginning(
        self, sessions: SessionStore
    ) -> None:
        for session_id, thread_id in (("two", "z"), ("one", "b"), ("two", "a"), ("one", "b")):
            await sessions.append(session_id, thread_id, said("x"), tags={"by": thread_id})
        assert await sessions.sessions() == ["two", "one"]
        assert [(each.thread_id, each.sequence) for each in await sessions.threads("two")] == [("z", 1), ("a", 1)]
        (thread,) = await sessions.threads("one")
        assert thread == await sessions.thread("one", "b")
        assert (thread.session_id, thread.sequence, thread.forked_from, thread.tags) == ("one", 2, None, {"by": "b"})

    async def test_thread_has_the_newest_value_of_each_tag(self, sessions: SessionStore) -> None:
        await sessions.append("s", "t", said("a"), tags={"run": "1", "agent": "x"})
        await sessions.append("s", "t", said("b"), tags={"run": "2"})
        thread = await sessions.thread("s", "t")
        assert thread is not None
        assert thread.tags == {"run": "2", "agent": "x"}
        assert [event.tags for event in await sessions.read("s", "t")] == [{"run": "1", "agent": "x"}, {"run": "2"}]

    async def test_different_pairs_of_ids_are_different_threads(self, sessions: SessionStore) -> None:
        pairs = [
            ("a:b", "c"),
            ("a", "b:c"),
            ("a%3Ab", "c"),
            ("a", "b%3Ac"),
            ("a/b", "../c"),
            ("..", ".."),
            ("é ", "@0"),
        ]
        for number, (session_id, thread_id) in enumerate(pairs):
            assert await sessions.append(session_id, thread_id, said(f"{number}")) == 1
        for number, (session_id, thread_id) in enumerate(pairs):
            assert await sessions.messages(session_id, thread_id) == said(f"{number}")
            assert thread_id in [thread.thread_id for thread in await sessions.threads(session_id)]
        assert set(await sessions.sessions()) == {session_id for session_id, _ in pairs}

    @pytest.mark.parametrize(
        ("session_id", "thread_id", "reason"),
        [
            ("", "t", "a session id can't be empty"),
            ("s", "", "a thread id can't be empty"),
            ("s" * 150, "t" * 50, "have together 201 characters"),
            ("s", ":" * 70, "have together 212 characters"),
            ("s\n", "t", "control characters"),
        ],
    )
    async def test_invalid_ids_are_refused(self, session_id: str, thread_id: str, reason: str) -> None:
        with pytest.raises(ThreadNameError, match=reason):
            await InMemorySessionStore().append(session_id, thread_id, said("a"))


class TestDeleting:
    async def test_a_deleted_thread_is_gone_and_can_begin_anew(self, sessions: SessionStore) -> None:
        await sessions.append("s", "t", said("a", "b"), key="k", tags={"old": "yes"})
        await sessions.append("s", "u", said("stays"))
        assert await sessions.delete("s", "t") is True
        assert await sessions.delete("s", "t") is False
        assert await sessions.thread("s", "t") is None
        assert await texts(sessions) == []
        assert await sessions.append("s", "t", said("new"), key="k", expected=0) == 1
        assert await texts(sessions) == ["new"]
        thread = await sessions.thread("s", "t")
        assert thread is not None
        assert thread.tags == {}
        assert await texts(sessions, "u") == ["stays"]

    async def test_the_bytes_of_large_contents_go_with_a_collection(self, sessions: SessionStore) -> None:
        await sessions.append("s", "t", said("large" * 3000))
        await sessions.append("s", "u", said("other" * 3000))
        await sessions.delete("s", "t")
        await sessions.collect()
        assert await texts(sessions, "u") == ["other" * 3000]
        assert await sessions.collect() == 0
