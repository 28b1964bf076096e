"""Validation reports all problems of a definition at once, before anything runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.agent_workflows.conducting import defined, loops, node, otherwise, when

from perdure.agent_workflows import (
    END,
    START,
    Approval,
    Conversation,
    Definition,
    Edge,
    Equals,
    Exists,
    Handoffs,
    OnError,
    StructuredOutput,
    TextOutput,
)
from perdure.agent_workflows.validation import check_kinds, find_problems

FALLBACK = OnError("fallback", "f")
ROUTER = Handoffs({"b": "for b", "lost": "for nobody"}, default="c")
OPEN = StructuredOutput({"type": "object"})


def test_a_definition_that_makes_sense_has_no_problems() -> None:
    nodes = [node("a", on_error=FALLBACK), node("b", output=TextOutput("draft")), node("c"), node("f")]
    edges = ["a>b", f"{START}>a", when("b>a", key="draft"), otherwise("b>c"), "c>c"]
    assert find_problems(defined(nodes, *edges)) == []


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        (defined(""), "there is no node: add one with add_agent(...)"),
        (defined([node("")]), "a node has an empty id: give it one"),
        (defined("a a"), "2 nodes have the id 'a': give each its own"),
        (defined("START"), "the id 'START' is reserved: give the node another one"),
        (defined("conductor"), "the id 'conductor' is reserved: give the node another one"),
        (defined("a.b"), "node 'a.b': an id has no '.', '?' or braces, and no space at its ends, for '{{node.key}}'"),
        (
            defined([node("a", output=TextOutput("input"))]),
            "node 'a': the key 'input' is reserved for the request: give it another output_key",
        ),
        (defined("a", "a>b"), "edge 'a' -> 'b': there is no node 'b'"),
        (defined("a", "b>a"), "edge 'b' -> 'a': there is no node 'b'"),
        (defined("a", f"a>{START}"), "edge 'a' -> 'START': nothing leads to START; name the first node"),
        (defined("a", f"{END}>a"), "edge 'END' -> 'a': nothing follows END; name a node before it"),
        (defined("a", f"{START}>{END}"), "edge 'START' -> 'END': a node has to be between the two"),
        (
            defined("a b", "a>b", when("a>b")),
            "2 edges lead from 'a' to 'b': declare one, with conditions joined by '|' or '&'",
        ),
        (
            defined("a b", otherwise("a>b")),
            (
                "edge 'a' -> 'b' is a default, and no other edge of 'a' has a condition: give one a condition, or "
                "leave out as_default()"
            ),
        ),
        (
            defined("a b", Edge("a", "b", Equals("answer", 1), is_default=True)),
            "edge 'a' -> 'b' is a default and has a condition: it can be one of the two",
        ),
        (
            defined("a b", when("a>b", key="intent")),
            "edge 'a' -> 'b' depends on 'intent', which 'a' never puts out; it has 'answer'",
        ),
        (
            defined("a b", when(f"{START}>a", key="topic")),
            "edge 'START' -> 'a' depends on 'topic', which 'START' never puts out; it has 'input'",
        ),
        (
            defined("a b c", "a>b", "b>a"),
            "nothing leads to 'a', 'b': each follows another of them; say where it begins, as in from_(START).to('a')",
        ),
        (
            defined("a b", f"{START}>a", "a>b", when("b>a")),
            "no end can be reached from 'a', 'b': say where the loop is left, as in from_('b').to(END).as_default()",
        ),
        (
            defined([node("a", approval=Approval(when=Exists("amount")))]),
            "node 'a': its approval depends on 'amount', which 'a' never puts out; it has 'answer'",
        ),
        (
            defined([node("a", on_error=OnError("fallback"))]),
            "node 'a' has on_error 'fallback', but names no node: give on_error=fallback('node')",
        ),
        (
            defined([node("a", on_error=OnError("isolate", "f")), node("f")]),
            "node 'a' names the fallback 'f', but its on_error is 'isolate': make it 'fallback'",
        ),
        (
            defined([node("a", on_error=OnError("fallback", "a"))]),
            "node 'a' is its own fallback: name another one, or give it a retry",
        ),
        (defined([node("a", on_error=FALLBACK)]), "node 'a': its fallback 'f' does not exist; add that node"),
        (
            defined([node("a", on_error=FALLBACK), node("f"), node("b")], "f>b"),
            (
                "node 'f' is a fallback, so it has no edges of its own: those of the failed node decide what follows; "
                "leave out 'f' -> 'b', or use two nodes"
            ),
        ),
        (
            defined([node("a", on_error=FALLBACK), node("f", reads="request")]),
            "node 'f' is a fallback, and gets the task of the failed node: leave out its template, input_key and reads",
        ),
        (
            defined(
                [
                    node("a", on_error=FALLBACK),
                    node("f", on_error=OnError("fallback", "g")),
                    node("g", on_error=FALLBACK),
                ]
            ),
            "fallbacks form a cycle: 'f' -> 'g' -> 'f'; remove one of them",
        ),
    ],
)
def test_what_is_wrong_is_said(definition: Definition, problem: str) -> None:
    assert problem in find_problems(definition)


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        (defined("a", iterations=loops(0)), "iterations.limit: input should be greater than or equal to 1, not 0"),
        (defined("a", timeout=timedelta()), "timeout: input should be greater than 0 seconds"),
        (defined([node("a", timeout=-1)]), "node 'a': timeout: input should be"),
        (
            defined([node("a", approval=Approval(timeout=timedelta()))]),
            "node 'a': approval.timeout: input should be greater than 0 seconds",
        ),
    ],
)
def test_a_limit_that_is_no_limit_is_refused(definition: Definition, problem: str) -> None:
    _, [found] = check_kinds(definition)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        (Conversation("fork_per_agent", thread_prefix=""), "root"),
        (Conversation("fork_per_agent", thread_id="all", thread_prefix=""), "all"),
        (Conversation("fork_per_agent", thread_id="agent-b"), "b"),
        (Conversation("per_agent", thread_id="root", thread_prefix=""), None),
        (Conversation("shared", thread_id="b", thread_prefix=""), None),
        (Conversation("fork_per_agent"), None),
    ],
)
def test_no_node_speaks_in_the_thread_that_the_others_are_forks_of(policy: Conversation, wrong: str | None) -> None:
    found = find_problems(defined("root all b", conversation=policy))
    thread = policy.thread_id or "root"
    expected = (
        f"the thread of node {wrong!r} would be {thread!r}, which is the root of all threads: give the conversation "
        "policy another thread_prefix or root_thread_id, or the node another id"
    )
    assert found == ([] if wrong is None else [expected])


def test_all_that_is_wrong_is_said_at_once() -> None:
    nodes = [node("r", output=ROUTER), node("b"), node("b")]
    found = find_problems(defined(nodes, "r>b", "r>nobody"))
    assert found == [
        "2 nodes have the id 'b': give each its own",
        "edge 'r' -> 'nobody': there is no node 'nobody'",
        "router 'r' may choose 'lost', which is not a node: add it, or leave the handoff out",
        "router 'r': its default 'c' is not one of its handoffs: 'b', 'lost'",
    ]


def test_a_router_needs_an_edge_to_whom_it_may_choose() -> None:
    found = find_problems(defined([node("r", output=Handoffs({"b": ""})), node("b")]))
    assert found == ["router 'r' may choose 'b', but no edge leads there: add from_('r').to('b')"]


def test_a_condition_may_ask_for_keys_of_who_stands_in_and_for_an_error() -> None:
    nodes = [node("a", on_error=FALLBACK), node("f", output=TextOutput("excuse"), on_error="isolate"), node("b")]
    asked = [when("a>b", key=key) for key in ("answer", "excuse", "error")]
    assert [find_problems(defined(nodes, edge, otherwise(f"a>{END}"))) for edge in asked] == [[], [], []]


def test_keys_that_are_not_known_before_are_not_asked_for() -> None:
    assert find_problems(defined([node("a", output=OPEN), node("b")], when("a>b", key="anything"))) == []


def test_a_condition_may_look_inside_of_a_value() -> None:
    output = StructuredOutput({"type": "object", "properties": {"score": {"type": "number"}}})
    nodes = [node("a", output=output), node("b")]
    assert find_problems(defined(nodes, when("a>b", 3, key="result.score"))) == []
