"""Outputs of nodes: keys known in advance, and values checked against models and schemas."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field
from tests.agent_workflows.nodes import DESKS, EITHER, TICKET, Refusal, Ticket, clerk

from perdure.agent_workflows import Node, Output, StructuredOutput, TextOutput, UnionOutput
from perdure.agent_workflows.outputs import (
    InvalidValueError,
    main_key,
    output_keys,
    parse_value,
    require_output,
    value_faults,
)

TREE: dict[str, Any] = {
    "title": "Tree",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["leaf", 1]},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "children": {"type": "array", "items": {"$ref": "#"}},
        "mark": {"$ref": "#/$defs/mark"},
        "version": {"const": 1},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"mark": {"allOf": [{"type": "object", "additionalProperties": {"type": "number"}}]}},
}


class Open(BaseModel):
    """Takes any further field."""

    model_config = ConfigDict(extra="allow")
    name: str


class Sized(BaseModel):
    """Has a field that is left out, one under another name, and one that is computed."""

    side: float = Field(alias="length")
    secret: str = Field(default="", exclude=True)

    @computed_field
    @property
    def area(self) -> float:
        """Return the area of the square."""
        return self.side**2


def node(output: Output) -> Node:
    return Node(id="n", agent=clerk([])[1], output=output)


@pytest.mark.parametrize(
    ("output", "keys", "main"),
    [
        (TextOutput(), {"answer"}, "answer"),
        (TextOutput("draft"), {"draft"}, "draft"),
        (TICKET, {"title", "urgency", "result"}, "result"),
        (EITHER, {"title", "urgency", "reason", "result", "matched_type"}, "result"),
        (DESKS, {"handoff_target", "answer"}, None),
        (StructuredOutput({"properties": {"sum": {}}}), {"sum", "result"}, "result"),
        (StructuredOutput({"type": "object"}), None, "result"),
        (StructuredOutput(Open), None, "result"),
        (UnionOutput((Ticket, Open)), None, "result"),
        (StructuredOutput(Sized), {"side", "area", "result"}, "result"),
    ],
)
def test_the_keys_of_a_node_are_known_before_it_acts(output: Output, keys: set[str] | None, main: str | None) -> None:
    assert output_keys(node(output)) == keys
    assert main_key(output) == main


def test_a_value_is_put_out_under_the_names_of_its_fields() -> None:
    assert parse_value('{"length": 3}', Sized) == {"side": 3.0, "area": 9.0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("oh", "JSON"),
        ("[1]", "object"),
        ('{"side": 1}', "length: Field required"),
        ('{"length": NaN}', "a number that JSON does not have"),
    ],
)
def test_a_text_that_is_no_value_of_a_model_says_why(text: str, why: str) -> None:
    with pytest.raises(InvalidValueError, match=why):
        parse_value(text, Sized)


@pytest.mark.parametrize(
    "text", ["", "oh", "[1]", '{"name": NaN}', pytest.param("[" * 100_000, id="deep"), '{"name": 1}']
)
def test_a_text_that_is_no_value_of_a_schema_is_none(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_value(text, TREE)


def test_a_root_model_has_no_fields_to_put_out() -> None:
    class Names(RootModel[list[str]]):
        """Names."""

    with pytest.raises(TypeError, match="'Names' is a RootModel"):
        require_output(StructuredOutput(Names))


FITTING: list[dict[str, Any]] = [
    {"name": "a"},
    {"name": "a", "kind": 1, "size": None, "version": 1},
    {"name": "a", "size": 3.0, "children": [{"name": "b", "children": []}]},
    {"name": "a", "mark": {"x": 1.5}},
]


@pytest.mark.parametrize("value", FITTING)
def test_a_value_that_fits_a_schema_has_no_faults(value: dict[str, Any]) -> None:
    assert value_faults(value, TREE) == []


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ({}, ["the value: 'name' is a required property"]),
        ("text", ['the value must satisfy type: "object"']),
        ({"name": "a", "kind": True}, ['kind must satisfy enum: ["leaf", 1]']),
        ({"name": "a", "size": True}, ['size must satisfy anyOf: [{"type": "integer"}, {"type": "null"}]']),
        ({"name": "a", "size": 1.5}, ['size must satisfy anyOf: [{"type": "integer"}, {"type": "null"}]']),
        ({"name": "a", "version": True}, ["version must satisfy const: 1"]),
        ({"name": "a", "more": 1}, ["the value: Additional properties are not allowed ('more' was unexpected)"]),
        ({"name": "a", "children": [{"name": "b"}, {"nam": "c"}]}, None),
        ({"name": "a", "mark": {"x": "far"}}, ['mark.x must satisfy type: "number"']),
    ],
)
def test_a_value_that_does_not_fit_a_schema_says_where(value: Any, faults: list[str] | None) -> None:
    expected = faults or [
        "children[1]: 'name' is a required property",
        "children[1]: Additional properties are not allowed ('nam' was unexpected)",
    ]
    assert value_faults(value, TREE) == expected


def test_a_schema_that_only_refers_to_itself_ends() -> None:
    assert value_faults({}, {"$ref": "#"}) == ["it is nested too deeply"]


def test_types_of_a_union_are_those_that_were_given() -> None:
    require_output(UnionOutput((Ticket, Refusal, TREE)))
    assert output_keys(node(UnionOutput((Refusal,)))) == {"reason", "result", "matched_type"}
