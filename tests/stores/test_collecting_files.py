"""Collections of the file store: what runs may do meanwhile, and what is left of one that is killed."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from collected import CONSTANT, LEAF, A, Advancing, B, opened, require_whole
from typing_extensions import override

from perdure.storage import Disk
from perdure.storage.retention import Proportion

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

KILLED_COLLECTOR = Path(__file__).with_name("killed_collector.py")


class Gaps(Disk):
    """Lets others have their turn whenever the lock is free, and counts what is read while it is held."""

    def __init__(self, in_between: Callable[[], None]) -> None:
        super().__init__(durability="os")
        self._in_between = in_between
        self._is_held = False
        self.reads_under_lock = 0

    @contextlib.contextmanager
    @override
    def lock(self, path: Path) -> Generator[None]:
        self._in_between()
        with super().lock(path):
            self._is_held = True
            yield
        self._is_held = False
        self._in_between()

    @override
    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        self.reads_under_lock += self._is_held
        return super().read(path, start=start, end=end)


def begun(directory: Path) -> Advancing:
    """A run that has B, and has had A and many other things."""
    life = Advancing(directory)
    life.commit(A, A, LEAF, CONSTANT)
    life.commit_waste(120)
    life.commit(B, B)
    return life


def nothing() -> None:
    pass


def test_a_value_that_comes_back_at_any_moment_of_a_collection_is_there(quick_path: Path) -> None:
    moments = 0
    for moment in itertools.count():
        directory = quick_path / f"{moment}"
        life, gaps = begun(directory), itertools.count()

        def come_back(life: Advancing = life, gaps: itertools.count[int] = gaps, moment: int = moment) -> None:
            if next(gaps) == moment:
                life.commit(A, A, LEAF)

        collector = opened(directory, Gaps(come_back))
        assert collector.collect() >= 100
        require_whole(opened(directory), life.run.head)
        if next(gaps) <= moment:
            break
        moments += 1
    assert moments == 4, "around the lock of opening the directory, and around that of the collection"


def test_runs_that_never_rest_lose_nothing_to_a_collection(quick_path: Path) -> None:
    life = begun(quick_path)
    collector = opened(quick_path, Gaps(life.commit_to_and_fro))
    for _ in range(3):
        life.commit_waste(150)
        life.commit_to_and_fro()
        assert collector.collect() >= 100
        life.require_whole()
        require_whole(opened(quick_path), life.run.head)


def test_a_collection_reads_before_it_takes_the_lock(quick_path: Path) -> None:
    life = begun(quick_path)
    life.commit_waste(400)
    life.commit(B, B)
    disk = Gaps(nothing)
    assert opened(quick_path, disk).collect() >= 500
    assert disk.reads_under_lock < 15, "checkpoints and blobs never change"


def test_checkpoints_are_counted_only_if_a_collection_may_be_due() -> None:
    proportion, counts = Proportion(), list[int]()

    def count() -> int:
        counts.append(5000)
        return 5000

    due = [pruned for pruned in range(0, 5001, 50) if proportion.is_reached(pruned=pruned, count=count)]
    assert due == [5000]
    assert len(counts) == 2, "when there was enough at all, and when it was as much as there was"


def test_one_of_two_collections_at_once_removes_the_unused_blobs(quick_path: Path) -> None:
    life = begun(quick_path)
    rivals = iter([opened(quick_path)])
    removed: list[int] = []

    def collect_too() -> None:
        removed.extend(rival.collect() for rival in rivals)

    removed.append(opened(quick_path, Gaps(collect_too)).collect())
    assert min(removed) == 0
    assert sum(removed) >= 100
    life.require_whole()


def test_a_collection_that_was_killed_at_any_point_has_removed_nothing_that_is_needed(quick_path: Path) -> None:
    begun(quick_path)
    done = subprocess.run([sys.executable, KILLED_COLLECTOR, quick_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 3, "the value, what it refers to, and what never changes"
