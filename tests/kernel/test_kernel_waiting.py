"""Activations and messages that wait, and what lets them go on: enumerated, without a clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest
from small_graphs import subsets

from perdure.kernel import (
    Activation,
    Cancelled,
    Delayed,
    Delivery,
    Effects,
    FanIn,
    Limits,
    Request,
    RoutedMessage,
    Snapshot,
    Suspended,
    Suspension,
    activation_id_of,
    answer,
    begin_turn,
    fold,
    plan,
    receive,
    reopen,
    revoke_cancel,
    wake,
)

EARLY, NOON, LATE = "2024-01-01T06", "2024-01-01T12", "2024-01-01T18"
MOMENTS = (EARLY, NOON, LATE)
WHY = Cancelled(NOON, "alice", "enough")


def message(target: str, value: str = "m") -> Delivery:
    return Delivery(target, ("s",), (value,), send="s#0/0")


def sleeper(name: str, wake_at: str | None = None, awaits: str | None = None) -> Suspended:
    return Suspended(replace(message(name), activation_id=f"1.0/{name}#0"), wake_at, awaits)


def later(due: str, *targets: str, fan_ins: tuple[str, ...] = ()) -> Delayed:
    return Delayed(due, "s", "s#0/0", f"at {due}", None, targets, fan_ins)


def asking(name: str, resumes: str | None) -> Request:
    return Request(name, "a", "data", str, str, resumes=resumes)


def after_superstep(before: Snapshot, *suspensions: Suspension | None) -> Snapshot:
    """The snapshot after its activations have ended, or have been left to wait."""
    effects = [
        Effects(activation, suspension=suspension)
        for activation, suspension in zip(plan(before), suspensions, strict=True)
    ]
    return fold(before, effects, fan_ins={})


def test_a_suspended_activation_leaves_the_deliveries_and_keeps_its_home() -> None:
    before = Snapshot(turn=2, iteration=3, deliveries=(message("a"), message("b")))
    after = after_superstep(before, Suspension(NOON, None, {"2.3/a#0/step/x#0": "done"}), None)
    assert after.deliveries == ()
    assert after.suspended == (Suspended(replace(message("a"), activation_id="2.3/a#0"), NOON),)
    assert after.carried == {"2.3/a#0/step/x#0": "done"}


def test_an_activation_has_one_home_however_often_it_is_entered() -> None:
    snapshot = Snapshot(turn=1, deliveries=(message("a"),))
    [first] = plan(snapshot)
    for _ in range(3):
        asleep = after_superstep(snapshot, Suspension(NOON, None, {}))
        snapshot = wake(asleep, now=LATE, fan_ins={})
        [again] = plan(snapshot)
        assert activation_id_of(snapshot, again) == "1.0/a#0" == activation_id_of(Snapshot(turn=1), first)


@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True), (False, False)])
def test_records_are_carried_for_those_that_wait_and_for_no_others(ends: tuple[bool, bool]) -> None:
    homes = ("1.0/a#0", "1.0/a#01")  # the second begins like the first
    waiting = tuple(replace(message("a"), activation_id=home) for home in homes)
    before = Snapshot(turn=1, deliveries=waiting, carried={f"{home}/step/x#0": home for home in homes} | {"else": 0})
    suspensions = [None if has_ended else Suspension(NOON, None, {}) for has_ended in ends]
    carrying = [
        Effects(activation, suspension=each and replace(each, carried={f"{home}/step/x#0": home}))
        for activation, each, home in zip(plan(before), suspensions, homes, strict=True)
    ]
    after = fold(before, carrying, fan_ins={})
    kept = {f"{home}/step/x#0" for home, has_ended in zip(homes, ends, strict=True) if not has_ended}
    assert set(after.carried) == kept | {"else"}


@pytest.mark.parametrize("order", list(permutations(MOMENTS)))
@pytest.mark.parametrize("now", MOMENTS)
def test_waking_lets_go_what_is_due_in_the_order_of_its_times(order: tuple[str, ...], now: str) -> None:
    before = Snapshot(
        since_input=9,
        suspended=tuple(sleeper(moment, moment) for moment in order),
        delayed=tuple(later(moment, "t") for moment in order),
    )
    after = wake(before, now=now, fan_ins={})
    due = [moment for moment in MOMENTS if moment <= now]
    assert [each.target_id for each in after.deliveries] == [*due, *("t" for _ in due)]
    assert [each.values[0] for each in after.deliveries[len(due) :]] == [f"at {moment}" for moment in due]
    assert {each.wake_at for each in after.suspended} == {each.due for each in after.delayed} == set(MOMENTS) - {*due}
    assert after.since_input == 0


def test_waking_before_anything_is_due_changes_nothing() -> None:
    before = Snapshot(suspended=(sleeper("a", LATE), sleeper("b", awaits="q")), delayed=(later(LATE, "t"),))
    assert wake(before, now=NOON, fan_ins={}) is before


@pytest.mark.parametrize("held", [(), ("a",), ("b",)])
def test_a_delayed_message_fills_a_fan_in_when_it_is_due(held: tuple[str, ...]) -> None:
    fan_ins = {"g": FanIn(("s", "b"), "t")}
    before = Snapshot(delayed=(later(NOON, fan_ins=("g",)),), fan_in={"g": dict.fromkeys(held, ("held",))})
    after = wake(before, now=NOON, fan_ins=fan_ins)
    if "b" in held:
        assert [each.values for each in after.deliveries] == [(f"at {NOON}", "held")]
        assert after.fan_in == {}
    else:
        assert after.deliveries == ()
        assert after.fan_in["g"]["s"] == (f"at {NOON}",)


def test_a_delayed_message_without_a_target_is_not_kept() -> None:
    before = Snapshot(deliveries=(message("a"),))
    sends = tuple(RoutedMessage("m", None, targets, (), due=NOON) for targets in ((), ("t",)))
    after = fold(before, [Effects(plan(before)[0], sends=sends)], fan_ins={})
    assert [each.targets for each in after.delayed] == [("t",)]
    assert after.deliveries == ()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_sub_workflow_is_told_once_that_something_inside_is_due(depth: int) -> None:
    inner = Snapshot(suspended=(sleeper("a", NOON),))
    for _ in range(depth):
        inner = Snapshot(children={"sub": inner})
    assert (inner.next_timer, inner.is_idle, inner.is_settled) == (NOON, True, False)
    assert wake(inner, now=EARLY, fan_ins={}) is inner
    woken = wake(inner, now=NOON, fan_ins={})
    assert [(each.target_id, each.woken_at, each.values) for each in woken.deliveries] == [("sub", NOON, ())]
    assert wake(woken, now=LATE, fan_ins={}) is woken


@pytest.mark.parametrize("answered", [chosen for chosen in subsets("pq") if chosen])
def test_an_answer_wakes_who_waits_for_it_and_is_kept_for_them(answered: tuple[str, ...]) -> None:
    requests = {name: asking(name, f"1.0/{name}#0") for name in "pq"}
    before = Snapshot(requests=requests, suspended=tuple(sleeper(name, awaits=name) for name in "pq"))
    after = answer(before, [(requests[name], f"to {name}") for name in answered], at=NOON)
    assert [each.target_id for each in after.deliveries] == list(answered)
    assert [each.awaits for each in after.suspended] == [name for name in "pq" if name not in answered]
    assert after.carried == {f"1.0/{name}#0/answer/{name}": f"to {name}" for name in answered}


@pytest.mark.parametrize("ends", [True, False])
def test_what_an_activation_asked_for_itself_is_given_up_when_it_ends(*, ends: bool) -> None:
    home = "1.0/a#0"
    before = Snapshot(
        deliveries=(replace(message("a"), activation_id=home),),
        requests={"its": asking("its", home), "other's": asking("other's", "1.0/b#0"), "open": asking("open", None)},
    )
    after = after_superstep(before, None if ends else Suspension(None, "its", {}))
    assert set(after.requests) == {"other's", "open"} | (set() if ends else {"its"})


def test_an_answer_that_did_not_fit_is_told_to_who_answers_next() -> None:
    request = asking("q", None)
    once = reopen(Snapshot(requests={"q": request}), request, reason="no")
    twice = reopen(once, once.requests["q"], reason="still no")
    assert twice.requests["q"].refusals == ("no", "still no")


def test_a_message_from_outside_goes_on_with_the_turn() -> None:
    before = Snapshot(turn=2, iteration=5, since_input=4)
    after = receive(before, target_id="a", value="m", message_id="c1")
    assert (after.turn, after.iteration, after.since_input) == (2, 5, 0)
    assert [(each.target_id, each.values, each.send) for each in after.deliveries] == [("a", ("m",), "c1")]


def test_a_cancelled_run_is_neither_settled_nor_to_be_woken_and_can_go_on() -> None:
    before = Snapshot(suspended=(sleeper("a", NOON),), since_input=3)
    after = replace(before, cancelled=WHY)
    assert (after.is_settled, after.wake_at) == (False, None)
    assert revoke_cancel(after) == replace(after, cancelled=None, since_input=0)
    assert revoke_cancel(before) is before


@pytest.mark.parametrize(
    ("timer", "run_deadline", "request_deadline"), list(product((None, EARLY, LATE), (None, NOON), (None, EARLY, LATE)))
)
def test_a_run_has_to_be_looked_at_when_the_first_of_its_times_comes(
    timer: str | None, run_deadline: str | None, request_deadline: str | None
) -> None:
    request = replace(asking("q", None), deadline=request_deadline)
    snapshot = Snapshot(
        suspended=(sleeper("a", timer, awaits="q"),), requests={"q": request}, limits=Limits(deadline=run_deadline)
    )
    times = [time for time in (timer, run_deadline, request_deadline) if time is not None]
    assert snapshot.wake_at == min(times, default=None)


def test_a_settled_run_has_no_time_to_be_looked_at_though_it_has_a_deadline() -> None:
    assert Snapshot(limits=Limits(deadline=NOON)).wake_at is None


def test_what_is_spent_is_counted_where_it_is_limited_or_reported() -> None:
    before = Snapshot(deliveries=(message("a"), message("b")), limits=Limits(budget={"supersteps": 5}))
    a, b = plan(before)
    effects = [Effects(a, spent={"usd": 1.5}), Effects(b, spent={"usd": 0.5, "tokens": 10})]
    after = fold(before, effects, fan_ins={})
    assert after.limits.spent == {"supersteps": 1, "usd": 2.0, "tokens": 10}
    assert after.limits.budget == {"supersteps": 5}


def test_an_activation_that_is_left_to_wait_is_counted_when_it_ends() -> None:
    before = Snapshot(deliveries=(message("a"),), limits=Limits(budget={"activations": 1}))
    asleep = after_superstep(before, Suspension(NOON, None, {}))
    assert asleep.limits.spent["activations"] == 0
    woken = wake(asleep, now=NOON, fan_ins={})
    assert (woken.left, after_superstep(woken, None).limits.spent) == ({"activations": 0}, {"activations": 1})


@pytest.mark.parametrize(("limit", "spent", "left"), [(3, 1, 1), (3, 2, 0), (3, 3, -1)])
def test_what_is_left_is_what_the_next_superstep_leaves(limit: int, spent: int, left: int) -> None:
    limits = Limits(budget={"supersteps": limit, "usd": limit}, spent={"supersteps": spent, "usd": spent})
    assert Snapshot(limits=limits).left == {"supersteps": left, "usd": left + 1}


def test_a_turn_goes_on_with_what_waits() -> None:
    before = Snapshot(turn=1, suspended=(sleeper("a", NOON),), delayed=(later(NOON, "t"),), carried={"k": 1})
    after = begin_turn(before, target_id="a", value="m")
    assert (after.suspended, after.delayed, after.carried) == (before.suspended, before.delayed, before.carried)


def test_an_activation_is_named_by_its_executor_and_its_number() -> None:
    assert Activation("a", 1, message("a")).key == "a#1"
