"""Definitions as texts and files, short forms, and options given with them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from tests.agent_workflows.building import Cast, review, writers

from perdure import FullHistory, InMemoryCheckpointStorage, LatestOnly, Retention, Retry, open_storage
from perdure.agent_workflows import AgentWorkflow, AgentWorkflowBuildError, Approval, Edge, OnError
from perdure.agent_workflows.definition import config_schema, definition_of, read_text

if TYPE_CHECKING:
    from pathlib import Path

VALIDATOR: Any = Draft202012Validator(config_schema())
ONE: dict[str, Any] = {"agents": {"a": {"agent": {}}}}


def problems_of(config: Any) -> list[str]:
    with pytest.raises(AgentWorkflowBuildError) as refused:
        definition_of(config)
    return list(refused.value.problems)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(ONE), encoding=encoding)
    assert read_text(path) == read_text(str(path)) == read_text(path.read_text(encoding="utf-8")) == ONE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"agents": {"a": {"agent": {}}, "a": {"agent": {"name": "b"}}}}', "the key 'a' appears twice in one object"),
        ('{"a":', "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ("null", "the file 'null' can't be read: No such file or directory; give the path of a file, or JSON"),
    ],
)
def test_what_is_no_definition_says_why(text: str, why: str) -> None:
    with pytest.raises(AgentWorkflowBuildError) as refused:
        AgentWorkflow.from_json(text)
    assert why in str(refused.value)


def test_a_list_is_no_definition() -> None:
    with pytest.raises(AgentWorkflowBuildError, match="a definition is a JSON object, not a list"):
        AgentWorkflow.from_json("[]")


def test_a_file_that_is_no_text_says_so(tmp_path: Path) -> None:
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(AgentWorkflowBuildError, match=r"is not JSON in UTF-8: 'utf-8' codec can't decode"):
        AgentWorkflow.from_json(path)


def test_a_dict_is_for_from_config() -> None:
    wrong: Any = ONE
    with pytest.raises(TypeError, match="from_json reads a file or a text, not a dict; from_config takes a dict"):
        AgentWorkflow.from_json(wrong)


def test_short_forms_say_the_same_as_long_ones() -> None:
    short: dict[str, Any] = {"agent": {}, "retry": 3, "on_error": "isolate", "approval": True}
    config: Any = {
        "agents": {"a": short, "b": {"agent": {}, "approval": "May it?"}, "c": {"agent": {}, "approval": False}},
        "edges": [{"from": "a", "to": ["b", "c"]}, {"from": ["b", "c"], "to": "END"}],
    }
    VALIDATOR.validate(config)
    definition = definition_of(config)
    a, b, c = definition.nodes
    assert (a.retry, a.on_error, a.approval) == (Retry(3), OnError("isolate"), Approval())
    assert (b.approval, c.approval) == (Approval("May it?"), None)
    assert definition.edges == (Edge("a", "b"), Edge("a", "c"), Edge("b", "END"), Edge("c", "END"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"retry": 0}, "agents.a.retry: input should be greater than or equal to 1, not 0"),
    ({"retry": True}, "agents.a.retry: input should be a valid integer, not True"),
    ({"on_error": {"fall": "b"}}, "agents.a.on_error.fall: this key is unknown"),
    ({"id": "b"}, "agents.a.id: the id of a node is its key"),
    (
        {"output": {"type": "union", "types": [{"type": "object"}]}},
        "agents.a.output.types[0].title: it is missing; give it",
    ),
    (
        {"output": {"type": "structured", "schema": {"type": "array"}}},
        "agents.a.output.schema.type: input should be 'object', not 'array'",
    ),
    (
        {"output": {"type": "structured", "schema": {"properties": [1]}}},
        "agents.a.output.schema.properties: input should be a valid dictionary",
    ),
    (
        {"output": {"type": "handoffs", "targets": {}}},
        "agents.a.output.targets: dictionary should have at least 1 item",
    ),
]


@pytest.mark.parametrize(("said", "why"), WRONG)
def test_what_is_wrong_with_a_node_is_marked_by_the_editor_and_by_reading(said: dict[str, Any], why: str) -> None:
    config: Any = {"agents": {"a": {"agent": {}, **said}}}
    assert not VALIDATOR.is_valid(config)
    [found] = problems_of(config)
    assert found.startswith(why)


def test_a_definition_has_a_node() -> None:
    assert not VALIDATOR.is_valid({"agents": {}})
    assert problems_of({"agents": {}}) == ["agents: dictionary should have at least 1 item after validation, not 0"]


async def kept(workflow: AgentWorkflow) -> int:
    """Return the number of checkpoints of the execution "one"."""
    storage: Any = workflow.storage
    found = await storage.list_checkpoints(workflow_name="Review")
    return Counter(each.run_id for each in found)["one"]


async def test_a_store_that_is_named_by_its_url_keeps_the_latest_unless_told_otherwise(tmp_path: Path) -> None:
    cast: Cast = writers()
    agents = {"draft": cast["drafter"], "review": cast["reviewer"]}
    counts: list[int] = []
    for number, retention in enumerate((None, FullHistory())):
        url = f"sqlite:///{tmp_path}/{number}.db"
        built = review(cast).with_checkpointing().with_workflow_store(url, retention).build()
        await built.run("lamps", execution_id="one")
        counts.append(await kept(built))
        other = f"sqlite:///{tmp_path}/{number}-loaded.db"
        await review(cast).with_checkpointing().with_workflow_store(other).build().run("lamps", execution_id="first")
        loaded = await AgentWorkflow.load(other, "Review", retention=retention, agents=agents)
        await loaded.run("lamps", execution_id="one")
        counts.append(await kept(loaded))
    assert counts[:2] == [1, 1]
    assert min(counts[2:]) > 1


async def test_a_storage_object_keeps_what_it_was_made_to_keep() -> None:
    built = review(writers()).with_checkpointing().with_workflow_store(InMemoryCheckpointStorage()).build()
    await built.run("lamps", execution_id="one")
    assert await kept(built) > 1


def test_storages_of_one_place_differ_by_what_they_keep(tmp_path: Path) -> None:
    url, latest = f"file:{tmp_path}", Retention(checkpoints=LatestOnly())
    assert open_storage(url, retention=latest) is open_storage(url, retention=latest)
    assert open_storage(url, retention=latest) is not open_storage(url)
    assert open_storage("memory:kept-by-the-first", retention=latest) is open_storage("memory:kept-by-the-first")
