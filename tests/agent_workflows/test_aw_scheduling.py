"""Scheduling: the next move after each event."""

from __future__ import annotations

from tests.agent_workflows.conducting import defined, otherwise, when

from perdure.agent_workflows import END, START
from perdure.agent_workflows.conductor.scheduling import Progress, begin, finish, follow, halt, idle_loops, leave
from perdure.agent_workflows.plan import Plan


def test_first_nodes_act_first_and_side_by_side() -> None:
    move = begin(Plan(defined("a b c", "a>c", "b>c")))
    assert move.starts == ("a", "b")
    assert [(edge.source, edge.target) for edge in move.taken] == [(START, "a"), (START, "b")]
    assert move.progress.active


def test_a_node_waits_for_all_before_it() -> None:
    plan = Plan(defined("a b c", "a>c", "b>c"))
    after_one = finish(plan, begin(plan).progress, "b", "completed")
    assert after_one.starts == ()
    assert finish(plan, after_one.progress, "a", "completed").starts == ("c",)


def test_a_node_acts_if_one_of_its_edges_is_taken() -> None:
    plan = Plan(defined("a b c", when("a>c"), "b>c"))
    after_one = finish(plan, begin(plan).progress, "a", "completed", holding=())
    assert finish(plan, after_one.progress, "b", "completed").starts == ("c",)


def test_who_no_edge_leads_to_is_skipped_and_so_is_who_comes_after() -> None:
    plan = Plan(defined("a b c d", when("a>b"), when("a>d", "no"), "b>c"))
    move = finish(plan, begin(plan).progress, "a", "completed", holding={"d"})
    assert move.starts == ("d",)
    assert move.skips == ("b", "c")
    assert move.progress.skipped == {"b": "'a' -> 'b' was not taken: it needs answer == 'yes'", "c": "'b' was skipped"}


def test_a_default_edge_is_taken_if_no_condition_holds() -> None:
    plan = Plan(defined("a b c d", when("a>b"), otherwise("a>c"), "a>d"))
    first = begin(plan).progress
    assert finish(plan, first, "a", "completed", holding=()).starts == ("c", "d")
    held = finish(plan, first, "a", "completed", holding={"b"})
    assert held.starts == ("b", "d")
    assert held.progress.skipped == {"c": "'a' -> 'c' was not needed: another condition of 'a' holds"}


def test_what_depends_on_a_failed_node_is_skipped_whatever_else_leads_to_it() -> None:
    plan = Plan(defined("a b c d", "a>c", "b>c", "c>d"))
    after_failure = finish(plan, begin(plan).progress, "a", "failed")
    move = finish(plan, after_failure.progress, "b", "completed")
    assert move.starts == ()
    assert move.progress.skipped == {"c": "'a' has failed", "d": "'c' was skipped: 'a' has failed"}
    assert not move.progress.active


def test_an_isolated_failure_holds_up_nobody() -> None:
    plan = Plan(defined("a b", "a>b"))
    assert finish(plan, begin(plan).progress, "a", "isolated").starts == ("b",)


def test_an_edge_that_goes_back_waits_until_nobody_acts() -> None:
    plan = Plan(defined("a b x y", f"{START}>a", "a>b", "a>x", "x>y", when("b>a"), otherwise(f"b>{END}")))
    after_a = finish(plan, begin(plan).progress, "a", "completed").progress
    after_b = finish(plan, after_a, "b", "completed", holding={"a"})
    assert after_b.progress.active
    after_x = finish(plan, after_b.progress, "x", "completed")
    assert after_x.starts == ("y",)
    over = finish(plan, after_x.progress, "y", "completed")
    assert not over.progress.active
    assert over.progress.held == (("b", "a"),)
    again = follow(plan, over.progress, 0)
    assert again.starts == ("a",)
    assert again.progress.iteration(0) == 1
    assert again.progress.nodes == {"a": "acting"}


def test_what_is_outside_of_a_loop_keeps_its_decision() -> None:
    plan = Plan(defined("out a b", "out>b", f"{START}>a", "a>b", when("b>a"), otherwise(f"b>{END}")))
    one = finish(plan, begin(plan).progress, "out", "completed").progress
    two = finish(plan, one, "a", "completed").progress
    again = follow(plan, finish(plan, two, "b", "completed", holding={"a"}).progress, 0)
    assert again.progress.nodes["out"] == "completed"
    assert finish(plan, again.progress, "a", "completed").starts == ("b",)


