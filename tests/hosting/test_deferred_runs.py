"""Which runs a scheduler leaves alone, and for how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from perdure.clock import now
from perdure.hosting.embedded import DeferredRuns, pause_seconds, situation_of
from perdure.records import Due, RunRecord
from perdure.testing.clock import ManualClock


def due(head: str = "r@0", *, commands: int = 0, attempts: int = 0, wake_at: str | None = None) -> Due:
    record = RunRecord("r", "w", "", "", None, None, head, 0, settled=False, owner=None)
    return Due(replace(record, wake_at=wake_at, attempts=attempts), commands)


def test_a_run_that_made_no_progress_is_deferred_until_its_situation_changes() -> None:
    clock = ManualClock()
    deferred, at = DeferredRuns(clock), now(clock)
    deferred.defer("r", situation_of(due(), at=at))
    assert deferred.is_deferred("r", situation_of(due(), at=at), at=at)
    for other in (due("r@1"), due(commands=1), due(attempts=1), due(wake_at=at)):
        assert not deferred.is_deferred("r", situation_of(other, at=at), at=at)
    assert list(deferred.moments()) == []


def test_the_delay_of_a_deferred_run_grows_each_time() -> None:
    clock = ManualClock()
    deferred, situation = DeferredRuns(clock), situation_of(due(), at=now(clock))
    for pause in (0.25, 0.5, 1.0, 2.0):
        deferred.defer_for_a_while("r", situation)
        clock.advance(timedelta(seconds=pause) - timedelta(milliseconds=1))
        assert deferred.is_deferred("r", situation, at=now(clock))
        clock.advance(timedelta(milliseconds=1))
        assert not deferred.is_deferred("r", situation, at=now(clock))
    assert pause_seconds(1000) == 60.0


def test_the_delay_of_a_suspect_grows_with_its_attempts() -> None:
    clock = ManualClock()
    for attempts, pause in ((2, 1.0), (3, 2.0), (4, 4.0)):
        deferred, situation = DeferredRuns(clock), situation_of(due(attempts=attempts), at=now(clock))
        assert not deferred.was_deferred("r", situation)
        deferred.suspect("r", situation)
        assert deferred.was_deferred("r", situation)
        clock.advance(timedelta(seconds=pause) - timedelta(milliseconds=1))
        assert deferred.is_deferred("r", situation, at=now(clock))
        clock.advance(timedelta(milliseconds=1))
        assert not deferred.is_deferred("r", situation, at=now(clock))


def test_runs_that_are_no_longer_due_are_forgotten() -> None:
    deferred = DeferredRuns(ManualClock())
    for run_id in ("r", "s", "t"):
        deferred.defer(run_id, situation_of(due(), at=""))
    deferred.keep_only({"s", "u"})
    assert len(deferred) == 1
    deferred.release("s")
    deferred.release("nobody")
    assert len(deferred) == 0
