"""Runs that are killed life after life, at directed points and random moments, and end as if nothing had happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.testing.resume.aiming import THROUGH
from perdure.testing.resume.effects import Effects
from perdure.testing.resume.points import Fate, window_of

if TYPE_CHECKING:
    from perdure.testing.resume.aiming import Aim, Aims
    from perdure.testing.resume.chance import Chance
    from perdure.testing.resume.lives import Ended
    from perdure.testing.resume.looking import Look
    from perdure.testing.resume.report import Report
    from perdure.testing.resume.stage import Place, Stage, Undisturbed

_DEATHS_PER_RUN_MAX = 8
_LIFE_SECONDS_DRAWN = 0.4


@dataclass(slots=True)
class _Run:
    """A run on its way: where it is, how many lives it had, what the store said after each, and what has killed it."""

    place: Place
    lives: int = 0
    looks: list[Look] = field(default_factory=list["Look"])
    deaths: list[str] = field(default_factory=list[str])

    @property
    def history(self) -> str:
        """The same in words."""
        return f"in {self.place.directory}, killed at [{', '.join(self.deaths)}]"


@dataclass(slots=True)
class Disturbing:
    """Kills the subject on one kind of store until every known point has killed, and often enough at random."""

    stage: Stage
    expected: Undisturbed
    chance: Chance
    aims: Aims

    def run(self, *, random_kills: int) -> None:
        """Run after run: first the directed ones, then those at random moments."""
        self.aims.learn(self.expected.points, ())
        self.aims.learn_inheritance(self.expected.points)
        while not self.aims.is_done:
            self._directed_run()
        self.report.checked("directed points", self.stage.kind, self.aims.missed())
        if not self.aims.hit:
            self.report.missed("directed points", self.stage.kind, "no point has killed a life")
        if not self.expected.effects.done:
            why = "no effect was ever finished: call effect() where the workflow does its work"
            self.report.missed("effect once", self.stage.kind, why)
        while self.report.kills[f"random/{self.stage.kind}"] < random_kills:
            self._random_run()

    @property
    def report(self) -> Report:
        """Where findings go."""
        return self.stage.report

    def _directed_run(self) -> None:
        run, planned, done = _Run(self.stage.new_place()), self.aims.next_run(), list["Aim"]()
        while planned or len(run.deaths) < _DEATHS_PER_RUN_MAX:
            aim = planned.popleft() if planned else self.aims.next_life()
            if aim is None:
                break
            ended = self._aimed_life(run, aim)
            if ended.error is not None or not self._looked(run):
                return
            if not ended.was_killed:
                self.aims.learn(ended.value, tuple(done))
            done.append(aim if ended.was_killed else THROUGH)
            if aim is not THROUGH and not ended.was_killed:
                break
        for left in planned:
            self.aims.settle(left, was_hit=False)
        self._finish(run, tuple(done))

    def _aimed_life(self, run: _Run, aim: Aim) -> Ended:
        ended = self._life(run, Fate(aim.name, aim.occurrence))
        if aim is not THROUGH:
            self.aims.settle(aim, was_hit=ended.was_killed)
        if ended.was_killed:
            run.deaths.append(f"{aim.name} #{aim.occurrence}")
            self.report.windows[f"{window_of(aim.name)}/{self.stage.kind}"] += 1
        return ended

    def _life(self, run: _Run, fate: Fate, *, kill_after_seconds: float | None = None) -> Ended:
        """The next life of a run. One that fails breaks the run's continuation."""
        fate.is_resuming = run.lives > 0
        run.lives += 1
        ended = self.stage.life(run.place, fate, kill_after_seconds=kill_after_seconds)
        if ended.error is not None:
            self.report.checked("prefix continuation", self.stage.kind, ended.error, run.history)
        return ended

    def _random_run(self) -> None:
        run = _Run(self.stage.new_place())
        while len(run.deaths) < _DEATHS_PER_RUN_MAX:
            seconds = self.chance.seconds(_LIFE_SECONDS_DRAWN)
            ended = self._life(run, Fate(), kill_after_seconds=seconds)
            if ended.error is not None or not self._looked(run):
                return
            if not ended.was_killed:
                break
            run.deaths.append(f"{seconds:.4f} seconds")
        self._finish(run, None)

    def _looked(self, run: _Run) -> bool:
        """After a life: whether every checkpoint that is listed loads."""
        try:
            run.looks.append(self.stage.look(run.place))
        except RuntimeError as error:
            self.report.checked("checkpoint validity", self.stage.kind, str(error), run.history)
            return False
        self.report.checked("checkpoint validity", self.stage.kind, None)
        return True

    def _finish(self, run: _Run, aims: tuple[Aim, ...] | None) -> None:
        """Let the run end, and judge it. What its last life came by is known from here on."""
        ended = self._life(run, Fate())
        if ended.error is not None or not self._looked(run):
            return
        if aims is not None:
            self.aims.learn(ended.value, aims)
        self._judge(run)

    def _judge(self, run: _Run) -> None:
        """At the end: the run is the undisturbed one, and each log on the way is the beginning of its own."""
        kind, last = self.stage.kind, run.looks[-1]
        broken = next((what for look in run.looks if (what := look.is_continued_by(last))), None)
        differs = last.gap() or broken or self.expected.differs(last, self.stage.subject)
        self.report.checked("prefix continuation", kind, differs, run.history)
        fault = Effects.of(run.place.effects).fault(self.expected.effects)
        self.report.checked("effect once", kind, fault, run.history)
