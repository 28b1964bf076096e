"""Termination conditions and their combinations."""

from __future__ import annotations

import pytest

from perdure import Message
from perdure.orchestrations import MaxMessages, SpeakerWas, TerminationCondition, TextMentioned, When
from perdure.orchestrations.termination import should_terminate


def user(text: str) -> Message:
    return Message("user", [text])


def says(name: str, text: str) -> Message:
    return Message("assistant", [text], author_name=name)


def always(conversation: list[Message]) -> bool:
    return bool(conversation)


async def never(conversation: list[Message]) -> bool:
    return not conversation


TALK = [user("End with DONE."), says("ada", "One."), says("bob", "Two.")]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (None, False),
        (always, True),
        (never, False),
        (MaxMessages(3), True),
        (MaxMessages(4), False),
        (MaxMessages(1, by="ada"), True),
        (MaxMessages(2, by="ada"), False),
        (MaxMessages(2, by="assistant"), True),
        (SpeakerWas("bob"), True),
        (SpeakerWas("ada"), False),
        (SpeakerWas("ada", "bob"), True),
        (TextMentioned("Two"), True),
        (TextMentioned("One"), False),
        (TextMentioned("two"), False),
        (TextMentioned("two", ignore_case=True), True),
        (TextMentioned("Two", by="ada"), False),
        (TextMentioned("Two", by="bob"), True),
        (TextMentioned("Three", "Two"), True),
    ],
)
async def test_a_condition_says_whether_a_conversation_is_over(
    condition: TerminationCondition | None, *, expected: bool
) -> None:
    assert await should_terminate(condition, TALK) is expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (MaxMessages(3) & SpeakerWas("bob"), True),
        (MaxMessages(3) & SpeakerWas("ada"), False),
        (MaxMessages(9) | SpeakerWas("bob"), True),
        (MaxMessages(9) | SpeakerWas("ada"), False),
        (~MaxMessages(9), True),
        (~MaxMessages(9) & ~SpeakerWas("bob"), False),
        (MaxMessages(9) | always, True),
        (always & MaxMessages(9), False),
        (never | MaxMessages(3), True),
        (MaxMessages(3) & never, False),
        (When(always) & When(never), False),
        (~When(never), True),
    ],
)
async def test_conditions_combine_with_each_other_and_with_functions(
    condition: TerminationCondition, *, expected: bool
) -> None:
    assert await should_terminate(condition, TALK) is expected


async def test_the_task_may_name_the_word_that_ends_the_chat() -> None:
    condition = TextMentioned("DONE")
    assert not await should_terminate(condition, [user("Say DONE when it is done.")])
    assert await should_terminate(condition, [user("Say DONE when it is done."), says("ada", "It is DONE.")])
    assert await should_terminate(TextMentioned("bye", by="user"), [says("ada", "Hello."), user("bye")])


async def test_all_messages_of_the_last_turn_are_looked_at() -> None:
    turn = [user("Go."), says("ada", "It is DONE."), says("ada", "I think.")]
    assert await should_terminate(TextMentioned("DONE"), turn)
    assert not await should_terminate(TextMentioned("DONE"), [*turn, user("Really?")])


async def test_nothing_is_over_before_it_has_begun() -> None:
    for condition in (MaxMessages(1), SpeakerWas("ada"), TextMentioned("x")):
        assert not await should_terminate(condition, [])


async def test_a_condition_can_not_change_the_conversation() -> None:
    talk = list(TALK)

    def spoil(conversation: list[Message]) -> bool:
        conversation.clear()
        return False

    await should_terminate(When(spoil) | spoil, talk)
    assert talk == TALK


def test_a_condition_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="count must be 1 or more"):
        MaxMessages(0)
    with pytest.raises(ValueError, match="an empty text is in every message"):
        TextMentioned("")
    with pytest.raises(ValueError, match="a text to look for"):
        TextMentioned()
    with pytest.raises(ValueError, match="name of a participant"):
        SpeakerWas()
    with pytest.raises(TypeError, match="not 3"):
        MaxMessages(1) & 3  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    with pytest.raises(TypeError, match="None is not a condition"):
        When(None)  # pyright: ignore[reportArgumentType]
