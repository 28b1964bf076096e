"""Responses: how pieces make a whole, what a whole is worth, and what is kept of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import BaseModel, ValidationError
from tests.agents.stub_model import kept

from perdure.agents import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate, Content, Message
from perdure.agents.messages.responses import declare_format
from perdure.errors import AgentInvalidResponseException, ResponseValueError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Verdict(BaseModel):
    is_spam: bool


class Undeclared(BaseModel):
    is_spam: bool


def piece(*contents: Any, **more: Any) -> AgentResponseUpdate:
    return AgentResponseUpdate(contents=contents, **more)


def test_pieces_of_one_message_are_one_message() -> None:
    whole = AgentResponse[Any].from_updates([piece("a", role="assistant"), piece("b"), piece("c", role="assistant")])
    assert [message.text for message in whole.messages] == ["abc"]


@pytest.mark.parametrize(
    "second", [piece("b", role="tool"), piece("b", role="assistant", message_id="2")], ids=["role", "id"]
)
def test_another_role_or_id_is_another_message(second: AgentResponseUpdate) -> None:
    whole = AgentResponse[Any].from_updates([piece("a", role="assistant", message_id="1"), second])
    assert [message.text for message in whole.messages] == ["a", "b"]


def test_fragments_of_calls_come_together_by_their_ids() -> None:
    call = Content.from_function_call
    whole = AgentResponse[Any].from_updates(
        [
            piece(call("1", "f", arguments="{")),
            piece(call("2", "g", arguments="{")),
            piece(call("1", "", arguments="}")),
            piece(call("2", "", arguments="}")),
        ]
    )
    assert [content.arguments for content in whole.messages[0].contents] == ["{}", "{}"]


def test_usage_is_summed_and_is_no_part_of_a_message() -> None:
    usage = Content.from_usage({"total_token_count": 2})
    whole = AgentResponse[Any].from_updates([piece("a", usage), piece(usage)])
    assert whole.usage_details == {"total_token_count": 4}
    assert whole.text == "a"


def test_a_whole_told_as_pieces_makes_the_same_whole() -> None:
    whole = ChatResponse[Any](
        messages=[Message("assistant", ["a"], message_id="1"), Message("tool", ["b"], message_id="2")],
        usage_details={"total_token_count": 2},
        model="m",
        response_id="r",
        finish_reason="stop",
        conversation_id="c",
    )
    assert ChatResponse[Any].from_updates(whole.split()) == whole


async def test_a_generator_of_pieces_makes_a_whole() -> None:
    async def pieces() -> AsyncGenerator[AgentResponseUpdate]:
        yield piece("a", role="assistant")
        yield piece("b")

    assert (await AgentResponse[Any].from_update_generator(pieces())).text == "ab"


def test_a_value_is_read_from_the_last_words_when_it_is_asked_for() -> None:
    messages = [Message("assistant", ["let me see"]), Message("assistant", ['{"is_spam": true}']), Message("tool", [])]
    response = AgentResponse[Any](messages=messages, response_format=Verdict)
    assert response.value == Verdict(is_spam=True)


def test_a_schema_gives_the_value_as_json() -> None:
    response = AgentResponse[Any](messages=Message("assistant", ['{"a": 1}']), response_format={"type": "object"})
    assert response.value == {"a": 1}


def test_words_that_are_no_value_are_refused_when_it_is_asked_for() -> None:
    response = AgentResponse[Any](messages=Message("assistant", ["perhaps"]), response_format=Verdict)
    with pytest.raises(ValidationError, match="Verdict"):
        _ = response.value
    response = AgentResponse[Any](messages=Message("assistant", ["perhaps"]), response_format={"type": "object"})
    with pytest.raises(AgentInvalidResponseException, match=r"not JSON.*starts with 'perhaps'") as refused:
        _ = response.value
    assert isinstance(refused.value, ValueError)


def test_an_empty_answer_has_no_value_unless_it_asks() -> None:
    with pytest.raises(ResponseValueError, match="has no text"):
        _ = AgentResponse[Any](messages=[], response_format=Verdict).value
    question = Content("function_call", call_id="c", name="ask", user_input_request=True)
    assert AgentResponse[Any](messages=[Message("assistant", [question])], response_format=Verdict).value is None


def test_a_response_that_was_kept_still_has_its_value() -> None:
    declare_format(Verdict)
    message = Message("assistant", ['{"is_spam": true}'])
    response = kept(kept(AgentResponse[Any](messages=message, response_format=Verdict)))
    assert response.value == Verdict(is_spam=True)
    assert kept(ChatResponse[Any](messages=message, response_format={"type": "object"})).value == {"is_spam": True}


def test_a_class_that_no_model_was_asked_for_is_not_looked_for() -> None:
    response = kept(AgentResponse[Any](messages=Message("assistant", ["{}"]), response_format=Undeclared))
    with pytest.raises(AgentInvalidResponseException, match=r"has the format '.*:Undeclared'"):
        _ = response.value
    assert response.text == "{}"


def remade() -> type[BaseModel]:
    class Remade(BaseModel):
        x: int = 0

    return Remade


def test_a_class_that_a_function_makes_anew_is_as_good_as_the_one_before() -> None:
    first, again = remade(), remade()
    for wanted in (first, again):
        declare_format(wanted)
    response = kept(AgentResponse[Any](messages=Message("assistant", ['{"x": 1}']), response_format=first))
    assert response.value == again(x=1)


@pytest.mark.parametrize(
    ("told", "type_name"),
    [
        (AgentResponse[Any](messages=Message("assistant", ["a"])), "agent_response"),
        (ChatResponse[Any](messages=Message("assistant", ["a"])), "chat_response"),
        (AgentResponseUpdate(contents=["a"]), "agent_response_update"),
        (ChatResponseUpdate(contents=["a"]), "chat_response_update"),
    ],
)
def test_what_is_written_says_what_it_is_and_can_be_read_again(told: Any, type_name: str) -> None:
    assert told.to_dict()["type"] == type_name
    assert "response_id" not in told.to_dict()
    assert told.to_dict(exclude_none=False, exclude={"type"})["response_id"] is None
    assert cast("Any", type(told)).from_json(told.to_json()) == told


@pytest.mark.parametrize(
    "told",
    [
        AgentResponse[Any](messages=Message("assistant", ["a"]), agent_id="a", usage_details={"total_token_count": 1}),
        ChatResponse[Any](messages=[], model="m", conversation_id="c", additional_properties={"k": 1}),
        AgentResponseUpdate(contents=["a"], agent_id="a", author_name="n"),
        ChatResponseUpdate(contents=["a"], model="m", finish_reason="stop"),
    ],
    ids=lambda told: type(told).__name__,
)
def test_what_was_told_is_the_same_after_json_and_after_a_checkpoint(told: Any) -> None:
    assert kept(told) == told
    assert told.from_dict(told.to_dict()) == told


def test_questions_to_the_user_are_found_in_all_messages() -> None:
    question = Content.from_function_approval_request("1", Content.from_function_call("1", "f"))
    response = AgentResponse[Any](messages=[Message("assistant", ["a", question]), Message("assistant", ["b"])])
    assert response.user_input_requests == [question]


@pytest.mark.parametrize("call_id", ["", "1"])
def test_a_call_after_a_complete_one_is_another_call_even_under_its_id(call_id: str) -> None:
    call = Content.from_function_call
    whole = AgentResponse[Any].from_updates(
        [
            piece(call(call_id, "f", arguments='{"a": ')),
            piece(call(call_id, "f", arguments="1}")),
            piece(call(call_id, "f", arguments='{"a": 2}')),
            piece(call(call_id, "g", arguments="{")),
            piece(call(call_id, "", arguments="}")),
        ]
    )
    found = [(content.name, content.arguments) for content in whole.messages[0].contents]
    assert found == [("f", '{"a": 1}'), ("f", '{"a": 2}'), ("g", "{}")]


def test_an_id_that_comes_late_belongs_to_the_call_before_it() -> None:
    call = Content.from_function_call
    whole = AgentResponse[Any].from_updates(
        [piece(call("", "f", arguments='{"a"')), piece(call("1", "", arguments=": 1}"))]
    )
    assert whole.messages[0].contents == [call("1", "f", arguments='{"a": 1}')]


def test_updates_of_different_authors_are_different_messages() -> None:
    updates = [piece("a", author_name="ada"), piece("b"), piece("c", author_name="bob"), piece("d", author_name="bob")]
    whole = AgentResponse[Any].from_updates(updates)
    assert [(message.author_name, message.text) for message in whole.messages] == [("ada", "ab"), ("bob", "cd")]
