"""What the bench makes of its samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.aims import aims
from bench.catalogue import chosen, works
from bench.harness import Entry, Sample
from bench.peer import Durability, Place, Store
from bench.peers.limits import limits
from bench.peers.machine import Machine
from bench.peers.perdure import Perdure
from bench.probe import Probe, handed_over, size_of
from bench.script import Model, Script
from bench.server import OwnMeter
from bench.sheets import aims_sheet, work_sheets
from bench.summary import summarize
from bench.work import Point, Reading, Room, require_done
from bench.works.conversation import Conversation
from bench.works.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Peer
    from bench.summary import Results

_PLACE = Place(Store.FILE, Path())


class _Counter:
    """A meter that has seen a kilobyte more each time it is asked."""

    def __init__(self) -> None:
        self._looks = 0

    def written(self) -> int:
        self._looks += 1
        return self._looks * 1000

    def stored(self, place: Place) -> int:
        assert place is _PLACE
        return 0

    def settle(self, place: Place) -> None:
        assert place is _PLACE


def _results(key: str, took: dict[Peer, Sequence[float]], store: Store = Store.NONE) -> Results:
    work = Ring(key, "superstep", (store,), supersteps=1)
    samples = [
        Sample(Entry(work, peer, store, Durability.NONE), number, Reading(seconds))
        for peer, all_seconds in took.items()
        for number, seconds in enumerate(all_seconds, 1)
    ]
    return summarize(samples, baseline="perdure", floor="machine")


def test_ratios_are_taken_within_a_round() -> None:
    results = _results("A", {Machine(): [1.0, 10.0, 2.0], Perdure(): [3.0, 30.0, 6.0]})
    line = results.find("A", "perdure", Store.NONE)
    assert line is not None
    assert (line.median, line.fastest, line.slowest, line.floor) == (6.0, 3.0, 30.0, 3.0)


def test_a_peer_is_compared_in_the_rounds_that_it_took_part_in() -> None:
    results = _results("A", {Machine(): [1.0], Perdure(): [4.0, 400.0]})
    line = results.find("A", "machine", Store.NONE)
    assert line is not None
    assert (line.rounds, line.ratio) == (1, 0.25)


@pytest.mark.parametrize(("seconds", "is_met"), [(2.5, True), (2.6, False)])
def test_an_aim_is_met_up_to_its_limit(seconds: float, is_met: bool) -> None:  # noqa: FBT001 - a table of cases
    found = aims(_results("C", {Machine(): [1.0], Perdure(): [seconds]}, Store.SQLITE), [])
    assert [(aim.line, aim.is_met) for aim in found] == [("C", is_met)]


def test_a_line_without_an_aim_is_information() -> None:
    found = aims(_results("A", {Machine(): [1.0], Perdure(): [9.0]}), [])
    assert [(aim.line, aim.is_met, aim.wanted) for aim in found] == [("A", None, "")]


def test_an_aim_that_was_missed_stands_out() -> None:
    sheet = aims_sheet(aims(_results("C", {Machine(): [1.0], Perdure(): [9.0]}, Store.SQLITE), []))
    assert "**no**" in sheet.rows[0]


def test_what_ballast_adds_is_told_with_its_sign_and_not_judged() -> None:
    works_of_g = [Ring(f"G {kind}", kind, (Store.SQLITE,), supersteps=1) for kind in ("key", "none")]
    samples = [
        Sample(Entry(work, Perdure(), Store.SQLITE, Durability.SYNCED), 1, Reading(0.001, written))
        for work, written in zip(works_of_g, (500.0, 2500.0), strict=True)
    ]
    found = aims(summarize(samples, baseline="perdure", floor="machine"), [])
    assert [aim.is_met for aim in found] == [True, True, None]
    assert found[-1].measured.startswith("-2,000 B")


def test_an_aim_is_not_told_of_what_was_not_measured() -> None:
    assert aims(_results("B", {Perdure(): [1.0]}), []) == []


def test_the_supersteps_that_warm_up_are_not_counted() -> None:
    probe = Probe(_Counter(), _PLACE, warm=3, every=2, settles=True)
    for _ in range(3 + 5):
        probe.tick()
    probe.stop()
    assert [(point.superstep, point.written) for point in probe.points] == [(2, 1000), (4, 2000), (5, 3000)]
    assert probe.finish() == 4000


def test_what_a_process_writes_is_counted_by_the_byte(tmp_path: Path) -> None:
    before = handed_over()
    (tmp_path / "file").write_bytes(b"." * 5000)
    assert handed_over() - before >= 5000


def test_a_peer_that_did_less_is_an_error() -> None:
    with pytest.raises(AssertionError, match="it gave 9, not 10"):
        require_done(9, expected=10)


def test_a_line_is_chosen_by_its_letter_and_the_limits_come_along() -> None:
    assert [work.key for work in chosen(works({}), ["e"])] == ["limits", "E 100", "E 1000", "E 5000"]


def test_a_line_that_is_not_there_ends_the_command() -> None:
    with pytest.raises(SystemExit, match="nothing is called Z"):
        chosen(works({}), ["Z"])


def test_each_limit_is_about_one_store() -> None:
    for limit in limits():
        assert sum(limit.durability(store) is not None for store in Store) == 1


def test_a_small_work_stays_small() -> None:
    for work in works({}):
        small = work.small()
        assert small.key == work.key
        assert small.small().small() == small.small()


def _conversation(*written: int) -> Results:
    """A conversation of a hundred turns, and what a turn has written in each quarter of it."""
    points = [Point(25 * n, 0.25 * n, 25 * sum(written[:n])) for n in range(1, 5)]
    work = Conversation("J 1000", (Store.SQLITE,), turns=100)
    entry = Entry(work, Perdure(), Store.SQLITE, Durability.SYNCED)
    reading = Reading(1.0, points[-1].written, 0.0, tuple(points))
    return summarize([Sample(entry, 1, reading)], baseline="perdure", floor="machine")


@pytest.mark.parametrize(("last", "is_met"), [(1500, True), (1600, False)])
def test_a_turn_may_not_write_more_because_of_what_was_said_before(last: int, is_met: bool) -> None:  # noqa: FBT001
    writes, _, takes = aims(_conversation(1000, 9000, 9000, last), [])
    assert (writes.line, writes.is_met, writes.measured) == (
        "J",
        is_met,
        f"the last quarter {last / 1000:.2f} x the first",
    )
    assert (takes.is_met, takes.measured) == (None, "a turn takes 1.00 x the time")


def test_the_table_of_a_conversation_says_how_its_turns_change() -> None:
    sheet = next(work_sheets(_conversation(1000, 1000, 1000, 2000), baseline="perdure"))
    row = dict(zip(sheet.columns, sheet.rows[0], strict=True))
    assert (row["a turn's time"], row["a turn writes"]) == ("10.0 ms to 10.0 ms", "1.00 KB to 2.00 KB")


def test_a_model_that_is_shown_less_than_was_said_gives_another_answer() -> None:
    script = Script.of(3)
    model = Model(script)
    shown = [script.questions[0], script.answers[0], script.questions[1], script.answers[1], script.questions[2]]
    assert model.reply(shown[2:], str).text != script.answers[2]
    assert model.heard == 0
    assert model.reply(shown, str).text == script.answers[2]
    assert model.heard + len(script.answers[2]) == script.size


async def test_an_agent_is_measured_by_all_that_it_remembers(tmp_path: Path) -> None:
    work = Conversation("J 1000", (Store.SQLITE,), turns=4)
    reading = await work.reading(Perdure(), Room(Place(Store.SQLITE, tmp_path), tmp_path, OwnMeter()))
    assert [point.superstep for point in reading.points] == [1, 2, 3, 4]
    assert reading.stored == size_of(tmp_path) >= Script.of(4).size
