"""Paths into outputs that can never exist are errors of `build()`; paths that may exist are not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - pydantic reads it
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, RootModel, computed_field, model_serializer
from tests.agent_workflows.conducting import defined, node

from perdure.agent_workflows import (
    END,
    Approval,
    Condition,
    Edge,
    Equals,
    Exists,
    Handoffs,
    Node,
    OnError,
    Output,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)
from perdure.agent_workflows.inputs import input_problems
from perdure.agent_workflows.plan import Plan
from perdure.agent_workflows.validation import find_problems


class Colour(Enum):
    RED = "red"


@dataclass
class Part:
    name: str
    next: Part | None = None


class Free(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int = 0


class Written(BaseModel):
    n: int = 0

    @model_serializer
    def written(self) -> dict[str, Any]:
        return {"anything": self.n}


class Points(RootModel[list[Part]]):
    """A list of parts."""


class Order(BaseModel):
    number: int
    at: datetime
    colour: Colour
    kind: Literal["a", "b"]
    part: Part
    maybe: Part | Free | None = None
    parts: list[Part]
    pair: tuple[int, Part]
    by_name: dict[str, Part] = Field(default_factory=dict[str, Part])
    anything: dict[str, Any] = Field(default_factory=dict[str, Any])
    free: Free
    written: Written
    points: Points
    text: Annotated[str, Field(min_length=1)]
    told: Annotated[int, PlainSerializer(lambda value: {"value": value})]

    @computed_field
    @property
    def total(self) -> Any:
        return {"sum": 1}


class Refusal(BaseModel):
    why: str
    part: int = 0


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "inner": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "open": {"type": "object"},
        "more": {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        "maybe": {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}},
        "either": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    },
}
ORDER, UNION = StructuredOutput(Order), UnionOutput((Order, Refusal))
DEAD: list[tuple[Output, str]] = [
    (TextOutput("draft"), "draft.x"),
    (Handoffs({"b": "for b"}), "handoff_target.x"),
    (ORDER, "number.x"),
    (ORDER, "at.x"),
    (ORDER, "colour.x"),
    (ORDER, "kind.x"),
    (ORDER, "part.x"),
    (ORDER, "part.next.next.x"),
    (ORDER, "parts.name"),
    (ORDER, "parts.-1"),
    (ORDER, "parts.0.x"),
    (ORDER, "pair.2"),
    (ORDER, "pair.0.x"),
    (ORDER, "by_name.lamp.x"),
    (ORDER, "points.0.x"),
    (ORDER, "text.x"),
    (ORDER, "result.x"),
    (ORDER, "result.part.x"),
    (UNION, "result.x"),
    (UNION, "matched_type.x"),
    (UNION, "part.x"),
    (StructuredOutput(SCHEMA), "text.x"),
    (StructuredOutput(SCHEMA), "inner.x"),
    (StructuredOutput(SCHEMA), "result.inner.x"),
    (StructuredOutput(SCHEMA), "list.0.x"),
    (StructuredOutput(SCHEMA), "list.a"),
    (StructuredOutput(SCHEMA), "maybe.x"),
]
OPEN: list[tuple[Output, str]] = [
    (ORDER, "part.next.next.name"),
    (ORDER, "maybe.anything"),
    (ORDER, "parts.3.name"),
    (ORDER, "pair.1.name"),
    (ORDER, "by_name.lamp.name"),
    (ORDER, "anything.x.y"),
    (ORDER, "free.x.y"),
    (ORDER, "written.anything"),
    (ORDER, "points.0.name"),
    (ORDER, "told.value"),
    (ORDER, "total.sum"),
    (ORDER, "result.part.name"),
    (UNION, "part.name"),
    (UNION, "result.why"),
    (StructuredOutput(SCHEMA), "inner.a"),
    (StructuredOutput(SCHEMA), "open.x"),
    (StructuredOutput(SCHEMA), "more.x"),
    (StructuredOutput(SCHEMA), "list.0.a"),
    (StructuredOutput(SCHEMA), "maybe.a"),
    (StructuredOutput(SCHEMA), "either.x"),
    (StructuredOutput({"type": "object"}), "x.y"),
]


def _found(first: Node, condition: Condition | None = None, **reads: Any) -> list[str]:
    """Return the problems of a node, and of one after it that reads its output or depends on it."""
    choosing: list[Edge | str] = [Edge("a", "b", condition=condition), Edge("a", END, is_default=True)]
    asked = ["a>b"] if condition is None else choosing
    definition = defined([first, node("b", **(reads or {"reads": "request"}))], *asked)
    return [*find_problems(definition), *input_problems(Plan(definition))]


@pytest.mark.parametrize(("output", "path"), DEAD)
def test_a_path_that_leads_nowhere_is_an_error(output: Output, path: str) -> None:
    [read] = _found(node("a", output=output), input_key=path)
    [asked_for] = _found(node("a", output=output), template=f"{{{{a.{path}?}}}}")
    assert "has no " in read
    assert "has no " in asked_for
    [problem] = _found(node("a", output=output), ~Exists(path) & Exists(path.partition(".")[0]))
    assert problem.startswith(f"edge 'a' -> 'b' depends on {path!r}, which is never there: ")
    [problem] = _found(node("a", output=output, approval=Approval(when=Equals(path, 1))))
    assert problem.startswith(f"node 'a': its approval depends on {path!r}, which is never there: ")


@pytest.mark.parametrize(("output", "path"), OPEN)
def test_a_path_that_may_lead_somewhere_is_none(output: Output, path: str) -> None:
    assert _found(node("a", output=output), input_key=path) == []
    assert _found(node("a", output=output), Exists(path)) == []
    assert _found(node("a", output=output, approval=Approval(when=Exists(path)))) == []


def test_it_is_said_where_a_path_ends_and_what_is_there() -> None:
    [problem] = _found(node("a", output=ORDER), input_key="result.part.x")
    assert problem == "node 'b' reads 'result.part.x', and 'part' of 'result' of 'a' has no 'x'; it has 'name', 'next'"
    [problem] = _found(node("a"), input_key="answer.x")
    assert problem == "node 'b' reads 'answer.x', and 'answer' of 'a' has no 'x' in it"


def test_a_path_may_lead_into_what_whoever_stands_in_puts_out() -> None:
    first = node("a", output=StructuredOutput(Refusal), on_error=OnError("fallback", "f"))
    for path, is_fine in (("part.name", True), ("part.x", False)):
        nodes = [first, node("b", input_key=path), node("f", output=ORDER)]
        assert (input_problems(Plan(defined(nodes, "a>b"))) == []) is is_fine


def test_a_failure_is_a_text() -> None:
    first = node("a", output=ORDER, on_error="isolate")
    assert _found(first, Exists("error")) == []
    assert "has no 'x' in it" in _found(first, Exists("error.x"))[0]
