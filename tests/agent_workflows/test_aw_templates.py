"""Templates and paths: literal braces, and elements of lists."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agent_workflows.building import Cast

from perdure.agent_workflows import AgentWorkflow, AgentWorkflowBuildError, Equals
from perdure.agent_workflows.inputs import Reference, TemplateError, parse_template


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("a {{{{ b", ("a ", "{{", " b")),
        ("{{{{name}}", ("{{", "name}}")),
        ("{{{{{{name}}", ("{{", Reference("name"))),
        ('{"x": {{{name}}}}', ('{"x": {', Reference("name"), "}}")),
        ("}}}}", ("}}}}",)),
    ],
)
def test_four_braces_are_two_that_begin_no_name(template: str, parts: tuple[Any, ...]) -> None:
    assert parse_template(template) == parts


@pytest.mark.parametrize("template", ["{{name", "{{{{{{name", "{{ {{name}}"])
def test_braces_that_begin_a_name_have_an_end(template: str) -> None:
    with pytest.raises(TemplateError, match=r"or two literal braces as '{{{{'"):
        parse_template(template)


SCHEMA = {"type": "object", "properties": {"points": {"type": "array"}}}


def listing(template: str) -> tuple[Cast, AgentWorkflow]:
    cast = Cast(
        critic=lambda _, __: {"points": ["dark", {"why": "late"}]}, writer=lambda messages, _: messages[-1].text
    )
    workflow = (
        AgentWorkflow.create()
        .add_agent("critic", cast["critic"], structured_output=SCHEMA)
        .add_agent("write", cast["writer"], template=template)
        .from_("critic")
        .to("write", when=Equals("points.1.why", "late"))
        .build()
    )
    return cast, workflow


async def test_a_path_leads_into_lists_by_number() -> None:
    _, workflow = listing("{{{{ {{critic.points.0}}, {{points.1.why}}, {{input.words.0}}{{points.7?}}")
    assert (await workflow.run({"words": ["first"]})).outputs["write.answer"] == "{{ dark, late, first"


async def test_an_element_that_is_not_there_is_missing() -> None:
    _, workflow = listing("{{points.2}}")
    with pytest.raises(Exception, match="'points' of 'critic' has no '2'"):
        await workflow.run("x")


@pytest.mark.parametrize(
    ("key", "value", "holds"),
    [
        ("a.0", 1, True),
        ("a.1.b", 2, True),
        ("a.2", 1, False),
        ("a.00", 1, False),
        ("a.-1", 1, False),
        ("t.0", "x", False),
    ],
)
def test_conditions_lead_into_lists_by_number(key: str, value: object, holds: bool) -> None:  # noqa: FBT001
    assert Equals(key, value).holds({"a": [1, {"b": 2}], "t": "xyz"}) is holds


def test_keys_with_dots_are_refused() -> None:
    cast = Cast(writer=["x"])
    with pytest.raises(AgentWorkflowBuildError, match=r"its output 'a\.b' could not be read"):
        AgentWorkflow.create().add_agent("w", cast["writer"], output_key="a.b").build()
