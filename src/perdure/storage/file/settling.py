"""What is waited for where nothing else is: where something could be lost that was written long ago.

Without being waited for, a file comes to the disk by itself some time. So what takes its place, or makes it needless,
must be there before it goes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from perdure.storage.disk import Disk


def settle(disk: Disk, *paths: Path) -> None:
    """Let files last, and their names, that were not waited for when they were written."""
    if disk.is_lazy:
        _secure(disk, *paths)


@contextlib.contextmanager
def strictly(disk: Disk) -> Generator[None]:
    """Wait for all that is written in here, whatever is waited for otherwise."""
    durability, disk.durability = disk.durability, "commit"
    try:
        _secure(disk)
        yield
    finally:
        disk.durability = durability


def _secure(disk: Disk, *paths: Path) -> None:
    """Let these last, and first what they stand in."""
    for path in dict.fromkeys((*disk.founded, *paths)):
        disk.secure(path)
    disk.founded = ()
