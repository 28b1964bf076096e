"""Loops: passes, their limit, and when they are left because nothing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.conducting import Says, Troupe, defined, loops, node, otherwise, when

from perdure import InMemoryCheckpointStorage
from perdure.agent_workflows import END, START, IterationLimitError

if TYPE_CHECKING:
    from perdure.agent_workflows import Definition, Edge, Iterations
    from perdure.agent_workflows.messages import NodeTask


def _writing(iterations: Iterations | None = None, **options: Any) -> Definition:
    """Review a draft until the review is positive, then publish it."""
    nodes = [
        node("draft", template="{{input}} {{review.answer?}}", **options),
        node("review", input_key="draft.answer"),
        node("publish", input_key="draft.answer"),
    ]
    edges = [f"{START}>draft", "draft>review", when("review>publish"), otherwise("review>draft")]
    return defined(nodes, *edges, iterations=iterations or loops())


def _strict(task: NodeTask) -> str:
    return "yes" if task.visit == 2 else f"no {task.visit}"


async def test_a_loop_goes_round_until_its_condition_holds() -> None:
    troupe = Troupe(_writing(), {"review": _strict, "draft": lambda task: f"d{task.visit}"})
    played = await troupe.run("poem")
    assert played.texts("draft") == ["poem ", "poem no 0", "poem no 1"]
    assert played.texts("publish") == ["d2"]
    assert played.result.final_answer == "publish(d2)"
    started = [(each.node_id, each.iteration) for each in played.told("agent_started")]
    assert started == [
        ("draft", 0),
        ("review", 0),
        ("draft", 1),
        ("review", 1),
        ("draft", 2),
        ("review", 2),
        ("publish", 2),
    ]
    assert played.result.skipped == {}


async def test_layers_are_told_in_each_pass() -> None:
    troupe = Troupe(_writing(), {"review": _strict, "draft": lambda task: f"d{task.visit}"})
    played = await troupe.run()
    began = [(each.layer, each.iteration) for each in played.told("layer_started")]
    assert began == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]
    assert [(each.layer, each.iteration) for each in played.told("layer_completed")] == began


async def test_a_loop_at_its_limit_fails_and_goes_on_when_it_is_resumed_with_a_larger_one() -> None:
    storage = InMemoryCheckpointStorage()
    says: dict[str, Says] = {"review": _strict, "draft": lambda task: f"d{task.visit}"}
    first = Troupe(_writing(loops(2)), says, storage=storage)
    with pytest.raises(IterationLimitError, match="would go on after 2 passes, and its limit is 2: resume"):
        await first.workflow().run("poem", run_id="r1")
    second = Troupe(_writing(loops(3)), says, storage=storage)
    (result,) = (await second.workflow().run(run_id="r1")).get_outputs()
    assert result.final_answer == "publish(d2)"
    assert [task.visit for task in second.actors["draft"].tasks] == [2]


async def test_a_loop_can_be_left_at_its_limit() -> None:
    nodes = [node("draft", reads="request"), node("review"), node("publish", input_key="draft.answer")]
    edges = [f"{START}>draft", "draft>review", when("review>draft", "no"), otherwise("review>publish")]
    definition = defined(nodes, *edges, iterations=loops(2, then="leave", converges=False))
    troupe = Troupe(definition, {"review": lambda _: "no", "draft": lambda task: f"d{task.visit}"})
    played = await troupe.run()
    assert played.result.final_answer == "publish(d1)"
    (diagnostic,) = played.told("diagnostic")
    assert diagnostic.message == "the loop 'review' -> 'draft' is left: it has had 2 passes"
    assert not played.told("agent_skipped")


async def test_a_loop_that_changes_nothing_is_left() -> None:
    nodes = [node("draft", reads="request"), node("review")]
    edges = [f"{START}>draft", "draft>review", when("review>draft", "no"), otherwise(f"review>{END}")]
    troupe = Troupe(defined(nodes, *edges), {"review": lambda _: "no"})
    played = await troupe.run()
    assert played.result.final_answer == "no"
    assert len(troupe.actors["draft"].tasks) == 2
    (diagnostic,) = played.told("diagnostic")
    assert diagnostic.message == "the loop 'review' -> 'draft' is left: pass 2 has changed nothing"


async def test_keys_that_are_ignored_do_not_count_as_a_change() -> None:
    edges = ["a>a"]
    says: dict[str, Says] = {"a": lambda task: {"answer": "same", "at": task.visit}}
    counted = Troupe(defined([node("a", reads="request")], *edges, iterations=loops(4, then="leave")), says)
    ignored = loops(4, then="leave", ignored_keys=frozenset({"at"}))
    uncounted = Troupe(defined([node("a", reads="request")], *edges, iterations=ignored), says)
    await counted.run()
    await uncounted.run()
    assert (len(counted.actors["a"].tasks), len(uncounted.actors["a"].tasks)) == (4, 2)


async def test_keys_that_are_ignored_are_ignored_inside_of_the_whole_value_too() -> None:
    says: dict[str, Says] = {
        "a": lambda task: {"good": False, "at": task.visit, "result": {"good": 0, "at": task.visit}}
    }
    ignored = loops(4, then="leave", ignored_keys=frozenset({"at"}))
    troupe = Troupe(defined([node("a", reads="request")], "a>a", iterations=ignored), says)
    await troupe.run()
    assert len(troupe.actors["a"].tasks) == 2


async def test_an_outer_loop_goes_on_though_a_pass_of_the_inner_one_has_changed_nothing() -> None:
    nodes = [node("plan", reads="request"), node("write", input_key="plan.answer"), node("check"), node("judge")]
    edges = [
        f"{START}>plan",
        "plan>write",
        "write>check",
        when("check>write", "more"),
        otherwise("check>judge"),
        when("judge>plan", "bad"),
        otherwise(f"judge>{END}"),
    ]
    says: dict[str, Says] = {
        "plan": lambda task: f"plan {task.visit}",
        "check": lambda _: "more",
        "judge": lambda task: "bad" if task.visit < 3 else "good",
    }
    troupe = Troupe(defined(nodes, *edges), says)
    played = await troupe.run()
    assert played.result.final_answer == "good"
    assert [len(troupe.actors[each].tasks) for each in ("plan", "write", "judge")] == [4, 8, 4]


async def test_a_loop_does_not_wait_for_who_has_nothing_to_do_with_it() -> None:
    nodes = [node("x"), node("y"), node("z"), node("draft", reads="request"), node("review")]
    loop = [f"{START}>draft", "draft>review", when("review>draft", "no"), otherwise(f"review>{END}")]
    says: dict[str, Says] = {
        "draft": lambda task: f"d{task.visit}",
        "review": lambda task: "no" if task.visit == 0 else "ok",
    }
    played = await Troupe(defined(nodes, "x>y", "y>z", *loop), says).run()
    told = [(each.node_id, each.iteration) for each in played.told("agent_started")]
    assert told == [("x", 0), ("draft", 0), ("y", 0), ("review", 0), ("z", 0), ("draft", 1), ("review", 1)]
    assert sorted((played.result.final_answer or "").split("\n\n")) == ["ok", "z(y(x(go)))"]


async def test_loops_that_have_nothing_to_do_with_each_other_have_the_limit_each_for_itself() -> None:
    nodes = [node("a", reads="request"), node("b", reads="request")]
    edges = [f"{START}>a", f"{START}>b", *(when(f"{each}>{each}", "no") for each in "ab")]
    ends = [otherwise(f"{each}>{END}") for each in "ab"]
    says: dict[str, Says] = {each: lambda task: f"{task.visit}" if task.visit == 2 else "no" for each in "ab"}
    iterations = loops(3, converges=False)
    result = (await Troupe(defined(nodes, *edges, *ends, iterations=iterations), says).run()).result
    assert result.final_answer == "2\n\n2"


async def test_loops_one_behind_the_other_have_the_limit_each_for_itself() -> None:
    nodes = [node("a", reads="request"), node("b", reads="request")]
    edges = [f"{START}>a", when("a>a", "no"), otherwise("a>b"), when("b>b", "no"), otherwise(f"b>{END}")]
    says: dict[str, Says] = {each: lambda task: f"{task.visit}" if task.visit == 2 else "no" for each in "ab"}
    played = await Troupe(defined(nodes, *edges, iterations=loops(3, converges=False)), says).run()
    assert played.result.final_answer == "2"
    stubborn = Troupe(defined(nodes, *edges, iterations=loops(2, converges=False)), {**says, "a": lambda _: "yes"})
    with pytest.raises(IterationLimitError, match=r"the loop 'b' -> 'b' would go on after 2 passes"):
        await stubborn.run()


async def test_of_two_loops_that_go_back_at_once_the_one_behind_begins_anew() -> None:
    nodes = [node("a", reads="request"), node("b"), node("c", input_key="b.answer"), node("d")]
    back = [when("b>a", "b0"), when("d>c", 1, key="again")]
    edges = [f"{START}>a", "a>b", "b>c", "c>d", *back, otherwise(f"d>{END}")]
    says: dict[str, Says] = {
        "a": lambda task: f"a{task.visit}",
        "b": lambda task: f"b{task.visit}",
        "d": lambda task: {"again": int(task.visit == 0), "answer": task.text},
    }
    played = await Troupe(defined(nodes, *edges), says).run()
    assert played.texts("c") == ["b0", "b1"]
    back_taken = [(each.source, each.target) for each in played.told("edge_traversed") if each.source in "bd"]
    assert back_taken == [("b", "c"), ("b", "a"), ("b", "c"), ("d", END)]


async def test_a_loop_that_changes_nothing_is_left_though_the_one_beside_it_goes_on() -> None:
    nodes = [node("a", reads="request"), node("b", reads="request"), node("j", reads="upstream")]
    edges = [f"{START}>a", f"{START}>b", when("a>a", "no"), when("b>b", 1, key="again")]
    says: dict[str, Says] = {
        "a": lambda _: "no",
        "b": lambda task: {"again": int(task.visit < 4), "answer": f"{task.visit}"},
    }
    troupe = Troupe(defined(nodes, *edges, otherwise("a>j"), otherwise("b>j")), says)
    played = await troupe.run()
    assert played.result.success
    assert [len(troupe.actors[each].tasks) for each in "abj"] == [2, 5, 1]
    (diagnostic,) = played.told("diagnostic")
    assert diagnostic.message == "the loop 'a' -> 'a' is left: pass 2 has changed nothing"


async def test_what_a_node_behind_a_loop_says_does_not_keep_it_going() -> None:
    nodes = [node("a", reads="request"), node("b")]
    says: dict[str, Says] = {"a": lambda _: "no", "b": lambda task: f"{task.visit}"}
    troupe = Troupe(defined(nodes, f"{START}>a", when("a>a", "no"), "a>b"), says)
    assert (await troupe.run()).result.final_answer == "1"
    assert len(troupe.actors["a"].tasks) == 2


async def test_what_was_heard_before_a_limit_is_kept_before_the_run_fails() -> None:
    storage = InMemoryCheckpointStorage()
    says: dict[str, Says] = {"review": _strict, "draft": lambda task: f"d{task.visit}"}
    with pytest.raises(IterationLimitError):
        await Troupe(_writing(loops(2)), says, storage=storage).workflow().run("poem", run_id="r1")
    assert await _completed(storage) == ["draft", "review", "draft", "review"]
    with pytest.raises(IterationLimitError):
        await Troupe(_writing(loops(2)), says, storage=storage).workflow().run(run_id="r1")
    await Troupe(_writing(loops(3)), says, storage=storage).workflow().run(run_id="r1")
    assert await _completed(storage) == ["draft", "review", "draft", "review", "draft", "review", "publish"]


async def _completed(storage: InMemoryCheckpointStorage) -> list[str]:
    """Return the nodes that have ended, from the stored events."""
    return [event.data.node_id async for event in storage.events("r1") if event.type == "agent_completed"]


async def test_a_node_whose_task_has_not_changed_does_not_act_again() -> None:
    nodes = [
        node("plan", reads="request"),
        node("draft", template="{{plan.answer}} {{review.answer?}}"),
        node("review", input_key="draft.answer"),
    ]
    edges = [f"{START}>plan", "plan>draft", "draft>review", when("review>plan", "no"), otherwise(f"review>{END}")]
    says: dict[str, Says] = {
        "review": lambda task: "no" if task.visit == 0 else "yes",
        "draft": lambda task: f"d{task.visit}",
    }
    troupe = Troupe(defined(nodes, *edges, iterations=loops(change_aware=True)), says)
    played = await troupe.run()
    assert [len(troupe.actors[each].tasks) for each in ("plan", "draft", "review")] == [1, 2, 2]
    (skipped,) = played.told("agent_skipped")
    assert (skipped.node_id, skipped.iteration, skipped.reason) == (
        "plan",
        1,
        "its task is the same as in the pass before",
    )
    assert played.result.outputs["plan.answer"] == "plan(go)"
    assert played.result.skipped == {}


async def test_a_loop_in_which_nobody_has_anything_new_to_do_is_left() -> None:
    nodes = [node("a", reads="request"), node("b")]
    edges = [f"{START}>a", "a>b", when("b>a", "no"), otherwise(f"b>{END}")]
    troupe = Troupe(defined(nodes, *edges, iterations=loops(change_aware=True)), {"b": lambda _: "no"})
    played = await troupe.run()
    assert [len(troupe.actors[each].tasks) for each in ("a", "b")] == [1, 1]
    assert played.result.success


async def test_what_a_node_said_in_an_earlier_pass_is_not_read_once_it_is_skipped() -> None:
    nodes = [
        node("a", reads="request"),
        node("extra", reads="request"),
        node("b", template="{{extra.answer?}}|{{a.answer}}"),
    ]
    edges = [
        f"{START}>a",
        when("a>extra", "first"),
        "a>b",
        "extra>b",
        when("b>a", "extra(go)|first"),
        otherwise(f"b>{END}"),
    ]
    says: dict[str, Says] = {"a": lambda task: "first" if task.visit == 0 else "second", "b": lambda task: task.text}
    result = (await Troupe(defined(nodes, *edges), says).run()).result
    assert result.final_answer == "|second"
    assert "extra.answer" not in result.outputs
    assert list(result.skipped) == ["extra"]


async def test_a_node_that_reads_what_came_before_is_told_who_called_it_back() -> None:
    nodes = [node("a"), node("b", reads="upstream"), node("c")]
    edges = ["a>b", "b>c", when("c>b", "again"), otherwise(f"c>{END}")]
    says: dict[str, Says] = {"c": lambda task: "again" if task.visit == 0 else "done"}
    played = await Troupe(defined(nodes, *edges), says).run()
    first, second = played.texts("b")
    assert first == "a(go)"
    assert "again" in second
    assert "a(go)" in second


@pytest.mark.parametrize("leaves", [when("critic>mail"), otherwise("critic>mail")], ids=["condition", "default"])
async def test_who_comes_after_a_loop_acts_once_whether_it_is_left_by_a_condition_or_by_default(leaves: Edge) -> None:
    nodes = [
        node("search", reads="request"),
        node("write", reads="request"),
        node("critic"),
        node("mail", template="{{write.answer}} {{search.answer}}"),
    ]
    edges = [f"{START}>search", f"{START}>write", "write>critic", when("critic>write", "no"), leaves, "search>mail"]
    says: dict[str, Says] = {
        "search": lambda _: "found",
        "write": lambda task: f"draft {task.visit}",
        "critic": lambda task: "no" if task.visit < 2 else "yes",
    }
    played = await Troupe(defined(nodes, *edges), says).run()
    assert played.texts("mail") == ["draft 2 found"]
    assert not played.told("agent_skipped")


async def test_a_loop_that_is_left_at_its_limit_is_left_by_its_default_and_by_no_condition() -> None:
    nodes = [node("write", reads="request"), node("mail")]
    says: dict[str, Says] = {"write": lambda _: "no"}
    for leaves, answer in ((otherwise("write>mail"), "mail(no)"), (when("write>mail"), None)):
        edges = [f"{START}>write", when("write>write", "no"), leaves]
        result = (await Troupe(defined(nodes, *edges, iterations=loops(2, then="leave")), says).run()).result
        assert (result.success, result.final_answer) == (answer is not None, answer)


async def test_what_came_from_outside_of_a_loop_is_known_in_each_pass() -> None:
    nodes = [node("out", reads="request"), node("a", reads="request"), node("b", reads="upstream")]
    edges = [f"{START}>out", f"{START}>a", "out>b", "a>b", when("b>a", "no"), otherwise(f"b>{END}")]
    says: dict[str, Says] = {"a": lambda task: f"a{task.visit}", "b": lambda task: "yes" if task.visit else "no"}
    played = await Troupe(defined(nodes, *edges), says).run()
    assert played.texts("b") == ["out:\nout(go)\n\na:\na0", "out:\nout(go)\n\na:\na1"]
