"""JSON schemas of outputs: values are checked against ranges, lengths, patterns and all other rules."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from tests.agent_workflows.building import Cast

from perdure import AgentInvalidResponseException
from perdure.agent_workflows import AgentWorkflow
from perdure.agent_workflows.outputs import schema_faults, value_faults

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 3, -5, 2.5, 0.3, 1e300, 10**400),
    *("", "a", "abc", "ABC", "lamp", [], [1], [1, 1], [1, True], [1, 2, 3], ["a", 2]),
    *({}, {"a": 1}, {"a": 1, "b": 2}, {"b": "x"}, {"x-1": 5}, {"a": {"a": []}}),
]
SCHEMAS: list[dict[str, Any]] = [
    {"minimum": 1},
    {"maximum": 1},
    {"exclusiveMinimum": 0},
    {"exclusiveMaximum": 3},
    {"multipleOf": 0.5},
    {"type": "integer", "multipleOf": 3},
    {"minLength": 2},
    {"maxLength": 1},
    {"pattern": "^[a-c]+$"},
    {"minItems": 2},
    {"maxItems": 1},
    {"uniqueItems": True},
    {"uniqueItems": False},
    {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    {"contains": {"type": "string"}},
    {"contains": {"const": 1}, "minContains": 2},
    {"contains": {"type": "integer"}, "maxContains": 1},
    {"contains": {"const": 9}, "minContains": 0},
    {"minProperties": 1},
    {"maxProperties": 1},
    {"propertyNames": {"pattern": "^[a-z]$"}},
    {"patternProperties": {"^x-": {"type": "string"}}},
    {"properties": {"a": {"type": "object"}}, "patternProperties": {"^x": True}, "additionalProperties": False},
    {"dependentRequired": {"a": ["b"]}},
    {"not": {"type": "string"}},
    {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
    {"anyOf": [{"type": "string", "minLength": 3}, {"type": "array", "minItems": 3}]},
    {"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"type": ["null", "object", "array"]}},
    {"properties": {"a": False}},
    {"const": 1},
    {"enum": [1, [1, 2, 3], {"a": 1}]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_schema_takes_what_the_reference_takes_and_nothing_else(schema: dict[str, Any]) -> None:
    reference: Any = Draft202012Validator(schema)
    assert list(schema_faults(schema)) == []
    # A whole number beyond all floats is none for the reference's `multipleOf`.
    known = [value for value in VALUES if "multipleOf" not in schema or value in ("", []) or not is_huge(value)]
    assert [value for value in known if reference.is_valid(value) is bool(value_faults(value, schema))] == []


def is_huge(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) > 1e100


def test_decimals_are_multiples_as_they_are_written() -> None:
    assert value_faults(0.3, {"multipleOf": 0.1}) == []
    assert value_faults(0.35, {"multipleOf": 0.1}) == ["the value must satisfy multipleOf: 0.1"]


def test_large_numbers_are_compared_exactly() -> None:
    assert value_faults(1e300, {"multipleOf": 0.5}) == value_faults(10**400, {"multipleOf": 0.5}) == []
    assert value_faults(1e300 * 1e300, {"multipleOf": 0.5}) == ["the value must satisfy multipleOf: 0.5"]


def test_a_reference_that_leads_nowhere_is_refused() -> None:
    assert schema_faults({"properties": {"n": {"$ref": "#/$defs/none"}}}) == ["'#/$defs/none' refers to nothing in it"]
    assert schema_faults({"properties": {"n": {"$ref": "https://example.org/n.json"}}}) == []
    assert value_faults({"n": 1}, {"properties": {"n": {"$ref": "https://example.org/n.json"}}}) == []


def test_what_is_beyond_a_limit_is_told_with_its_place() -> None:
    schema = {"properties": {"lines": {"items": {"properties": {"n": {"minimum": 1}, "to": {"pattern": "@"}}}}}}
    value = {"lines": [{"n": 1}, {"n": 0, "to": "ann"}]}
    assert value_faults(value, schema) == [
        "lines[1].n must satisfy minimum: 1",
        'lines[1].to must satisfy pattern: "@"',
    ]


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"properties": [1]}, 'properties must satisfy type: "object"'),
        ({"properties": {"a": {"type": "objekt"}}}, "properties.a.type must satisfy anyOf: "),
        ({"properties": {"a": 5}}, 'properties.a must satisfy type: ["object", "boolean"]'),
        ({"required": "a"}, 'required must satisfy type: "array"'),
        ({"properties": {"a": {"minLength": "3"}}}, 'properties.a.minLength must satisfy type: "integer"'),
        ({"properties": {"a": {"pattern": "("}}}, 'properties.a.pattern must satisfy format: "regex"'),
        ({"properties": {"a": {"enum": "abc"}}}, 'properties.a.enum must satisfy type: "array"'),
        ({"$defs": {"x": {"items": [1]}}}, '$defs.x.items must satisfy type: ["object", "boolean"]'),
        ({"anyOf": {}}, 'anyOf must satisfy type: "array"'),
        ({"allOf": [{"not": 3}]}, 'allOf[0].not must satisfy type: ["object", "boolean"]'),
    ],
)
def test_what_is_wrong_with_a_schema_is_told_with_its_place(schema: dict[str, Any], fault: str) -> None:
    [found] = schema_faults(schema)
    assert found.startswith(fault)


class Positive(BaseModel):
    amount: float = Field(gt=0)
    note: str = Field(default="", max_length=3)


async def test_a_definition_that_was_read_back_still_refuses_what_is_out_of_range() -> None:
    cast = Cast(clerk=lambda _, __: {"amount": -5, "note": "long"})
    built = AgentWorkflow.create().add_agent("a", cast["clerk"], structured_output=Positive).build()
    exported = built.to_config()
    assert "checks less, none of its validators; give it again as types={'Positive': Positive}" in exported.left_out[1]
    again = AgentWorkflow.from_config(exported, agents={"a": cast["clerk"]}).build()
    with pytest.raises(
        AgentInvalidResponseException, match="amount must satisfy exclusiveMinimum: 0; note must satisfy maxLength: 3"
    ):
        await again.run("x")
