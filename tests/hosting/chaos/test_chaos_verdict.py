"""The verdict on a storm finds what is wrong: a check that can't fail proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hosting.chaos.verdict import Trial
from tests.hosting.chaos.world import Fact

if TYPE_CHECKING:
    from tests.hosting.chaos.world import What

WORK = ("r", "pay")
A, B = 1, 2


def effect(pid: int, life: int = 1, key: str = "k") -> Fact:
    return Fact("effect", pid, *WORK, key, life)


def returned(pid: int, life: int = 1) -> Fact:
    return Fact("returned", pid, *WORK, life=life)


def born(pid: int, life: int = 1) -> Fact:
    return Fact("born", pid, life=life)


def violations(*facts: Fact) -> list[str]:
    return list(Trial.of(facts).violations([WORK]))


def test_work_done_once_is_accepted() -> None:
    assert violations(born(A), effect(A), returned(A)) == []


def test_work_in_flight_at_a_kill_may_be_done_again() -> None:
    facts = (born(A), effect(A), Fact("killing", A), born(B), effect(B), returned(B))
    assert violations(*facts) == []
    assert Trial.of(facts).repeats == 1


def test_repeated_finished_work_is_detected() -> None:
    found = violations(born(A), effect(A), returned(A), Fact("killing", A), born(B), effect(B))
    assert [each for each in found if "done again" in each] == found != []


def test_a_frozen_host_may_repeat_what_it_was_about_to_do() -> None:
    before = (born(A), Fact("frozen", A), born(B), effect(B), returned(B))
    assert violations(*before, Fact("thawing", A), effect(A)) == []
    assert any("nobody had frozen" in each for each in violations(*before, effect(A)))


def test_a_frozen_host_that_records_work_after_its_successor_is_detected() -> None:
    frozen = (born(A), effect(A), Fact("frozen", A), born(B), effect(B), returned(B), Fact("thawing", A))
    assert violations(*frozen) == []
    assert any("more than one life" in each for each in violations(*frozen, returned(A)))


def test_an_attempt_after_the_freeze_must_not_repeat_finished_work() -> None:
    facts = (born(A), Fact("frozen", A), born(B), effect(B), returned(B), Fact("thawing", A), born(A, 2), effect(A, 2))
    assert any("done again by (1, 2)" in each for each in violations(*facts))


def test_work_done_by_two_attempts_without_any_disturbance_is_detected() -> None:
    assert any("undisturbed" in each for each in violations(born(A), effect(A), born(B), effect(B), returned(B)))


def test_a_starved_host_may_be_replaced_but_does_not_excuse_its_successor() -> None:
    stalled = Fact("stalled", A)
    assert violations(born(A), effect(A), born(B), effect(B), returned(B), stalled) == []
    assert violations(born(A), born(B), effect(B), returned(B), stalled, effect(A)) == []
    assert any(
        "done again" in each for each in violations(born(A), effect(A), returned(A), stalled, born(B), effect(B))
    )


def test_work_that_would_be_counted_twice_is_detected() -> None:
    facts = (born(A), effect(A), Fact("killing", A), born(B), effect(B, key="other"), returned(B))
    assert any("2 keys" in each for each in violations(*facts))


def test_missing_work_and_unexpected_work_are_detected() -> None:
    assert violations() == [f"{WORK} was never done"]
    assert list(Trial.of([born(A), effect(A), returned(A)]).violations([])) == [f"{WORK} was not to be done"]


def test_a_write_under_a_replaced_lease_is_detected() -> None:
    def fact(what: What, pid: int, token: int, key: str = "") -> Fact:
        return Fact(what, pid, "r", key=key, token=token)

    leases = [fact("claimed", A, 1), fact("writing", A, 1, "1"), fact("claimed", B, 2), fact("wrote", A, 1, "1")]
    late = [*leases, fact("writing", A, 1, "2")]
    assert list(Trial.of([*late, fact("refused", A, 1, "2")]).violations([])) == []
    assert len(list(Trial.of([*late, fact("wrote", A, 1, "2")]).violations([]))) == 1


def test_a_lease_that_was_not_released_counts_as_a_takeover() -> None:
    def fact(what: What, pid: int, token: int) -> Fact:
        return Fact(what, pid, "r", token=token)

    facts = [fact("claimed", A, 1), fact("claimed", B, 2), fact("released", A, 1), fact("claimed", A, 3)]
    assert Trial.of(facts).takeovers == 2
    assert Trial.of([*facts, fact("released", A, 3), fact("claimed", B, 4)]).takeovers == 2
