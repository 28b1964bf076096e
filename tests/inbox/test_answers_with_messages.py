"""Messages and contents in answers that are given as plain data: the schema and the run agree on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from perdure import Content, Message
from perdure.checkpoint import check_against, coerce
from perdure.checkpoint.commands import schema_of

CALL = Content.from_function_call("1", "pay", arguments={"amount": 3})
WHOLE = Message(
    "user",
    [Content.from_text("no"), Content("function_approval_response", id="1", approved=False, function_call=CALL)],
    author_name="ann",
    message_id="m",
    additional_properties={"seen": [1]},
)


@dataclass
class Review:
    said: list[Message]
    call: Content | None = None


@pytest.mark.parametrize(
    ("type_", "value", "made"),
    [
        (Message, WHOLE.to_dict(), WHOLE),
        (Message, WHOLE.to_dict(exclude_none=False), WHOLE),
        (Message, "be brief", Message("user", ["be brief"])),
        (Message, {"role": "user", "contents": "be brief"}, Message("user", ["be brief"])),
        (list[Message], ["a", {"role": "user", "contents": ["b"]}], [Message("user", ["a"]), Message("user", ["b"])]),
        (Review, {"said": ["a"], "call": CALL.to_dict()}, Review([Message("user", ["a"])], CALL)),
        (Message | None, "a", Message("user", ["a"])),
        # Where a text may be something else, it is.
        (str | Message, "a", "a"),
        (list[str | Message], ["a"], ["a"]),
    ],
)
def test_plain_data_becomes_messages(type_: Any, value: Any, made: Any) -> None:
    schema = schema_of(type_)
    assert schema is not None
    Draft202012Validator.check_schema(schema)
    assert check_against(schema, json.loads(json.dumps(value))) is None
    assert coerce(value, type_) == made


@pytest.mark.parametrize(
    "value",
    [
        5,
        {"contents": ["a"]},
        {"role": 5},
        {"role": "user", "contents": [5]},
        {"role": "user", "contents": [{"type": "no such type"}]},
        {"role": "user", "contents": [{"type": "text", "text": 5}]},
        {"role": "user", "author_name": 5},
        {"type": "content", "role": "user"},
    ],
)
def test_what_is_no_message_is_refused_by_the_schema_and_the_run(value: Any) -> None:
    schema = schema_of(Message)
    assert schema is not None
    assert check_against(schema, value) is not None
    with pytest.raises(ValueError, match=r"is not|required|expected|a Message is a text"):
        coerce(value, Message)
