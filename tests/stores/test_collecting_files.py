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
from perdure.storage.backend import PendingRecords
from perdure.storage.file.collecting import Collecting
from perdure.storage.file.layout import Layout
from perdure.storage.file.protecting import Protection
from perdure.storage.retention import Proportion
from perdure.testing.stores import finished, new_run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

KILLED_COLLECTOR = Path(__file__).with_name("killed_collector.py")


class Gaps(Disk):
    """Lets others have their turn whenever the lock is free, and counts what is done while it is not."""

    def __init__(self, in_between: Callable[[], None]) -> None:
        super().__init__(durability="os")
        self._in_between = in_between
        self._is_held = False
        self.reads_of_a_hold = [0]
        self.removals_of_a_hold = [0]

    @contextlib.contextmanager
    @override
    def lock(self, path: Path) -> Generator[None]:
        with super().lock(path):
            self._is_held = True
            self.reads_of_a_hold.append(0)
            self.removals_of_a_hold.append(0)
            yield
        self._is_held = False
        self._in_between()

    @override
    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        self.reads_of_a_hold[-1] += self._is_held
        return super().read(path, start=start, end=end)

    @override
    def remove(self, path: Path) -> None:
        self.removals_of_a_hold[-1] += self._is_held
        super().remove(path)


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
    assert moments > 4


def test_runs_that_never_rest_lose_nothing_to_a_collection(quick_path: Path) -> None:
    life = begun(quick_path)
    collector = opened(quick_path, Gaps(life.commit_to_and_fro))
    for _ in range(3):
        life.commit_waste(150)
        life.commit_to_and_fro()
        assert collector.collect() >= 100
        life.require_whole()
        require_whole(opened(quick_path), life.run.head)


def test_nobody_waits_for_more_than_a_piece_of_a_collection(quick_path: Path) -> None:
    life = begun(quick_path)
    life.commit_waste(400)
    life.commit(B, B)
    disk = Gaps(nothing)
    assert opened(quick_path, disk).collect() >= 500
    assert max(disk.removals_of_a_hold) <= 100
    assert max(disk.reads_of_a_hold) < 10, "what does not change is read while others have their turn"


def test_a_collection_rests_between_the_few_files_that_it_looks_at_at_once(quick_path: Path) -> None:
    store = opened(quick_path)
    for number in range(25):
        claim = store.claim(f"r{number}", create=new_run(f"r{number}"), takeover=True, token=None)
        store.write([PendingRecords(claim, None, (finished("a"),), is_durable=False)])
    layout, disk, turns = Layout.open(Disk(), quick_path), Disk(), list[str]()

    @contextlib.contextmanager
    def hold() -> Generator[None]:
        turns.append("hold")
        with disk.lock(layout.lock):
            yield

    Collecting(layout=layout, lock=hold, rest=lambda: turns.append("rest")).collect()
    assert turns == ["hold", "hold", "rest", "hold", "rest", "hold", "hold"]


def test_what_is_noted_behind_a_torn_note_counts(quick_path: Path) -> None:
    protection = Protection(Disk(), quick_path / "collecting")
    protection.begin(7)
    protection.note(["first"])
    with (quick_path / "collecting").open("ab") as file:
        file.write(b'0123456789abcdef {"refs":["of one that was kil')
    protection.note(["second"])
    assert protection.noted(7) == {"first", "second"}


def test_what_is_left_is_counted_only_when_that_can_make_a_collection_due() -> None:
    proportion, counts = Proportion(), list[int]()

    def count() -> int:
        counts.append(5000)
        return 5000

    due = [pruned for pruned in range(0, 5001, 50) if proportion.is_reached(pruned=pruned, count=count)]
    assert due == [5000]
    assert len(counts) == 2, "when there was enough at all, and when it was as much as there was"


def test_of_two_collections_at_once_the_later_one_goes_on(quick_path: Path) -> None:
    life = begun(quick_path)
    rivals = iter([opened(quick_path)])
    removed: list[int] = []

    def collect_too() -> None:
        removed.extend(rival.collect() for rival in rivals)

    removed.append(opened(quick_path, Gaps(collect_too)).collect())
    assert min(removed) == 0
    assert sum(removed) >= 100
    assert not (quick_path / ".perdure" / "collecting").exists()
    life.require_whole()


def test_a_collection_that_was_killed_at_any_point_has_removed_nothing_that_is_needed(quick_path: Path) -> None:
    begun(quick_path)
    done = subprocess.run([sys.executable, KILLED_COLLECTOR, quick_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 3, "the value, what it refers to, and what never changes"
