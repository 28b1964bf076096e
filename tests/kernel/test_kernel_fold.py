"""Planning and folding, by enumeration: every small graph, every small plan, every small effect."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from small_graphs import IDS, Routes, small_graphs

from perdure.kernel import (
    Activation,
    Conflict,
    Delayed,
    Delivery,
    Effects,
    FanIn,
    Limits,
    Output,
    Request,
    RoutedMessage,
    Snapshot,
    Suspended,
    Trail,
    Write,
    conflicts,
    fold,
    plan,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.kernel import StateKey

KEY, OTHER_KEY = ("", "key"), ("", "other")
BARRIER = "barrier"
FAN_INS = {BARRIER: FanIn(("a", "b"), "c")}
WHOLE: dict[str, Any] = {
    "iteration": 3,
    "since_input": 2,
    "fan_in": {BARRIER: {"a": ("held",)}},
    "state": {KEY: "kept"},
    "executors": {"c": "state"},
    "requests": {"r": Request("r", "c", "data", str, str)},
    "outputs": Trail((), (Output("c", "output", "told"),)),
    "children": {"c": Snapshot(turn=4)},
    "suspended": (Suspended(Delivery("c", (), (), "turn:1", activation_id="1.0/c#0"), wake_at="later"),),
    "delayed": (Delayed("later", "c", "c#0/0", "data", None, ("a",), ()),),
    "carried": {"1.0/c#0/step/name#0": "record"},
    "limits": Limits("later", {}, {"usd": 3}),
}
COUNTED = {*WHOLE, "deliveries"}


def delivery_to(target_id: str) -> Delivery:
    return Delivery(target_id, ("outside",), ("message",), send="turn:1")


def small_plans(length_max: int) -> Iterator[tuple[str, ...]]:
    for length in range(length_max + 1):
        yield from product(IDS, repeat=length)


def planned(targets: Sequence[str]) -> tuple[Activation, ...]:
    return plan(Snapshot(deliveries=tuple(map(delivery_to, targets))))


def test_a_plan_has_one_activation_for_each_delivery_in_its_order() -> None:
    for targets in small_plans(4):
        deliveries = tuple(replace(delivery_to(target), send=f"turn:{n}") for n, target in enumerate(targets))
        activations = plan(Snapshot(deliveries=deliveries))
        assert tuple(activation.delivery for activation in activations) == deliveries
        assert tuple(activation.executor_id for activation in activations) == targets


def test_the_activations_of_an_executor_are_numbered_in_order_and_no_two_share_a_key() -> None:
    for targets in small_plans(4):
        activations = planned(targets)
        assert len({activation.key for activation in activations}) == len(targets)
        for executor_id in IDS:
            ordinals = [activation.ordinal for activation in activations if activation.executor_id == executor_id]
            assert ordinals == list(range(targets.count(executor_id)))


# The laws of routing: what was sent is what arrives, once. Each message is a text of its own, such as "0/a/1".


def messages_of(source_id: str, count: int, *, round_: int = 0) -> tuple[str, ...]:
    return tuple(f"{round_}/{source_id}/{n}" for n in range(count))


def folded(before: Snapshot, counts: Mapping[str, int], routes: Routes, *, round_: int = 0) -> Snapshot:
    """A superstep in which each executor is active once and sends so many messages, routed as the edges say."""
    effects = [
        Effects(
            Activation(source, 0, delivery_to(source)),
            sends=tuple(
                RoutedMessage(message, None, routes.direct[source], routes.barriers[source])
                for message in messages_of(source, count, round_=round_)
            ),
        )
        for source, count in counts.items()
    ]
    return fold(before, effects, fan_ins=routes.fan_ins)


def gathered_in(snapshot: Snapshot) -> dict[str, Delivery]:
    return {delivery.send: delivery for delivery in snapshot.deliveries if delivery.is_gathered}


def held_in(snapshot: Snapshot, key: str, sources: Sequence[str]) -> tuple[object, ...]:
    return tuple(value for source in sources for value in snapshot.fan_in.get(key, {}).get(source, ()))


def all_counts(executors: int) -> list[dict[str, int]]:
    return [dict(zip(IDS, counts, strict=False)) for counts in product(range(3), repeat=executors)]


@pytest.mark.parametrize("executors", [1, 2, 3])
def test_no_delivery_is_lost_or_doubled(executors: int) -> None:
    for routes in map(Routes.of, small_graphs(executors=executors, edges_max=4)):
        for counts in all_counts(executors):
            direct = [d for d in folded(Snapshot(), counts, routes).deliveries if not d.is_gathered]
            arrived = [(d.sources[0], d.values[0], d.target_id) for d in direct]
            assert arrived == [
                (source, message, target)
                for source, count in counts.items()
                for message in messages_of(source, count)
                for target in routes.direct[source]
            ]


@pytest.mark.parametrize("executors", [2, 3])
def test_a_fan_in_holds_or_hands_over_every_message_once_in_the_order_of_its_sources(executors: int) -> None:
    for routes in map(Routes.of, small_graphs(executors=executors, edges_max=4)):
        for counts in all_counts(executors) if routes.fan_ins else ():
            after = folded(Snapshot(), counts, routes)
            gathered = gathered_in(after)
            for key, group in routes.fan_ins.items():
                messages = tuple(m for source in group.source_ids for m in messages_of(source, counts[source]))
                if all(counts[source] for source in group.source_ids):
                    expected = Delivery(group.target_id, group.source_ids, messages, send=key, is_gathered=True)
                    assert gathered[key] == expected
                    assert key not in after.fan_in
                else:
                    assert key not in gathered
                    assert held_in(after, key, group.source_ids) == messages


def test_a_fan_in_that_spans_supersteps_keeps_the_order_of_sending_of_each_source() -> None:
    second = {"a": 1, "b": 2, "c": 0}
    for routes in map(Routes.of, small_graphs(executors=3, edges_max=4)):
        for first in all_counts(3) if routes.fan_ins else ():
            halfway = folded(Snapshot(), first, routes)
            after = folded(halfway, second, routes, round_=1)
            released, gathered = gathered_in(halfway), gathered_in(after)
            for key, group in routes.fan_ins.items():
                messages = tuple(
                    message
                    for source in group.source_ids
                    for message in (
                        *messages_of(source, 0 if key in released else first[source]),
                        *messages_of(source, second[source], round_=1),
                    )
                )
                found = gathered[key].values if key in gathered else held_in(after, key, group.source_ids)
                assert found == messages


def test_a_fan_in_looks_at_the_whole_superstep_and_leaves_no_residue() -> None:
    after = fold(
        Snapshot(),
        [
            Effects(Activation("a", 0, delivery_to("a")), sends=(RoutedMessage("a0", None, (), (BARRIER,)),)),
            Effects(
                Activation("b", 0, delivery_to("b")),
                sends=(RoutedMessage("b0", None, (), (BARRIER,)), RoutedMessage("b1", None, (), (BARRIER,))),
            ),
        ],
        fan_ins=FAN_INS,
    )
    assert [delivery.values for delivery in after.deliveries] == [("a0", "b0", "b1")]
    assert after.fan_in == {}


def test_a_fan_in_can_be_filled_by_several_activations_of_one_source() -> None:
    first, second, third = planned(("b", "a", "b"))
    after = fold(
        Snapshot(),
        [
            Effects(activation, sends=(RoutedMessage(activation.key, None, (), (BARRIER,)),))
            for activation in (first, second, third)
        ],
        fan_ins=FAN_INS,
    )
    assert [delivery.values for delivery in after.deliveries] == [("a#0", "b#0", "b#1")]


def test_messages_arrive_in_plan_order_and_gathered_ones_after_all_others() -> None:
    for targets in small_plans(3):
        effects = [
            Effects(activation, sends=(RoutedMessage(activation.key, None, ("c", "b"), (BARRIER,)),))
            for activation in planned(targets)
        ]
        after = fold(Snapshot(), effects, fan_ins=FAN_INS)
        direct = [(d.values[0], d.target_id) for d in after.deliveries if not d.is_gathered]
        assert direct == [(effect.activation.key, target) for effect in effects for target in ("c", "b")]
        assert [d.is_gathered for d in after.deliveries] == sorted(d.is_gathered for d in after.deliveries)


# The laws of the other parts. Every effect below is tried in every place of every plan.


def small_effects(activation: Activation) -> tuple[Effects, ...]:
    name = activation.key
    request = Request(f"request of {name}", activation.executor_id, name, str, str)
    everything = Effects(
        activation,
        sends=(RoutedMessage(name, "b", ("b",), ()), RoutedMessage(name, None, ("a", "c"), (BARRIER,))),
        writes=(Write(KEY, name), Write(OTHER_KEY, None, erase=True)),
        requests=(request,),
        outputs=(Output(activation.executor_id, "output", name), Output(activation.executor_id, "intermediate", name)),
        executor_state=f"state of {name}",
        child=Snapshot(turn=activation.ordinal + 1),
    )
    return (
        Effects(activation),
        everything,
        Effects(activation, sends=everything.sends),
        Effects(activation, writes=(Write(KEY, name), Write(OTHER_KEY, name))),
        Effects(activation, writes=(Write(KEY, None, erase=True),)),
        Effects(activation, requests=everything.requests, outputs=everything.outputs),
        Effects(activation, executor_state=f"state of {name}"),
        Effects(activation, child=Snapshot(turn=activation.ordinal + 1)),
    )


BEFORE = Snapshot(
    turn=2,
    iteration=5,
    since_input=3,
    fan_in={BARRIER: {"a": ("held",)}},
    state={KEY: "old", OTHER_KEY: "old"},
    executors={"a": "old state of a"},
    requests={"old": Request("old", "a", "old", str, str)},
    outputs=Trail().extended([Output("a", "output", "old")]),
    children={"c": Snapshot(turn=9)},
    kwargs="kwargs",
)


def all_supersteps(length_max: int) -> Iterator[tuple[Effects, ...]]:
    for targets in small_plans(length_max):
        yield from product(*(small_effects(activation) for activation in planned(targets)))


def test_every_part_of_the_next_snapshot_is_what_the_effects_say_in_plan_order() -> None:
    for effects in all_supersteps(3):
        after = fold(BEFORE, effects, fan_ins=FAN_INS)
        state: dict[StateKey, object] = dict(BEFORE.state)
        for effect in effects:
            for write in effect.writes:
                state.pop(write.key, None)
                if not write.erase:
                    state[write.key] = write.value
        assert after.state == state
        assert list(after.outputs) == [*BEFORE.outputs, *(output for effect in effects for output in effect.outputs)]
        assert list(after.requests) == ["old", *(request.id for effect in effects for request in effect.requests)]
        executors = {e.activation.executor_id: e.executor_state for e in effects if e.executor_state is not None}
        assert after.executors == {**BEFORE.executors, **executors}
        children = {e.activation.executor_id: e.child for e in effects if e.child is not None}
        assert after.children == {**BEFORE.children, **children}


def test_a_superstep_counts_one_and_leaves_the_turn_and_the_answers_alone() -> None:
    for effects in all_supersteps(1):
        after = fold(BEFORE, effects, fan_ins=FAN_INS)
        assert (after.turn, after.iteration, after.since_input) == (2, 6, 4)
        assert (after.answered, after.kwargs) == (BEFORE.answered, BEFORE.kwargs)


def test_folding_does_not_change_the_snapshot_before() -> None:
    held, state, requests = {"a": ("held",)}, {KEY: "old"}, dict(BEFORE.requests)
    executors, children = dict(BEFORE.executors), dict(BEFORE.children)
    before = replace(
        BEFORE, fan_in={BARRIER: held}, state=state, executors=executors, requests=requests, children=children
    )
    for effects in all_supersteps(2):
        fold(before, effects, fan_ins=FAN_INS)
    assert held == {"a": ("held",)}
    assert state == {KEY: "old"}
    assert requests == BEFORE.requests
    assert (executors, children) == (BEFORE.executors, BEFORE.children)


def test_what_no_effect_touches_is_the_same_object_in_the_next_snapshot() -> None:
    after = fold(BEFORE, [Effects(Activation("b", 0, delivery_to("b")))], fan_ins=FAN_INS)
    assert after.state is BEFORE.state
    assert after.executors is BEFORE.executors
    assert after.requests is BEFORE.requests
    assert after.outputs is BEFORE.outputs
    assert after.children is BEFORE.children


def test_every_field_that_a_superstep_does_not_count_goes_on_as_it_is() -> None:
    """A field that is added to the snapshot must not be forgotten by the fold, nor an effect's by what copies one."""
    others: dict[str, Any] = {each.name: object() for each in fields(Snapshot) if each.name not in COUNTED}
    before = Snapshot(**others, **WHOLE)
    after = fold(before, [Effects(Activation("b", 0, delivery_to("b")))], fan_ins=FAN_INS)
    for each in fields(Snapshot):
        if each.name not in {"iteration", "since_input", "deliveries"}:
            assert getattr(after, each.name) == getattr(before, each.name), each.name


