"""Agent workflows as Mermaid flowcharts."""

from __future__ import annotations

import re
from typing import Any

from perdure.agent_workflows import AgentConfig, Definition, Edge, Equals, GreaterThan, Handoffs, Node, OnError
from perdure.agent_workflows.mermaid import to_mermaid
from perdure.agent_workflows.plan import Plan


def is_urgent(_: Any) -> bool:
    return True


def drawn(*nodes: Node, edges: tuple[Edge, ...] = ()) -> str:
    return to_mermaid(Plan(Definition(name="x", nodes=nodes, edges=edges)))


def node(id_: str, **more: Any) -> Node:
    return Node(id=id_, agent=more.pop("agent", AgentConfig()), **more)


def test_a_workflow_is_drawn_with_all_that_it_has() -> None:
    picture = drawn(
        node("route", output=Handoffs({"draft": "", "answer": ""}), agent=AgentConfig(name="Router")),
        node("draft", on_error=OnError("fallback", "spare")),
        node("answer"),
        node("spare"),
        edges=(
            Edge("START", "route"),
            Edge("route", "draft", Equals("handoff_target", "draft")),
            Edge("route", "answer", is_default=True),
            Edge("draft", "route", predicate=is_urgent),
            Edge("draft", "answer", predicate=lambda _: True),
        ),
    )
    assert picture.splitlines() == [
        "flowchart TD",
        "  START([START])",
        '  n_route{"route<br/>Router"}',
        '  n_draft["draft"]',
        '  n_answer["answer"]',
        '  n_spare["spare"]',
        "  END([END])",
        "  START --> n_route",
        "  n_route -->|\"handoff_target == 'draft'\"| n_draft",
        '  n_route -->|"default"| n_answer',
        '  n_draft -.->|"is_urgent"| n_route',
        '  n_draft -->|"predicate"| n_answer',
        "  n_answer --> END",
        '  n_draft -.-x|"on error"| n_spare',
    ]


def test_ids_and_labels_are_drawn_as_they_are_and_mean_nothing_to_mermaid() -> None:
    evil = 'a"]; click x "javascript:alert(1)"\n%%{init: {}}%% <b>&|`#\u2028\x00'
    picture = drawn(
        node(evil, agent=AgentConfig(name="<script>")),
        node("end"),
        node("a-b"),
        node("a_b"),
        node("é"),
        edges=(Edge(evil, "end", Equals("x", evil) & GreaterThan("y", 2)),),
    )
    lines = picture.splitlines()
    names = [re.match(r" +(\w+)", line) for line in lines[2:7]]
    assert len({name.group(1) for name in names if name}) == 5
    assert "n_a_b_2" in picture
    for line in lines[1:]:
        inside = re.findall(r'"([^"]*)"', line)
        assert line.count('"') == 2 * len(inside)
        for label in inside:
            assert not re.search(r"[<>&|`\x00\u2028]", label.replace("<br/>", "").replace("#", ""))
    assert "<script>" not in picture
    assert "%%" not in picture


def test_long_labels_are_cut() -> None:
    picture = drawn(node("a"), node("b"), edges=(Edge("a", "b", Equals("x", "long" * 100)),))
    assert max(map(len, picture.splitlines())) < 120


def test_the_same_workflow_is_drawn_the_same() -> None:
    nodes = [node(name) for name in "dcba"]
    assert drawn(*nodes) == drawn(*nodes)
    assert [line.strip() for line in drawn(*nodes).splitlines()[2:6]] == [f'n_{name}["{name}"]' for name in "dcba"]
