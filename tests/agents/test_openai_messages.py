"""Conversations and options as they go over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.agents import Content, Message
from perdure.errors import ChatClientInvalidRequestException
from perdure.providers.openai.request import (
    stream_parameters,
    to_parameters,
    to_wire_choice,
    to_wire_format,
    to_wire_messages,
)

KNOWN = frozenset(
    {"model", "temperature", "max_tokens", "max_completion_tokens", "parallel_tool_calls", "user", "extra_body"}
)
CALL = Content.from_function_call("c1", "add", arguments={"a": 1})
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


class Box(BaseModel):
    label: str
    weight: float | None = None


def test_texts_are_one_text_and_names_are_such_as_the_wire_allows() -> None:
    messages = [
        Message("system", ["Be brief.", "Be kind."]),
        Message("user", ["Hello", "there"], author_name="Ann Lee <x>"),
        Message("assistant", ["Hi."], author_name="helper-1"),
        Message("user", []),
        Message("assistant", [Content.from_usage({"total_token_count": 1})]),
    ]
    assert to_wire_messages(messages) == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Hello\nthere", "name": "Ann_Lee_x"},
        {"role": "assistant", "content": "Hi.", "name": "helper-1"},
    ]


def test_instructions_are_sent_in_the_role_that_the_model_wants() -> None:
    sent = to_wire_messages([Message("system", ["Be brief."])], instruction_role="developer")
    assert sent == [{"role": "developer", "content": "Be brief."}]


def test_calls_and_results_go_back_as_they_belong_together() -> None:
    messages = [
        Message("assistant", ["Let me see.", CALL, Content.from_function_call("c2", "now", arguments="")]),
        Message("tool", [Content.from_function_result("c1", result={"sum": 3})]),
        Message("tool", [Content.from_function_result("c2", exception="ValueError: no clock")]),
    ]
    answer, first, second = to_wire_messages(messages)
    assert answer["content"] == "Let me see."
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == ['{"a": 1}', "{}"]
    assert first == {"role": "tool", "tool_call_id": "c1", "content": '{"sum": 3}'}
    assert second == {"role": "tool", "tool_call_id": "c2", "content": "Error: ValueError: no clock"}


@pytest.mark.parametrize("broken", ["{a: 1", "[1]", '"x"'])
def test_arguments_that_are_no_object_are_sent_as_one(broken: str) -> None:
    [answer] = to_wire_messages([Message("assistant", [Content.from_function_call("c", "f", arguments=broken)])])
    assert isinstance(json.loads(answer["tool_calls"][0]["function"]["arguments"]), dict)


def test_images_sounds_and_files_are_parts() -> None:
    image = Content.from_uri("https://host/cat.png", additional_properties={"detail": "low"})
    sound = Content.from_data(b"RIFF", "audio/wav")
    paper = Content.from_data(b"%PDF", "application/pdf", additional_properties={"filename": "a.pdf"})
    kept = Content.from_hosted_file("file-1")
    [sent] = to_wire_messages([Message("user", ["Look:", image, sound, paper, kept])])
    assert sent["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "https://host/cat.png", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]


def test_a_file_that_stands_elsewhere_is_refused_with_what_to_do() -> None:
    paper = Content.from_uri("https://host/a.pdf", media_type="application/pdf")
    with pytest.raises(ChatClientInvalidRequestException, match="from_data"):
        to_wire_messages([Message("user", [paper])])


def test_an_image_that_a_tool_gave_follows_behind_all_results() -> None:
    image = Content.from_data(b"x", "image/png")
    messages = [
        Message("assistant", [CALL, Content.from_function_call("c2", "f")]),
        Message("tool", [Content.from_function_result("c1", result="done", items=[Content.from_text("done"), image])]),
        Message("tool", [Content.from_function_result("c2", result="2")]),
        Message("user", ["And?"]),
    ]
    sent = to_wire_messages(messages)
    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user", "user"]
    assert sent[1]["content"] == "done"
    assert [part["type"] for part in sent[3]["content"]] == ["text", "image_url"]


def test_reasoning_goes_back_with_the_calls_that_it_led_to_and_not_else() -> None:
    thought = Content.from_text_reasoning(
        text="hm", additional_properties={"openai_reasoning_field": "reasoning_content"}
    )
    with_call, without = to_wire_messages(
        [Message("assistant", [thought, CALL]), Message("assistant", [thought, "So."])]
    )
    assert with_call["reasoning_content"] == "hm"
    assert "reasoning_content" not in without


def test_a_refusal_goes_back_as_one() -> None:
    [sent] = to_wire_messages(
        [Message("assistant", [Content.from_text("No.", additional_properties={"refusal": True})])]
    )
    assert sent == {"role": "assistant", "content": None, "refusal": "No."}


def test_options_are_renamed_and_unknown_ones_go_into_the_body() -> None:
    options = {"temperature": 0.5, "max_tokens": 9, "user": None, "top_k": 3, "conversation_id": "x"}
    assert to_parameters(options, KNOWN, is_openai=False) == {
        "temperature": 0.5,
        "max_tokens": 9,
        "extra_body": {"top_k": 3},
    }
    assert to_parameters({"max_tokens": 9}, KNOWN, is_openai=True) == {"max_completion_tokens": 9}


def test_what_belongs_to_tools_is_sent_only_with_tools() -> None:
    options: dict[str, Any] = {"tool_choice": "required", "allow_multiple_tool_calls": False}
    assert to_parameters(options, KNOWN, is_openai=False) == {}
    hosted: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    sent = to_parameters({**options, "tools": [hosted]}, KNOWN, is_openai=False)
    assert sent == {"tools": [hosted], "tool_choice": "required", "parallel_tool_calls": False}


def test_a_web_search_is_an_option_of_its_own() -> None:
    sent = to_parameters({"tools": {"type": "web_search", "search_context_size": "low"}}, KNOWN, is_openai=True)
    assert sent == {"web_search_options": {"search_context_size": "low"}}


@pytest.mark.parametrize("tool", [{"type": "code_interpreter"}, object()])
def test_a_tool_that_chat_completions_do_not_have_is_refused(tool: object) -> None:
    with pytest.raises(ChatClientInvalidRequestException):
        to_parameters({"tools": [tool]}, KNOWN, is_openai=True)


def test_which_tools_may_be_called_is_said_as_the_wire_says_it() -> None:
    name = {"type": "function", "function": {"name": "f"}}
    assert to_wire_choice("auto") == "auto"
    assert to_wire_choice({"mode": "none"}) == "none"
    assert to_wire_choice({"mode": "required", "required_function_name": "f"}) == name
    assert to_wire_choice({"mode": "auto", "allowed_tools": ["f"]}) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [name]},
    }


def test_a_model_class_is_a_strict_schema() -> None:
    sent = to_wire_format(Box)["json_schema"]
    assert sent["name"] == "Box"
    assert sent["strict"] is True
    assert sent["schema"]["additionalProperties"] is False
    assert sent["schema"]["required"] == ["label", "weight"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "json_object"}, {"type": "json_object"}),
        (SCHEMA | {"title": "My box"}, {"name": "My_box", "schema": SCHEMA | {"title": "My box"}}),
        ({"name": "b", "schema": SCHEMA, "strict": True}, {"name": "b", "schema": SCHEMA, "strict": True}),
    ],
)
def test_a_schema_is_wrapped_as_far_as_it_is_not(given: dict[str, Any], expected: dict[str, Any]) -> None:
    wrapped = expected if "schema" not in expected else {"type": "json_schema", "json_schema": expected}
    assert to_wire_format(given) == wrapped


def test_a_stream_is_asked_for_its_tokens_unless_told_otherwise() -> None:
    assert stream_parameters({}) == {"stream": True, "stream_options": {"include_usage": True}}
    assert stream_parameters({"stream_options": None}) == {"stream": True}