def test_deliveries_of_one_sending_share_its_name_and_no_two_sendings_do() -> None:
    for effects in all_supersteps(3):
        after = fold(Snapshot(), effects, fan_ins=FAN_INS)
        sends = [delivery.send for delivery in after.deliveries if not delivery.is_gathered]
        expected = [
            f"{effect.activation.key}/{n}"
            for effect in effects
            for n, sent in enumerate(effect.sends)
            for _ in sent.targets
        ]
        assert sends == expected


def test_a_merged_value_stands_for_every_write_of_its_key() -> None:
    effects = [Effects(activation, writes=(Write(KEY, activation.key),)) for activation in planned(("a", "b"))]
    after = fold(Snapshot(), effects, fan_ins={}, merged={KEY: "merged"})
    assert after.state == {KEY: "merged"}


def test_a_conflict_is_a_key_that_several_executors_wrote_and_names_them_in_plan_order() -> None:
    for effects in all_supersteps(3):
        found = {conflict.key: conflict for conflict in conflicts(effects)}
        for key in (KEY, OTHER_KEY):
            writers = tuple(
                dict.fromkeys(
                    effect.activation.executor_id
                    for effect in effects
                    if any(write.key == key for write in effect.writes)
                )
            )
            assert found.get(key) == (Conflict(key, writers) if len(writers) > 1 else None)
