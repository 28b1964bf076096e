"""Contents: what a message is made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.agents.stub_model import kept

from perdure.agents import Content, add_usage_details
from perdure.errors import AdditionItemMismatch, ContentError

CALL = Content.from_function_call("c1", "pay", arguments={"usd": 3})
EACH = [
    Content.from_search_tool_call("c", tool_name="web", arguments={"q": "snow"}, status="completed"),
    Content.from_search_tool_result("c", tool_name="web", result="snow"),
    Content.from_code_interpreter_tool_call(call_id="c", inputs=[Content.from_text("1 + 1")]),
    Content.from_code_interpreter_tool_result(call_id="c", outputs=[Content.from_text("2")]),
    Content.from_image_generation_tool_call(image_id="i"),
    Content.from_image_generation_tool_result(image_id="i", outputs=[Content.from_hosted_file("f")]),
    Content.from_shell_tool_call(call_id="c", commands=["ls"], timeout_ms=5),
    Content.from_shell_tool_result(
        call_id="c", outputs=[Content.from_shell_command_output(stdout="a", exit_code=0, timed_out=False)]
    ),
    Content.from_mcp_server_tool_call("c", "find", server_name="s", arguments="{}"),
    Content.from_mcp_server_tool_result("c", output="found"),
    Content.from_text("hi"),
    Content.from_text_reasoning(text="hm", protected_data="sealed"),
    Content.from_data(b"\x00\x01", "image/png"),
    Content.from_uri("https://example.org/a.png", media_type="image/png"),
    Content.from_error(message="no", error_code="e", error_details="d"),
    CALL,
    Content.from_function_result("c1", result={"paid": True}),
    Content.from_function_result("c1", items=[Content.from_text("a"), Content.from_data(b"b", "image/png")]),
    Content.from_function_result("c1", exception="ValueError"),
    Content.from_usage({"input_token_count": 3}),
    Content.from_hosted_file("f"),
    Content.from_hosted_vector_store("v"),
    Content.from_function_approval_request("a1", CALL),
    Content.from_function_approval_response(approved=True, id="a1", function_call=CALL),
    Content.from_oauth_consent_request("https://example.org/consent"),
    Content.from_text("noted", annotations=[{"type": "citation", "url": "u"}], additional_properties={"k": [1]}),
]


@pytest.mark.parametrize("content", EACH, ids=lambda content: content.type)
def test_a_content_is_the_same_after_json(content: Content) -> None:
    assert Content.from_dict(json.loads(json.dumps(content.to_dict()))) == content


@pytest.mark.parametrize("content", EACH, ids=lambda content: content.type)
def test_a_content_is_the_same_after_a_checkpoint(content: Content) -> None:
    assert kept(content) == content


def test_what_a_provider_sent_is_not_stored() -> None:
    content = Content.from_text("hi", raw_representation=object())
    assert kept(content).raw_representation is None
    assert "raw_representation" not in content.to_dict()


def test_a_type_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ContentError, match="unknown content type 'smell'"):
        Content("smell")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("data", "message"),
    [({"text": "hi"}, "needs a type"), ({"type": "text", "smell": "roses"}, "unknown content fields smell")],
)
def test_a_dict_that_is_no_content_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ContentError, match=message):
        Content.from_dict(data)


def test_pieces_of_a_text_make_a_text() -> None:
    assert (Content.from_text("a") + Content.from_text("b")).text == "ab"


def test_pieces_of_a_call_make_a_call() -> None:
    first = Content.from_function_call("c", "pay", arguments='{"usd"')
    second = Content("function_call", arguments=": 3}")
    assert (first + second).parse_arguments() == {"usd": 3}
    assert (first + second).call_id == "c"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Content.from_text("a"), CALL),
        (CALL, Content.from_function_call("c2", "pay")),
        (
            Content.from_function_call("c", "p", arguments="{}"),
            Content.from_function_call("c", "p", arguments={"a": 1}),
        ),
        (Content.from_hosted_file("f"), Content.from_hosted_file("f")),
    ],
)
def test_pieces_of_different_things_are_not_put_together(first: Content, second: Content) -> None:
    with pytest.raises(AdditionItemMismatch):
        _ = first + second


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        (None, None),
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("nonsense", {"raw": "nonsense"}),
        ("[1]", {"raw": [1]}),
    ],
)
def test_arguments_come_as_a_dict_whatever_they_are(arguments: Any, parsed: Any) -> None:
    assert Content.from_function_call("c", "f", arguments=arguments).parse_arguments() == parsed


def test_an_approval_is_answered_with_the_call_that_was_asked_about() -> None:
    answer = Content.from_function_approval_request("a1", CALL).to_function_approval_response(approved=False)
    assert (answer.type, answer.id, answer.approved, answer.function_call) == (
        "function_approval_response",
        "a1",
        False,
        CALL,
    )


def test_what_is_no_question_can_not_be_approved() -> None:
    with pytest.raises(ContentError, match="only a function_approval_request"):
        CALL.to_function_approval_response(approved=True)


def test_data_gives_its_bytes_and_a_text_has_none() -> None:
    assert Content.from_data(b"abc", "text/plain").data_bytes() == b"abc"
    with pytest.raises(ContentError, match="has no inline data"):
        Content.from_text("abc").data_bytes()


def test_a_uri_with_data_in_it_is_data() -> None:
    content = Content.from_uri("data:image/png;base64,AAE=")
    assert (content.type, content.media_type, content.data_bytes()) == ("data", "image/png", b"\x00\x01")


def test_usage_adds_up_name_by_name() -> None:
    first: Any = {"input_token_count": 1, "own": 2}
    assert add_usage_details(first, {"input_token_count": 2, "output_token_count": None}) == {
        "input_token_count": 3,
        "own": 2,
    }


def test_a_thought_that_is_sealed_takes_in_nothing_more() -> None:
    sealed = Content.from_text_reasoning(text="first") + Content.from_text_reasoning(protected_data="seal")
    assert (sealed.text, sealed.protected_data) == ("first", "seal")
    with pytest.raises(AdditionItemMismatch, match="signed reasoning is complete"):
        _ = sealed + Content.from_text_reasoning(text="second")


def test_a_content_says_what_kind_of_data_it_is() -> None:
    assert Content.from_data(b"", "image/png").has_top_level_media_type("image")
    assert not Content.from_data(b"", "image/png").has_top_level_media_type("audio")
    with pytest.raises(ContentError, match="has no known kind"):
        Content.from_text("hi").has_top_level_media_type("text")
