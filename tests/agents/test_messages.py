"""Messages: who said what."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agents.stub_model import kept

from perdure.agents import Content, Message, normalize_messages


def test_a_message_is_made_of_texts_contents_and_dicts() -> None:
    message = Message("user", ["a", Content.from_text("b"), {"type": "text", "text": "c"}])
    assert [content.text for content in message.contents] == ["a", "b", "c"]
    assert message.text == "a b c"


def test_a_message_is_made_of_nothing_else() -> None:
    with pytest.raises(TypeError, match="not 3"):
        Message("user", [3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def test_a_message_is_the_same_after_json_and_after_a_checkpoint() -> None:
    message = Message("assistant", ["hi"], author_name="a", message_id="m", additional_properties={"k": 1})
    assert Message.from_json(message.to_json()) == message
    assert kept(message) == message


def test_a_dict_without_a_role_is_no_message() -> None:
    with pytest.raises(ValueError, match="needs a role"):
        Message.from_dict({"contents": []})


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        (None, []),
        ("a", ["a"]),
        (Content.from_text("a"), ["a"]),
        (Message("system", ["a"]), ["a"]),
        (["a", Content.from_text("b"), Message("user", ["c"])], ["a", "b", "c"]),
    ],
)
def test_whatever_is_said_to_an_agent_is_messages(said: Any, texts: list[str]) -> None:
    assert [message.text for message in normalize_messages(said)] == texts


@pytest.mark.parametrize("said", [3, [3], [["a"]], {"role": "user"}])
def test_what_is_nothing_that_can_be_said_is_refused(said: Any) -> None:
    with pytest.raises(TypeError, match="an agent takes"):
        normalize_messages(said)
