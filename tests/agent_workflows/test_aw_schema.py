"""The JSON schema of definitions accepts and refuses the same documents as reading."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from jsonschema import Draft202012Validator
from tests.agent_workflows.config_samples import live, plain

from perdure.agent_workflows import AgentWorkflowBuildError
from perdure.agent_workflows.definition import config_schema, definition_of, to_config
from perdure.agent_workflows.definition.conditions import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = config_schema()
VALIDATOR: Any = Draft202012Validator(SCHEMA)
FILE = Path(__file__).parents[2] / "docs" / "agent-workflow.schema.json"
WRONG: tuple[Any, ...] = (None, True, -1, 0.5, "", "odd", [], ["odd"], [None], {}, {"odd": 1})
Place = tuple[str | int, ...]


def test_the_schema_is_one_of_draft_2020_12() -> None:
    Draft202012Validator.check_schema(config_schema())
    assert config_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_file_for_editors_is_the_schema() -> None:
    assert json.loads(FILE.read_text()) == config_schema()


def test_the_schema_knows_every_condition() -> None:
    kinds = [SCHEMA["$defs"][each["$ref"].rpartition("/")[2]] for each in SCHEMA["$defs"]["AnyCondition"]["anyOf"]]
    types = [kind["properties"]["type"] for kind in kinds]
    known = {name for each in types for name in each.get("enum", [each.get("const")])}
    assert known == {*OPERATORS, "and", "or", "not"}


@pytest.mark.parametrize("definition", [plain(), live().definition], ids=["plain", "live"])
def test_what_is_written_is_valid(definition: Any) -> None:
    VALIDATOR.validate(to_config(definition).config)


def keys_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value))
    return list(range(len(cast("list[Any]", value)))) if isinstance(value, list) else []


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    yield place
    for key in keys_of(value):
        yield from places(value[key], (*place, key))


def at(config: Any, place: Place) -> Any:
    for key in place:
        config = config[key]
    return config


def changed(config: Any) -> Iterator[tuple[Place, Any]]:
    """The config with each value replaced by wrong ones, each key left out, and one too many in each object."""
    for place in places(config):
        for wrong in WRONG if place else ():
            other = copy.deepcopy(config)
            at(other, place[:-1])[place[-1]] = wrong
            yield place, other
        other = copy.deepcopy(config)
        if isinstance(at(other, place), dict):
            at(other, place)["unknown_key"] = 1
            yield place, other
        if place and isinstance(place[-1], str):
            other = copy.deepcopy(config)
            del at(other, place[:-1])[place[-1]]
            yield place, other


def is_readable(config: Any) -> bool:
    try:
        definition_of(config)
    except AgentWorkflowBuildError:
        return False
    return True


def is_beyond_a_schema(place: Place) -> bool:
    """Return True where reading checks more: names of errors, regular expressions, missing functions."""
    return place[-2:-1] == ("on",) or place[-1:] in {("on",), ("pattern",)}


def parts(config: Any) -> dict[str, Any]:
    """A definition for each node and edge of one, and one of the rest: small ones are quick to look at."""
    one: dict[str, Any] = {"a": {"agent": {}}}
    nodes = {id_: {"agents": {id_: node}} for id_, node in config["agents"].items()}
    edges = {f"edge {place}": {"agents": one, "edges": [edge]} for place, edge in enumerate(config["edges"])}
    return {"rest": {**config, "agents": one, "edges": []}, **nodes, **edges}


PARTS = parts(to_config(plain()).config)


@pytest.mark.parametrize("part", PARTS)
def test_the_schema_refuses_what_reading_refuses_and_nothing_else(part: str) -> None:
    wrong = [
        (place, at(other, place[:-1]))
        for place, other in changed(PARTS[part])
        if not is_beyond_a_schema(place) and VALIDATOR.is_valid(other) is not is_readable(other)
    ]
    assert wrong == []
