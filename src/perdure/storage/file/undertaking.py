"""A change of many files of a directory that happens as a whole.

What is to appear is written aside, and then a plan that says what becomes of it. From then on the change has happened:
whoever comes next carries out what a crash has left undone. Aside without a plan is nothing. All of it is waited for,
whatever is waited for otherwise: of a run that has moved, the other copy is closed or removed then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from perdure.storage.file import lines
from perdure.storage.file.settling import strictly

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk

Place = NewType("Place", str)
"""One of the directories that the change is about."""

_PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Target:
    """A file by its directory and its name there."""

    place: Place
    name: str


class Undertakings:
    """One such change after the other. Their author holds the directory's lock, and so does who finishes them."""

    def __init__(self, disk: Disk, directory: Path, places: Mapping[Place, Path]) -> None:
        self._disk = disk
        self._directory = directory
        self._plan = directory / _PLAN
        self._places = places

    def undertake(self, files: Sequence[tuple[Target, bytes]], *, removed: Iterable[Target]) -> None:
        """Remove some files and let others appear, in the place of any of their names, all of it or nothing."""
        with strictly(self._disk):
            self.remove_asides()
            for number, (_, data) in enumerate(files):
                self._disk.write_new(self._aside(number), data)
            self._disk.sync_directory(self._directory)
            self._write_plan([target for target, _ in files], list(removed))
        self.finish()

    @property
    def is_unfinished(self) -> bool:
        """Whether a crash has left something undone."""
        return self._disk.stamp(self._plan) is not None

    def finish(self) -> None:
        """Carry out the plan. To do so again does no harm as long as it stands."""
        with strictly(self._disk):
            self._carry_out()

    def _carry_out(self) -> None:
        (plan,), _ = lines.forward(self._disk, self._directory / _PLAN)
        files = [_target(value) for value in plan["files"]]
        removed = [_target(value) for value in plan["removed"]]
        for target in (*removed, *files):
            self._disk.remove(self._path(target))
        for number, target in enumerate(files):
            # What is aside keeps its name until the new one is sure to last.
            self._disk.link(self._aside(number), self._path(target))
        for place in dict.fromkeys(target.place for target in (*removed, *files)):
            self._disk.sync_directory(self._places[place])
        self._disk.remove(self._directory / _PLAN)
        # Before anything else changes: a plan that came back would undo it.
        self._disk.sync_directory(self._directory)
        self.remove_asides()

    def remove_asides(self) -> None:
        """Remove what is aside without a plan."""
        for name in self._disk.names(self._directory):
            self._disk.remove(self._directory / name)

    def _write_plan(self, files: Sequence[Target], removed: Sequence[Target]) -> None:
        plan, nascent = self._directory / _PLAN, self._directory / f"{_PLAN}.aside"
        self._disk.write_new(nascent, lines.encoded({"files": _json(files), "removed": _json(removed)}))
        self._disk.rename(nascent, plan)
        try:
            self._disk.sync_directory(self._directory)
        except OSError:
            self._disk.remove(plan)
            raise

    def _aside(self, number: int) -> Path:
        return self._directory / f"{number}"

    def _path(self, target: Target) -> Path:
        return self._places[target.place] / target.name


def _json(targets: Iterable[Target]) -> list[list[str]]:
    return [[target.place, target.name] for target in targets]


def _target(value: list[str]) -> Target:
    place, name = value
    assert name == name.rpartition("/")[2] not in {"", ".", ".."}, f"{name!r} is no name of a file"
    return Target(Place(place), name)