def test_an_edge_from_outside_lets_nobody_act_in_a_further_pass() -> None:
    inside = [f"{START}>a", when("a>b"), otherwise("a>c"), "b>c", when("c>a", "no"), otherwise(f"c>{END}")]
    plan = Plan(defined("out a b c", "out>b", *inside))
    first = _played(plan, out=set(), a=set(), b=set(), c={"a"})
    again = follow(plan, first, 0)
    assert again.progress.decision("out", "b") == "spent"
    after_a = finish(plan, again.progress, "a", "completed", holding=())
    assert (after_a.starts, after_a.skips) == (("c",), ("b",))
    needs = "'a' -> 'b' was not taken: it needs answer == 'yes'"
    assert after_a.progress.skipped == {"b": f"'out' -> 'b' has counted in an earlier pass; {needs}"}
    assert finish(plan, again.progress, "a", "completed", holding={"b"}).starts == ("b",)


def test_an_edge_from_outside_counts_until_its_target_has_acted() -> None:
    edges = [f"{START}>a", "a>b", when("b>a"), when("b>mail", "no"), "out>mail"]
    plan = Plan(defined("out a b mail", *edges))
    first = _played(plan, out=set(), a=set(), b={"a"})
    assert "mail" not in first.nodes
    again = follow(plan, first, 0).progress
    assert again.decision("out", "mail") == "taken"


def test_who_comes_after_a_loop_waits_until_it_is_over_unless_the_loop_leads_there() -> None:
    edges = [f"{START}>a", "a>b", when("b>a"), when("b>mail", "no"), when("a>mail", "now"), "out>mail"]
    plan = Plan(defined("out a b mail", *edges))
    begun = finish(plan, begin(plan).progress, "out", "completed").progress
    waiting = finish(plan, finish(plan, begun, "a", "completed").progress, "b", "completed", {"a"})
    assert (waiting.starts, waiting.skips) == ((), ())
    assert follow(plan, waiting.progress, 0).starts == ("a",)
    assert leave(plan, waiting.progress, 0).starts == ("mail",)
    called = finish(plan, finish(plan, begun, "a", "completed", {"mail"}).progress, "b", "completed", {"a"})
    assert called.starts == ("mail",)
    over = finish(plan, finish(plan, begun, "a", "completed").progress, "b", "completed")
    assert over.starts == ("mail",)


def test_who_comes_after_a_loop_is_skipped_once_when_it_is_over() -> None:
    edges = [f"{START}>a", when("a>a"), when("a>x", "no"), "x>y", otherwise(f"a>{END}")]
    plan = Plan(defined("a x y", *edges))
    first = finish(plan, begin(plan).progress, "a", "completed", {"a"})
    assert first.skips == ()
    second = finish(plan, follow(plan, first.progress, 0).progress, "a", "completed")
    assert second.skips == ("x", "y")


def test_three_who_call_each_other_in_a_circle_at_once_all_act_in_the_next_pass() -> None:
    calls = [when("a>b"), when("b>c"), when("c>a"), *(otherwise(f"{each}>{END}") for each in "abc")]
    plan = Plan(defined("a b c", *(f"{START}>{each}" for each in "abc"), *calls))
    all_ = _played(plan, a={"b"}, b={"c"}, c={"a"})
    again = follow(plan, all_, 0)
    assert (again.starts, again.progress.held) == (("a", "b", "c"), ())
    one = follow(plan, _played(plan, a={"b"}, b=set(), c=set()), 0)
    assert one.starts == ("b",)
    assert [one.progress.decision(each, END) for each in "abc"] == ["not_taken", None, "taken"]


def test_while_a_loop_goes_round_its_default_edge_waits_and_nobody_is_skipped() -> None:
    plan = Plan(defined("a b c", f"{START}>a", "a>b", when("b>a", "no"), otherwise("b>c")))
    after_a = finish(plan, begin(plan).progress, "a", "completed").progress
    round_ = finish(plan, after_a, "b", "completed", holding={"a"})
    assert round_.skips == ()
    assert not round_.progress.active
    assert leave(plan, round_.progress, 0).starts == ("c",)
    assert leave(plan, round_.progress, 0).progress.held == ()
    assert follow(plan, round_.progress, 0).starts == ("a",)


def test_a_loop_that_is_left_without_another_way_ends() -> None:
    plan = Plan(defined("a b", f"{START}>a", "a>b", when("b>a"), when(f"b>{END}", "no")))
    after_a = finish(plan, begin(plan).progress, "a", "completed").progress
    move = leave(plan, finish(plan, after_a, "b", "completed", holding={"a"}).progress, 0)
    assert move.starts == ()
    assert not move.progress.active
    assert move.progress.decision("b", END) == "not_taken"


