"""The suite: six properties on each store, from the command line or from a test."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from pydantic import TypeAdapter

from perdure.clock import SystemClock
from perdure.testing.resume.kill_points import Chance, KillTargets
from perdure.testing.resume.processes import Runner
from perdure.testing.resume.properties import KillCheck, check_damage, check_forks, check_races, check_recoveries
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

PROPERTIES: Final[tuple[Property, ...]] = get_args(Property)
"""The six properties, the last one in two parts, and the check that every known point was hit."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated property, with what was done and what differed."""

    property: Property
    store: str
    what: str


@dataclass(slots=True)
class Report:
    """Results and counts.

    `checks` counts checks by `property/store`, `lives` processes by store, `kills` killed processes by `random/store`
    or `directed/store`, `windows` directed kills by `window/store`. `not_shown` are properties that could not be
    checked, with the reason. They must not look as if they had passed.
    """

    seed: int
    stores: tuple[str, ...]
    checks: Counter[str] = field(default_factory=Counter[str])
    lives: Counter[str] = field(default_factory=Counter[str])
    kills: Counter[str] = field(default_factory=Counter[str])
    windows: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])
    not_shown: list[Violation] = field(default_factory=list[Violation])

    @property
    def is_clean(self) -> bool:
        """True if nothing was violated and every property was checked."""
        return not self.violations and not self.not_shown

    def checked(self, property_: Property, store: str, what: str | None, how: str = "") -> None:
        """Count a check of a property, and add a violation if there is one."""
        self.checks[f"{property_}/{store}"] += 1
        if what is not None:
            self.violations.append(Violation(property_, store, f"{how}: {what}" if how else what))

    def missed(self, property_: Property, store: str, why: str) -> None:
        """Note that a property could not be checked."""
        self.not_shown.append(Violation(property_, store, why))

    def table(self) -> str:
        """Return a table of properties by store, the counts, the violations, and the unchecked properties."""
        cells = [["", *self.stores]]
        cells += [[name, *(self._verdict(name, store) for store in self.stores)] for name in PROPERTIES]
        cells.append(["processes", *(str(self.lives[store]) for store in self.stores)])
        cells += [
            [f"{how} kills", *(str(self.kills[f"{how}/{s}"]) for s in self.stores)] for how in ("directed", "random")
        ]
        windows = dict.fromkeys(name.rpartition("/")[0] for name in self.windows)
        cells += [[f"  {name}", *(str(self.windows[f"{name}/{s}"]) for s in self.stores)] for name in windows]
        lines = [_line(row, cells) for row in cells]
        lines += [f"VIOLATED {each.property} ({each.store}): {each.what}" for each in self.violations]
        lines += [f"NOT SHOWN {each.property} ({each.store}): {each.what}" for each in self.not_shown]
        return "\n".join([*lines, f"seed {self.seed}"])

    def _verdict(self, name: Property, store: str) -> str:
        violated = sum(each.property == name and each.store == store for each in self.violations)
        checks = self.checks[f"{name}/{store}"]
        if violated:
            return f"VIOLATED {violated} of {checks}"
        if any(each.property == name and each.store == store for each in self.not_shown):
            return "NOT SHOWN"
        return f"passed {checks}" if checks else "not tried"

    def to_json(self) -> str:
        """Return the report as JSON."""
        return TypeAdapter(Report).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report from the result of `to_json`."""
        return TypeAdapter(Report).validate_json(text)


def _line(row: list[str], cells: list[list[str]]) -> str:
    widths = [max(len(each[column]) for each in cells) for column in range(len(row))]
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


_LONG_FACTOR = 10
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - directories in it are made by tempfile


def main(subject: Subject, arguments: Sequence[str] | None = None) -> None:
    """Run the suite as a program, print its table, and exit with 1 if a property is violated."""
    options = _parse_options(subject, arguments)
    until = SystemClock().now() + timedelta(minutes=options.minutes)
    while True:
        seed = int(SystemClock().new_id(), 16) % 1_000_000 if options.seed is None else options.seed
        sys.stderr.write(f"seed {seed}\n")
        report = _check(subject, seed, options)
        sys.stdout.write((report.to_json() if options.json else report.table()) + "\n")
        sys.stdout.flush()
        if not report.is_clean or options.seed is not None or SystemClock().now() >= until:
            sys.exit(0 if report.is_clean else 1)


def _parse_options(subject: Subject, arguments: Sequence[str] | None) -> argparse.Namespace:
    known = list(subject.storages)
    parser = argparse.ArgumentParser(
        description="Kill a workflow again and again, and check that the result stays the same."
    )
    parser.add_argument("--kills", type=int, default=20, help="kills at random moments, on each store")
    parser.add_argument("--points", type=int, help="directed kills in each window, on each store; all if not given")
    parser.add_argument("--rounds", type=int, default=3, help="number of forks, recoveries and damaged copies")
    parser.add_argument("--races", type=int, default=3, help="number of races of eight answers")
    parser.add_argument("--seed", type=int, help="repeat the run of a seed")
    parser.add_argument("--stores", type=lambda text: text.split(","), default=known, help=",".join(known))
    parser.add_argument("--long", action="store_true", help=f"{_LONG_FACTOR} times the effort")
    parser.add_argument("--minutes", type=float, default=0, help="repeat with new seeds until the time is over")
    parser.add_argument("--keep", action="store_true", help="keep the directories")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.stores if name not in known]
    if unknown:
        parser.error(f"unknown store {unknown[0]!r}; the stores are {', '.join(known)}")
    for effort in ("kills", "rounds", "races") if options.long else ():
        setattr(options, effort, getattr(options, effort) * _LONG_FACTOR)
    return options


def _check(subject: Subject, seed: int, options: argparse.Namespace) -> Report:
    """Run all checks on each store. Processes are forked from this one, so it must not have started a thread."""
    report = Report(seed, tuple(options.stores))
    # Memory will do: only a power cut could tell it from a disk.
    directory = Path(tempfile.mkdtemp(dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None))
    runners = list[Runner]()
    try:
        for kind in report.stores:
            runner = Runner(subject, kind, directory / kind, report)
            others = [runner.with_kind(other) for other in dict.fromkeys((*report.stores, *SHIPPED)) if other != kind]
            runners += (runner, *others)
            _check_on(runner, others, seed, options)
    finally:
        if not options.keep:
            for runner in runners:
                runner.clear()
            shutil.rmtree(directory)
    return report


def _check_on(runner: Runner, others: Sequence[Runner], seed: int, options: argparse.Namespace) -> None:
    """Run all checks on one kind of store. Runs can be moved to the others."""
    kind, expected, rounds = runner.kind, runner.run_undisturbed(), options.rounds
    targets = KillTargets(Chance(f"{seed} aims {kind}"), options.points)
    KillCheck(runner, expected, Chance(f"{seed} kills {kind}"), targets).run(random_kills=options.kills)
    check_forks(runner, expected, Chance(f"{seed} forks {kind}"), rounds=rounds)
    check_recoveries(runner, expected, Chance(f"{seed} recoveries {kind}"), rounds=rounds, others=others)
    check_races(runner, rounds=options.races)
    check_damage(runner, expected, Chance(f"{seed} damage {kind}"), rounds=rounds)


def run_suite(program: str | Path, *options: str, cwd: str | Path | None = None) -> Report:
    """Run a program that calls `main`, given as a path or a module name, and return its report.

    `options` are command-line options. Raises RuntimeError if the program makes no report.
    """
    target = [os.fspath(program)] if os.fspath(program).endswith(".py") else ["-m", os.fspath(program)]
    command = [sys.executable, *target, "--json", *options]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603 - this Python, the caller's program
    if not done.stdout.strip():
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode} and no report:\n{done.stderr}")
    return Report.from_json(done.stdout.splitlines()[-1])
