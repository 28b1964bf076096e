"""Input from outside: a message begins a turn, answers close requests. Nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from small_graphs import subsets

from perdure.kernel import Answered, Delivery, Output, Request, Snapshot, Trail, answer, begin_turn

REQUESTS = {
    name: Request(name, executor_id=f"asker of {name}", data=name, request_type=str, response_type=int)
    for name in "pqr"
}
WAITING = Delivery("b", ("a",), ("waiting",), send="a#0/0")
MIDWAY = Snapshot(
    turn=2,
    iteration=7,
    since_input=4,
    deliveries=(WAITING,),
    fan_in={"barrier": {"a": ("held",)}},
    state={("", "key"): "value"},
    executors={"a": "state"},
    requests=REQUESTS,
    answered=Trail().extended([Answered("earlier", "long ago")]),
    outputs=Trail().extended([Output("a", "output", "told")]),
    children={"c": Snapshot(turn=1)},
    kwargs="kwargs",
    withheld_kwargs=("token",),
)


def test_a_message_is_delivered_to_the_start_after_all_that_waits_already() -> None:
    after = begin_turn(MIDWAY, target_id="a", value="hello")
    assert after.deliveries[0] == WAITING
    [_, delivery] = after.deliveries
    assert (delivery.target_id, delivery.values, delivery.sources) == ("a", ("hello",), ("internal:a",))


def test_a_turn_counts_its_supersteps_from_nought_and_begins_without_outputs() -> None:
    after = begin_turn(MIDWAY, target_id="a", value="hello")
    assert (after.turn, after.iteration, after.since_input, len(after.outputs)) == (3, 0, 0, 0)


def test_a_turn_leaves_state_requests_and_what_fan_ins_hold_as_they_were() -> None:
    after = begin_turn(MIDWAY, target_id="a", value="hello")
    restored = replace(after, turn=2, iteration=7, since_input=4, deliveries=MIDWAY.deliveries, outputs=MIDWAY.outputs)
    assert restored == MIDWAY


def test_the_messages_of_two_turns_are_two_sendings() -> None:
    first = begin_turn(Snapshot(), target_id="a", value="hello")
    second = begin_turn(first, target_id="a", value="hello")
    assert len({delivery.send for delivery in second.deliveries}) == 2


@pytest.mark.parametrize("chosen", [chosen for chosen in subsets("pqr") if chosen])
def test_answers_close_those_requests_and_no_others(chosen: tuple[str, ...]) -> None:
    after = answer(MIDWAY, [(REQUESTS[name], len(name)) for name in chosen], at="now")
    assert after.requests == {name: request for name, request in REQUESTS.items() if name not in chosen}
    assert {name: [given.at for given in after.answers_to(name)] for name in "pqr"} == {
        name: ["now"] if name in chosen else [] for name in "pqr"
    }
    assert [given.at for given in after.answers_to("earlier")] == ["long ago"]


@pytest.mark.parametrize("order", list(permutations("pqr")))
def test_each_answer_is_delivered_once_to_who_asked_in_the_order_of_answering(order: tuple[str, ...]) -> None:
    after = answer(MIDWAY, [(REQUESTS[name], f"answer to {name}") for name in order], at="now")
    assert after.deliveries[0] == WAITING
    answers = after.deliveries[1:]
    assert [delivery.target_id for delivery in answers] == [f"asker of {name}" for name in order]
    assert [delivery.values for delivery in answers] == [(f"answer to {name}",) for name in order]
    assert [delivery.answers for delivery in answers] == [REQUESTS[name] for name in order]


def test_an_answer_goes_on_with_the_turn_but_its_supersteps_count_anew_towards_the_limit() -> None:
    after = answer(MIDWAY, [(REQUESTS["p"], 1)], at="now")
    assert (after.turn, after.iteration, after.since_input) == (2, 7, 0)
    assert after.outputs is MIDWAY.outputs


def test_a_run_is_idle_without_deliveries_and_settled_without_requests_too() -> None:
    idle = replace(MIDWAY, deliveries=())
    settled = replace(idle, requests={})
    assert [(run.is_idle, run.is_settled) for run in (MIDWAY, idle, settled)] == [
        (False, False),
        (True, False),
        (True, True),
    ]
