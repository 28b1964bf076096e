"""`Kind`: a kind of storage that the suite runs on, and what it can't do by itself to one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from perdure.testing.resume.kill_points import file_storage, sqlite_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from perdure.storage import StoreStorage
    from perdure.testing.resume.kill_points import Chance

Opening: TypeAlias = "Callable[[Path], StoreStorage | str]"
"""Opens the storage of a directory, or says its URL."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of storage, for one that has more than the files of a directory. Each is called in a process of its own.

    `open` opens the storage of a directory, or says its URL. `copy(source, target)` is called when a directory was
    copied, and copies what lies outside of it, so that the two storages have nothing in common. `spoil(directory,
    chance)` damages one place, drawn by chance, of what checkpoints are made of, and says which; None if there is none.
    Without it a byte is flipped in the files. `clear(directory)` removes at the end what lies outside of the directory.
    """

    open: Opening
    copy: Callable[[Path, Path], None] | None = None
    spoil: Callable[[Path, Chance], str | None] | None = None
    clear: Callable[[Path], None] | None = None


Storages: TypeAlias = "Mapping[str, Kind | Opening]"

SHIPPED: Final[Storages] = {"file": file_storage, "sqlite": sqlite_storage}


def postgres_kind(dsn: str) -> Kind:
    """Storages in schemas of their own in the database of a connection string. They are dropped in the end.

    Needs `pip install 'perdure[postgres]'`, and a role that may create schemas. A directory holds the name of its
    schema, in the file `schema`.
    """
    # What is imported here is there in each life, which is forked from this process.
    from perdure.testing.resume import postgres_schemas as schemas  # noqa: PLC0415 - the driver comes with an extra

    return Kind(
        partial(schemas.opened, dsn),
        copy=partial(schemas.copied, dsn),
        spoil=partial(schemas.spoiled, dsn),
        clear=partial(schemas.dropped, dsn),
    )
