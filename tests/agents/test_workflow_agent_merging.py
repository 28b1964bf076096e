"""Pieces of several answers, put together; and conversations that are told again."""

from __future__ import annotations

from typing import Any

from perdure.agents import AgentResponseUpdate, Content, Message, SessionContext, drop_known_messages
from perdure.workflows import WorkflowAgent


def piece(
    text: str | Content, response_id: str | None = None, message_id: str | None = None, **more: Any
) -> AgentResponseUpdate:
    return AgentResponseUpdate(
        contents=[text], role=more.pop("role", "assistant"), response_id=response_id, message_id=message_id, **more
    )


def merged(*updates: AgentResponseUpdate) -> list[str]:
    return [message.text for message in WorkflowAgent.merge_updates(list(updates), "whole").messages]


def test_pieces_go_to_their_answers_and_messages() -> None:
    found = merged(piece("a", "r1", "m1"), piece("x", "r2", "m2"), piece("b", "r1", "m1"), piece("y", "r2", "m2"))
    assert found == ["ab", "xy"]


def test_messages_of_an_answer_stand_in_the_order_of_time_and_those_without_last() -> None:
    found = merged(
        piece("untimed", "r", "m0"),
        piece("late", "r", "m1", created_at="2026-01-02T00:00:00Z"),
        piece("early", "r", "m2", created_at="2026-01-01T23:00:00-03:00"),
        piece("first", "r", "m3", created_at="2026-01-01T00:00:00Z"),
    )
    assert found == ["first", "late", "early", "untimed"]


def test_a_result_follows_its_call_and_what_belongs_nowhere_comes_last() -> None:
    call = piece(Content.from_function_call("c", "look", arguments="{}"), "r1", "m1")
    result = piece(Content.from_function_result("c", result="seen"), role="tool")
    whole = WorkflowAgent.merge_updates([piece("stray"), call, piece("other", "r2", "m2"), result], "whole")
    assert [content.type for message in whole.messages for content in message.contents] == [
        "function_call",
        "function_result",
        "text",
        "text",
    ]
    assert whole.messages[-1].text == "stray"


def test_the_whole_has_its_own_id_the_newest_time_and_all_that_was_counted() -> None:
    usage = Content.from_usage({"total_token_count": 2})
    whole = WorkflowAgent.merge_updates(
        [
            piece(usage, "r1", "m1", created_at="2026-01-02", additional_properties={"a": 1}),
            piece(usage, "r2", "m2", created_at="2026-01-01", additional_properties={"b": 2}),
            piece(usage, created_at="no time"),
        ],
        "whole",
    )
    assert (whole.response_id, whole.usage_details) == ("whole", {"total_token_count": 6})
    assert whole.additional_properties == {"a": 1, "b": 2}
    assert WorkflowAgent.merge_updates([], "none").messages == []


def said(*texts: str) -> list[Message]:
    return [Message("user", [text]) for text in texts]


def from_history(*texts: str) -> list[Message]:
    context = SessionContext(input_messages=[])
    context.extend_messages("in_memory", said(*texts))
    return context.get_messages()


def test_of_what_is_told_again_only_what_is_not_known_is_heard() -> None:
    heard = drop_known_messages([*from_history("a", "b", "c"), *said("d")], said("a", "c"))
    assert [message.text for message in heard] == ["b", "d"]


def test_what_was_known_once_and_is_told_twice_is_heard_once() -> None:
    heard = drop_known_messages(from_history("yes", "yes"), said("yes"))
    assert [message.text for message in heard] == ["yes"]


def test_what_is_new_is_heard_though_the_same_was_said_before() -> None:
    assert [message.text for message in drop_known_messages(said("yes"), said("yes"))] == ["yes"]