def test_who_is_called_back_waits_for_who_is_called_back_before_it() -> None:
    plan = Plan(defined("a b c", "a>b", "b>c", f"{START}>a", when("c>a"), when("c>b"), otherwise(f"c>{END}")))
    progress = begin(plan).progress
    for node_id in ("a", "b"):
        progress = finish(plan, progress, node_id, "completed").progress
    again = follow(plan, finish(plan, progress, "c", "completed", holding={"a", "b"}).progress, 0)
    assert again.starts == ("a",)
    assert finish(plan, again.progress, "a", "completed").starts == ("b",)


def _one_loop_behind_the_other() -> Plan:
    """`a` and `b`, then `c` and `d`: each pair may go round, and `b` may call `c` and go back at once."""
    edges = ["a>b", when("b>a"), when("b>c", "on", key="more"), "c>d", when("d>c"), otherwise(f"d>{END}")]
    return Plan(defined("a b c d", f"{START}>a", *edges))


def _played(plan: Plan, **holding: set[str]) -> Progress:
    """Let the nodes end in this order, with these conditions."""
    progress = begin(plan).progress
    for node_id, held in holding.items():
        progress = finish(plan, progress, node_id, "completed", held).progress
    return progress


def test_if_two_loops_go_back_at_once_the_one_that_lies_before_the_other_wins() -> None:
    plan = _one_loop_behind_the_other()
    both = _played(plan, a=set(), b={"a", "c"}, c=set(), d={"c"})
    assert both.held == (("b", "a"), ("d", "c"))
    assert idle_loops(plan, both) == [(0, (("b", "a"),))]
    again = follow(plan, both, 0)
    assert (again.starts, again.progress.held, again.progress.followed) == (("a",), (), (("b", "a"),))
    after_a = finish(plan, again.progress, "a", "completed").progress
    # What `d` said of the pass before does not count any more: `b` alone says whether `c` acts.
    assert finish(plan, after_a, "b", "completed").skips == ("c", "d")
    assert finish(plan, after_a, "b", "completed", {"c"}).starts == ("c",)


def test_a_loop_that_is_left_lets_the_one_behind_it_go_on() -> None:
    plan = _one_loop_behind_the_other()
    left = leave(plan, _played(plan, a=set(), b={"a", "c"}, c=set(), d={"c"}), 0).progress
    assert idle_loops(plan, left) == [(0, (("d", "c"),))]
    again = follow(plan, left, 0)
    assert (again.starts, again.progress.nodes["b"]) == (("c",), "completed")


def test_loops_beside_each_other_both_go_round() -> None:
    ends = [otherwise("a>j"), otherwise("b>j")]
    plan = Plan(defined("a b j", f"{START}>a", f"{START}>b", when("a>a"), when("b>b"), *ends))
    both = follow(plan, _played(plan, a={"a"}, b={"b"}), 0)
    assert both.starts == ("a", "b")
    assert (both.progress.rounds, both.progress.held) == ({"0": 1, "1": 1}, ())
    one = follow(plan, _played(plan, a=set(), b={"b"}), 0)
    assert (one.starts, one.progress.rounds) == (("b",), {"1": 1})


def test_a_loop_that_leads_into_another_one_wins_though_that_begins_elsewhere() -> None:
    rounds = ["b>y", when("y>b"), "a>x", when("x>a"), otherwise(f"x>{END}"), otherwise(f"y>{END}")]
    plan = Plan(defined("b a x y", f"{START}>b", f"{START}>a", *rounds, "a>y"))
    assert plan.back_edges == {("y", "b"), ("x", "a")}
    again = follow(plan, _played(plan, b=set(), a=set(), x={"a"}, y={"b"}), 0)
    assert (again.starts, again.progress.held) == (("a",), ())
    after_a = finish(plan, again.progress, "a", "completed")
    assert after_a.starts == ("x", "y")


def test_after_a_halt_nobody_begins_and_who_acts_may_end() -> None:
    plan = Plan(defined("a b c d", "a>c", "b>d"))
    move = halt(plan, begin(plan).progress, ["a"], "'a' was denied")
    assert move.starts == ()
    assert move.progress.skipped == {"c": "'a' was denied", "d": "'a' was denied"}
    assert move.progress.active
    last = finish(plan, move.progress, "b", "completed")
    assert not last.progress.active
    assert last.taken == ()


def test_how_far_it_is_is_kept_as_a_text() -> None:
    plan = Plan(defined("a b c", f"{START}>a", "a>b", when("b>a", "no"), otherwise("b>c")))
    after_a = finish(plan, begin(plan).progress, "a", "completed").progress
    held = finish(plan, after_a, "b", "completed", holding={"a"}).progress
    for progress in (held, follow(plan, held, 0).progress, halt(plan, after_a, ["b"], "no").progress):
        assert Progress.from_text(progress.to_text()) == progress
