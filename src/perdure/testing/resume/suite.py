"""The suite: six properties on each store, from the command line or from a test."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from perdure.clock import SystemClock
from perdure.testing.resume.kill_points import Aims, Chance
from perdure.testing.resume.processes import Stage
from perdure.testing.resume.properties import Disturbing, check_damage, check_forks, check_races, check_recoveries
from perdure.testing.resume.storage_kinds import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.testing.resume.subject import Subject

Property: TypeAlias = Literal[
    "prefix continuation",
    "effect once",
    "fork determinism",
    "checkpoint validity",
    "consume once",
    "recovery determinism",
    "recovery from an export",
    "directed points",
]

PROPERTIES: Final[tuple[Property, ...]] = (
    "prefix continuation",
    "effect once",
    "fork determinism",
    "checkpoint validity",
    "consume once",
    "recovery determinism",
    "recovery from an export",
    "directed points",
)
"""The six, the last of them in two parts, and that every point which a life comes by was hit.

A check that can't fail proves nothing.
"""

_FINDINGS: Final = ("violations", "not_shown")


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that does not hold: what was done, and what came out of it."""

    property: Property
    store: str
    what: str


@dataclass(slots=True)
class Report:
    """The findings, and the counts."""

    seed: int
    stores: tuple[str, ...]
    checks: Counter[str] = field(default_factory=Counter[str])
    """How often a property was looked at, by `property/store`."""
    lives: Counter[str] = field(default_factory=Counter[str])
    kills: Counter[str] = field(default_factory=Counter[str])
    """Processes that died, by `random/store` or `directed/store`."""
    windows: Counter[str] = field(default_factory=Counter[str])
    """Directed kills, by `window/store`."""
    violations: list[Violation] = field(default_factory=list[Violation])
    not_shown: list[Violation] = field(default_factory=list[Violation])
    """What could not be looked at, and why: a check that checks nothing must not look like one that has passed."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was violated, and all was shown that was to be."""
        return not self.violations and not self.not_shown

    def checked(self, property_: Property, store: str, what: str | None, how: str = "") -> None:
        """Note a look at a property: nothing wrong, or what is, after what was done."""
        self.checks[f"{property_}/{store}"] += 1
        if what is not None:
            self.violations.append(Violation(property_, store, f"{how}: {what}" if how else what))

    def missed(self, property_: Property, store: str, why: str) -> None:
        """Note that a property could not be shown."""
        self.not_shown.append(Violation(property_, store, why))

    def table(self) -> str:
        """Property by store, then the counts, then each violation and what was not shown."""
        cells = [["", *self.stores]]
        cells += [[name, *(self._verdict(name, store) for store in self.stores)] for name in PROPERTIES]
        cells.append(["lives", *(str(self.lives[store]) for store in self.stores)])
        cells += [
            [f"{how} kills", *(str(self.kills[f"{how}/{s}"]) for s in self.stores)] for how in ("directed", "random")
        ]
        windows = dict.fromkeys(name.rpartition("/")[0] for name in self.windows)
        cells += [[f"  {name}", *(str(self.windows[f"{name}/{s}"]) for s in self.stores)] for name in windows]
        told = [_line(row, cells) for row in cells]
        told += [f"VIOLATED {each.property} ({each.store}): {each.what}" for each in self.violations]
        told += [f"NOT SHOWN {each.property} ({each.store}): {each.what}" for each in self.not_shown]
        return "\n".join([*told, f"seed {self.seed}"])

    def _verdict(self, name: Property, store: str) -> str:
        violated = sum(each.property == name and each.store == store for each in self.violations)
        checks = self.checks[f"{name}/{store}"]
        if violated:
            return f"VIOLATED {violated} of {checks}"
        if any(each.property == name and each.store == store for each in self.not_shown):
            return "NOT SHOWN"
        return f"passed {checks}" if checks else "not tried"

    def to_json(self) -> str:
        """All of it as JSON."""
        members = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for name in _FINDINGS:
            members[name] = [dataclasses.asdict(each) for each in members[name]]
        return json.dumps(members)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report of `to_json`."""
        found: dict[str, Any] = json.loads(text)
        for name in ("checks", "lives", "kills", "windows"):
            found[name] = Counter(found[name])
        found["stores"] = tuple(found["stores"])
        for name in _FINDINGS:
            found[name] = [Violation(**each) for each in found[name]]
        return cls(**found)


def _line(row: list[str], cells: list[list[str]]) -> str:
    widths = [max(len(each[column]) for each in cells) for column in range(len(row))]
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


_LONG_FACTOR = 10
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - directories in it are made by tempfile


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard the suite looks on each store.

    `kills` are those at random moments; of the directed points `points` of each window are tried, all if None.
    `rounds` are those of forks, recoveries and damage, `races` those of several who answer at once.
    """

    kills: int = 20
    points: int | None = None
    rounds: int = 3
    races: int = 3

    def times(self, factor: int) -> Effort:
        """The same, more often."""
        return Effort(self.kills * factor, self.points, self.rounds * factor, self.races * factor)


