"""A program that is killed at one point after the other of a collection, and looks each time what is left.

Its argument is a directory; it says how many parts are left at the end. The processes that die are forked, which costs
little.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from collected import Advancing, opened, require_whole
from typing_extensions import override

from perdure.storage import Disk

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = 25
EVERY = 3


class DeadlyDisk(Disk):
    """Kills its process before the n-th change."""

    def __init__(self, changes: int) -> None:
        super().__init__(durability="os")
        self._left = changes

    def _change(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    @override
    def write_new(self, path: Path, data: bytes) -> None:
        self._change()
        super().write_new(path, data)

    @override
    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        self._change()
        super().write_at(path, offset, data, sync=sync)

    @override
    def remove(self, path: Path) -> None:
        self._change()
        super().remove(path)


def was_killed(work: Callable[[], object]) -> bool:
    """Whether a forked process that does this is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def main() -> None:
    directory = Path(sys.argv[1])
    for point in range(POINTS):
        assert was_killed(opened(directory, DeadlyDisk(point * EVERY)).collect), f"there is no point {point}"
        life = Advancing(directory)
        life.require_whole()
        # What it had before, which a collection may be about to remove.
        life.commit_to_and_fro()
        life.require_whole()
        # As much as the next one removes before it dies.
        life.commit_waste(EVERY * (point + 1))
        life.commit_to_and_fro()
        require_whole(opened(directory), life.run.head)
    assert not was_killed(opened(directory).collect)
    Advancing(directory).require_whole()
    left = [path.name for path in directory.glob(".perdure/parts/*")]
    sys.stdout.write(f"{len(left)}\n")


if __name__ == "__main__":
    main()
