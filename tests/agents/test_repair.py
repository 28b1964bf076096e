"""Conversations are mended so that models take them: tested by enumeration of all short ones."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest

from perdure.agents import Content, Message
from perdure.agents.messages.conversation import (
    INTERRUPTED,
    UNDECIDED,
    repair_conversation,
    sendable_name,
    sendable_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def call(call_id: str) -> Content:
    return Content.from_function_call(call_id, "f", arguments={"of": call_id})


def result(call_id: str) -> Content:
    return Content.from_function_result(call_id, result=f"result of {call_id}")


def request(call_id: str) -> Content:
    return Content.from_function_approval_request(call_id, call(call_id))


def response(call_id: str) -> Content:
    return request(call_id).to_function_approval_response(approved=True)


def said(what: str) -> Message:
    match what:
        case "u":
            return Message("user", ["hello"])
        case "a" | "b":
            return Message("assistant", [call(what)])
        case "ab":
            return Message("assistant", ["both", call("a"), call("b")])
        case "A" | "B":
            return Message("tool", [result(what.lower())])
        case "AB":
            return Message("tool", [result("b"), result("a")])
        case "a?":
            return Message("assistant", [call("a"), request("a")])
        case "?":
            return Message("assistant", [request("a")])
        case "!":
            return Message("user", [response("a"), "and more"])
        case _:
            raise AssertionError(what)


ALPHABET = ("u", "a", "b", "ab", "A", "B", "AB", "a?", "?", "!")


def require_taken(messages: Sequence[Message]) -> None:
    """Raise unless a strict provider takes the conversation: each message with calls is followed by their results."""
    awaited: list[str | None] = []
    for message in messages:
        assert message.contents
        results = [content.call_id for content in message.contents if content.type == "function_result"]
        assert results == awaited
        if results:
            assert message.role == "tool"
            assert len(results) == len(message.contents)
        awaited = [content.call_id for content in message.contents if content.type == "function_call"]
        assert all(not content.type.startswith("function_approval") for content in message.contents)
    assert not awaited


def words(messages: Sequence[Message]) -> list[str | None]:
    return [content.text for message in messages for content in message.contents if content.type == "text"]


def count(messages: Sequence[Message], kind: str) -> int:
    return sum(content.type == kind for message in messages for content in message.contents)


@pytest.mark.parametrize(
    ("length", "alphabet"), [(1, ALPHABET), (2, ALPHABET), (3, ALPHABET), (4, ("u", "ab", "A", "B", "a?", "!"))]
)
def test_every_short_conversation_is_mended_so_that_a_strict_provider_takes_it(
    length: int, alphabet: Sequence[str]
) -> None:
    for whats in itertools.product(alphabet, repeat=length):
        conversation = [said(what) for what in whats]
        mended = repair_conversation(conversation)
        require_taken(mended)
        assert conversation == [said(what) for what in whats], "what was given is not changed"
        assert words(mended) == words(conversation), "nothing that was said in words is lost or moved"
        assert count(mended, "function_call") >= count(conversation, "function_call")
        assert repair_conversation(mended) == mended, "once is enough"


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_real_results_are_told_wherever_they_stand(length: int) -> None:
    for whats in itertools.product(("u", "a", "b", "ab", "A", "B", "AB"), repeat=length):
        conversation = [said(what) for what in whats]
        told = [
            content.result
            for message in repair_conversation(conversation)
            for content in message.contents
            if content.type == "function_result"
        ]
        for name in "ab":
            calls = sum(name in what for what in whats)
            results = sum(name.upper() in what for what in whats)
            assert told.count(f"result of {name}") == min(calls, results)
        assert told.count(INTERRUPTED) == count(conversation, "function_call") - len(
            [t for t in told if t != INTERRUPTED]
        )


def test_a_conversation_that_is_well_is_the_very_same() -> None:
    conversation = [said(what) for what in ("u", "a", "A", "u", "b", "B", "u")]
    mended = repair_conversation(conversation)
    assert len(mended) == len(conversation)
    assert all(mine is its for mine, its in zip(mended, conversation, strict=True))


def test_a_call_without_a_result_is_told_to_be_interrupted() -> None:
    mended = repair_conversation([said("u"), said("ab"), said("A"), said("u")])
    assert [content.result for content in mended[2].contents] == ["result of a", INTERRUPTED]
    assert [content.exception for content in mended[2].contents] == [None, "interrupted"]


def test_calls_that_wait_for_approval_are_told_to_wait_and_their_siblings_too() -> None:
    asking = Message("assistant", [call("a"), call("b"), request("a")])
    mended = repair_conversation([said("u"), asking, said("u")])
    assert [content.type for content in mended[1].contents] == ["function_call", "function_call"]
    assert [content.result for content in mended[2].contents] == [UNDECIDED, UNDECIDED]
    assert [message.role for message in mended] == ["user", "assistant", "tool", "user"]


def test_a_result_that_comes_late_stands_behind_its_call() -> None:
    mended = repair_conversation([said("a?"), said("u"), said("!"), said("A")])
    assert [message.role for message in mended] == ["assistant", "tool", "user", "user"]
    assert mended[1].contents == [result("a")]


def test_a_call_that_is_decided_after_the_model_went_on_stands_where_it_was_decided() -> None:
    spoken = Message("assistant", ["then not"])
    both = Message("assistant", [Content.from_text("I pay."), call("a"), call("b"), request("a")])
    mended = repair_conversation(
        [said("u"), both, said("B"), said("u"), spoken, Message("user", [response("a")]), said("A")]
    )
    require_taken(mended)
    assert [message.role for message in mended] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "assistant",
        "tool",
    ]
    assert [content.type for content in mended[1].contents] == ["text", "function_call"]
    assert (mended[5].contents, mended[6].contents) == ([call("a")], [result("a")])
    assert repair_conversation(mended) == mended


def test_a_result_that_a_history_wrote_behind_the_answer_to_it_stands_behind_its_call() -> None:
    spoken = Message("assistant", ["It is paid."])
    mended = repair_conversation(
        [said("u"), said("a?"), Message("user", [response("a")]), spoken, said("A"), said("u")]
    )
    assert [message.role for message in mended] == ["user", "assistant", "tool", "assistant", "user"]


def test_agents_that_use_one_id_in_one_history_have_each_their_own_result() -> None:
    def of(author: str, role: str, content: Content) -> Message:
        return Message(role, [content], author_name=author)

    paid = {name: Content.from_function_result("a", result=f"paid by {name}") for name in ("ada", "bob")}
    calls = [of(name, "assistant", call("a")) for name in paid]
    mended = repair_conversation([*calls, of("ada", "tool", paid["ada"]), of("bob", "tool", paid["bob"])])
    assert [message.contents[0].result for message in mended if message.role == "tool"] == [
        "paid by ada",
        "paid by bob",
    ]


def test_a_question_that_stands_alone_becomes_the_call_that_it_is_about() -> None:
    mended = repair_conversation([said("u"), said("?"), said("!"), said("A")])
    assert mended[1].contents == [call("a")]
    assert mended[2].contents == [result("a")]


def test_an_id_that_comes_again_gets_the_result_that_follows_it() -> None:
    mended = repair_conversation([said("a"), said("u"), said("a"), said("A")])
    assert [message.contents[0].result for message in mended if message.role == "tool"] == [INTERRUPTED, "result of a"]


def test_what_the_provider_has_done_or_is_to_decide_itself_stays_as_it_is() -> None:
    done = Content.from_function_call("x", "search", informational_only=True)
    hosted = Content.from_function_call("y", "mcp", additional_properties={"server_label": "docs"})
    asked = Content.from_function_approval_request("y", hosted)
    conversation = [
        Message("assistant", [done, result("x"), asked]),
        Message("user", [asked.to_function_approval_response(approved=True)]),
    ]
    assert repair_conversation(conversation) == conversation


def test_of_a_conversation_that_the_provider_keeps_results_are_sent_without_their_calls() -> None:
    mended = repair_conversation([said("!"), said("A")], is_complete=False)
    assert [message.role for message in mended] == ["user", "tool"]
    assert words(mended) == ["and more"]
    assert mended[1].contents == [result("a")]


@pytest.mark.parametrize("name", ["", "get weather", "files.read", "näme", "x" * 65, "\ud800", "__", "a\n"])
def test_a_name_that_providers_refuse_becomes_one_that_they_accept(name: str) -> None:
    sent = sendable_name(name)
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", sent)
    assert sendable_name(sent) == sent
    assert sendable_name(f"{name} ") != sent, "different names stay different"


def test_a_valid_name_stays_as_it_is() -> None:
    assert [sendable_name(name) for name in ("f", "get-weather_2", "x" * 64)] == ["f", "get-weather_2", "x" * 64]


def test_a_text_without_single_surrogates_can_be_encoded() -> None:
    assert sendable_text("a\ud800b") == "a\ufffdb"
    assert sendable_text("\ud83d\ude00") == "😀"
    assert sendable_text("grüße 😀") == "grüße 😀"
