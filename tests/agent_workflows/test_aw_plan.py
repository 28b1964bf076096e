"""A definition as a graph."""

from __future__ import annotations

from itertools import pairwise

from tests.agent_workflows.conducting import defined, node, otherwise, when

from perdure.agent_workflows import END, START, OnError
from perdure.agent_workflows.plan import Plan


def test_who_nothing_leads_to_is_first_and_who_leads_nowhere_is_last() -> None:
    plan = Plan(defined("a b c", "a>b"))
    ways = [(edge.source, edge.target) for edge in plan.edges]
    assert ways == [("a", "b"), (START, "a"), (START, "c"), ("b", END), ("c", END)]
    assert plan.ends == ("b", "c")


def test_layers_come_after_all_that_they_depend_on() -> None:
    plan = Plan(defined("d c b a", "a>b", "a>c", "b>d", "c>d", "a>d"))
    assert plan.layers == (("a",), ("c", "b"), ("d",))
    assert plan.in_order(["d", "b", "c"]) == ("c", "b", "d")
    assert plan.layer_of("d") == 2


def test_an_edge_to_where_one_came_from_goes_back() -> None:
    plan = Plan(defined("a b c", f"{START}>a", "a>b", "b>a", "b>c"))
    assert plan.back_edges == {("b", "a")}
    assert [edge.source for edge in plan.incoming["a"]] == [START, "b"]
    assert [edge.source for edge in plan.forward_to["a"]] == [START]
    assert [edge.target for edge in plan.forward_from["b"]] == ["c"]


def test_a_node_that_leads_to_itself_begins_at_start_and_can_end() -> None:
    plan = Plan(defined("a", "a>a"))
    assert plan.back_edges == {("a", "a")}
    assert [edge.source for edge in plan.incoming["a"]] == ["a", START]
    assert plan.ends == ("a",)


def test_an_edge_across_two_branches_does_not_go_back() -> None:
    plan = Plan(defined("a b c", "a>b", "a>c", "c>b"))
    assert plan.back_edges == frozenset()
    assert plan.layers == (("a",), ("c",), ("b",))


def test_what_comes_before_and_after_leaves_out_edges_that_go_back() -> None:
    plan = Plan(defined("a b c", f"{START}>a", "a>b", "b>a", "b>c"))
    assert plan.before("b") == {"a"}
    assert plan.after("a") == {"b", "c"}
    assert plan.leading_to("a") == {"a", "b"}


def test_fallbacks_have_no_edges_and_no_layer() -> None:
    first = [node(each, on_error=OnError("fallback", "f")) for each in ("a", "b")]
    plan = Plan(defined([*first, node("f")], "a>b"))
    assert plan.fallbacks == {"f": ("a", "b")}
    assert plan.layers == (("a",), ("b",))
    assert not plan.incoming["f"]
    assert not plan.outgoing["f"]
    assert plan.layer_of("f") == 0


def test_a_long_chain_is_no_problem() -> None:
    ids = [f"n{number}" for number in range(3000)]
    plan = Plan(defined([node(each) for each in ids], *(f"{one}>{next_}" for one, next_ in pairwise(ids))))
    assert len(plan.layers) == 3000


def test_loops_inside_of_each_other_are_one_circle_and_one_behind_the_other_is_another() -> None:
    inside = ["a>b", "b>c", when("c>b"), when("c>a", "no")]
    plan = Plan(defined("o a b c d e", "o>a", *inside, "c>d", "d>e", when("e>d"), otherwise(f"e>{END}")))
    assert plan.cycles == ({"a", "b", "c"}, {"d", "e"})
    assert plan.deciding == ({"o", "a", "b", "c"}, {"o", "a", "b", "c", "d", "e"})
    assert [plan.cycle_of(way) for way in (("c", "b"), ("c", "a"), ("e", "d"))] == [0, 0, 1]


def test_loops_with_something_in_common_behind_them_have_their_passes_together_and_others_are_independent() -> None:
    edges = [f"{START}>a", "a>b", "b>c", when("c>b"), when("c>a", "no"), otherwise(f"c>{END}")]
    plan = Plan(defined("a b c x y z", *edges, "x>y", "y>y", "y>z"))
    assert plan.loops == ({"a", "b", "c"}, {"y", "z"})
    assert plan.influencing == ({"a", "b", "c"}, {"x", "y", "z"})
    assert [plan.loop_of(each) for each in ("a", "c", "x", "z")] == [0, 0, None, 1]