def check(
    subject: Subject, *, stores: Sequence[str], seed: int, effort: Effort, directory: Path, keeps: bool = False
) -> Report:
    """Run all of it in a directory. This process must not have started a thread: lives are forked from it.

    What stores have outside of the directory is removed in the end, unless it is to be kept.
    """
    report = Report(seed, tuple(stores))
    for kind in stores:
        stage = Stage(subject, kind, directory / kind, report)
        others = [stage.beside(other) for other in dict.fromkeys((*stores, *SHIPPED)) if other != kind]
        try:
            _check_on(stage, others, seed, effort)
        finally:
            for each in () if keeps else (stage, *others):
                each.clear()
    return report


def _check_on(stage: Stage, others: Sequence[Stage], seed: int, effort: Effort) -> None:
    """All of it on one kind of store; the others are those that runs can be taken to."""
    kind, expected = stage.kind, stage.undisturbed()
    aims = Aims(Chance(f"{seed} aims {kind}"), effort.points)
    Disturbing(stage, expected, Chance(f"{seed} kills {kind}"), aims).run(random_kills=effort.kills)
    check_forks(stage, expected, Chance(f"{seed} forks {kind}"), rounds=effort.rounds)
    recoveries = Chance(f"{seed} recoveries {kind}")
    check_recoveries(stage, expected, recoveries, rounds=effort.rounds, others=others)
    check_races(stage, rounds=effort.races)
    check_damage(stage, expected, Chance(f"{seed} damage {kind}"), rounds=effort.rounds)


def main(subject: Subject, arguments: Sequence[str] | None = None) -> None:
    """Run the suite as a program, print its table, and exit with 1 if a property is violated."""
    options = _options(subject, arguments)
    effort = Effort(options.kills, options.points, options.rounds, options.races).times(
        _LONG_FACTOR if options.long else 1
    )
    until = SystemClock().now() + timedelta(minutes=options.minutes)
    while True:
        report = _once(subject, options.stores, _seed(options.seed), effort, keeps=options.keep)
        sys.stdout.write((report.to_json() if options.json else report.table()) + "\n")
        sys.stdout.flush()
        if not report.is_clean or options.seed is not None or SystemClock().now() >= until:
            sys.exit(0 if report.is_clean else 1)


def _options(subject: Subject, arguments: Sequence[str] | None) -> argparse.Namespace:
    known = list(subject.storages)
    parser = argparse.ArgumentParser(description="Kill a workflow again and again, and see whether it notices.")
    parser.add_argument("--kills", type=int, default=Effort().kills, help="kills at random moments, on each store")
    parser.add_argument("--points", type=int, help="directed kills in each window, on each store; all if not given")
    parser.add_argument("--rounds", type=int, default=Effort().rounds, help="how often it is forked, copied, damaged")
    parser.add_argument("--races", type=int, default=Effort().races, help="how often eight answer at once")
    parser.add_argument("--seed", type=int, help="repeat what a seed has drawn")
    parser.add_argument("--stores", type=lambda text: text.split(","), default=known, help=",".join(known))
    parser.add_argument("--long", action="store_true", help=f"{_LONG_FACTOR} times as much of everything")
    parser.add_argument("--minutes", type=float, default=0, help="begin again with new seeds until this time is over")
    parser.add_argument("--keep", action="store_true", help="leave the directories of a violated property behind")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.stores if name not in known]
    if unknown:
        parser.error(f"there is no store {unknown[0]!r}; there are {', '.join(known)}")
    return options


def _seed(given: int | None) -> int:
    return int(SystemClock().new_id(), 16) % 1_000_000 if given is None else given


def _once(subject: Subject, stores: Sequence[str], seed: int, effort: Effort, *, keeps: bool) -> Report:
    sys.stderr.write(f"seed {seed}\n")
    # What a killed process has written is there, on a disk or not: only a power cut would tell the difference.
    room = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    if keeps:
        kept = Path(tempfile.mkdtemp(dir=room))
        return check(subject, stores=stores, seed=seed, effort=effort, directory=kept, keeps=True)
    with tempfile.TemporaryDirectory(dir=room) as directory:
        return check(subject, stores=stores, seed=seed, effort=effort, directory=Path(directory))


def run_suite(program: str | Path, *options: str, cwd: str | Path | None = None) -> Report:
    """Run a program that calls `main`, given as a path or as the name of a module; what it has found.

    `options` are those of its command line. Raises RuntimeError if it comes to no report.
    """
    target = [os.fspath(program)] if os.fspath(program).endswith(".py") else ["-m", os.fspath(program)]
    command = [sys.executable, *target, "--json", *options]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603 - this Python, the caller's program
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode} and no report:\n{done.stderr}")
    return Report.from_json(done.stdout.splitlines()[-1])
