"""Every byte of the SQLite file itself, and of the write-ahead log beside it."""

from __future__ import annotations

import functools
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from smallrun import LIMIT_SECONDS, read_runs, stride
from tests.soak import IS_SOAK

from perdure import SqliteCheckpointStorage
from perdure.errors import WorkflowException
from perdure.storage.sql.database import migrations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smallrun import Reading

pytestmark = pytest.mark.timeout(LIMIT_SECONDS)

PAGE_SIZE = 512
LOG_HEADER_SIZE = 32
FRAME_HEADER_SIZE = 24
SCHEMA = "sqlite_schema"


@functools.cache
def trees() -> list[str]:
    """All that has pages in the file."""
    connection = sqlite3.connect(":memory:")
    for script in migrations("sqlite").values():
        connection.executescript(script)
    names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE rootpage > 0")]
    connection.close()
    return [SCHEMA, *names]


def pages_of(database: Path, tree: str) -> Sequence[int]:
    """The numbers of its pages. Pages that are no roots are leaves or overflow of the tree before them in the file."""
    connection = sqlite3.connect(database)
    roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0").fetchall())
    (count,) = connection.execute("PRAGMA page_count").fetchone()
    connection.close()
    first = 1 if tree == SCHEMA else int(roots[tree])
    later = [int(root) for root in roots.values() if root > first]
    return range(first, min([*later, count + 1]))


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << place // 3 % 8)]) + data[place + 1 :]


def places(page: bytes) -> Iterator[int]:
    """Every byte in the long form; else every other one of the header and of the cell pointers, and some more."""
    used = [place for place, byte in enumerate(page) if byte]
    interesting = range(0, 40, 1 if IS_SOAK else 2)
    some = used[:: stride(len(used), most=90)]
    unused = range(0, len(page), 1 if IS_SOAK else 347)
    yield from sorted({*interesting, *some, *unused})


class Copy:
    """A copy of the file, one byte of it damaged at a time."""

    def __init__(self, original: Path, path: Path) -> None:
        self._path = path
        self.data = original.read_bytes()
        log = Path(f"{original}-wal")
        self.log = log.read_bytes() if log.exists() else b""

    async def read(self, *, data: bytes | None = None, log: bytes | None = None) -> Reading | WorkflowException:
        """What a fresh connection finds if the file or its log has these bytes."""
        self._write(self.data if data is None else data, self.log if log is None else log)
        async with SqliteCheckpointStorage(self._path) as storage:
            try:
                return await read_runs(storage)
            except WorkflowException as error:
                return error

    def _write(self, data: bytes, log: bytes) -> None:
        self._path.write_bytes(data)
        Path(f"{self._path}-wal").write_bytes(log)
        Path(f"{self._path}-shm").unlink(missing_ok=True)


@pytest.mark.parametrize("tree", trees())
async def test_a_changed_byte_of_the_file_changes_nothing_or_is_an_error(
    database: Path, quick_directory: Path, tree: str
) -> None:
    copy = Copy(database, quick_directory / "damaged.db")
    undamaged = await copy.read()
    assert not isinstance(undamaged, WorkflowException)
    for page in pages_of(database, tree):
        start = (page - 1) * PAGE_SIZE
        for place in places(copy.data[start : start + PAGE_SIZE]):
            found = await copy.read(data=flipped(copy.data, start + place))
            differing = [] if isinstance(found, WorkflowException) else undamaged.differing(found)
            assert not differing, f"page {page} of {tree}, byte {place}: another {differing}"


async def test_a_changed_byte_of_the_log_is_as_if_the_log_ended_before_it(
    database_with_log: Path, quick_directory: Path
) -> None:
    copy = Copy(database_with_log, quick_directory / "damaged.db")
    assert copy.log
    frame_size = FRAME_HEADER_SIZE + PAGE_SIZE
    ends = range(LOG_HEADER_SIZE, len(copy.log) + 1, frame_size)
    shortened = [await copy.read(log=copy.log[:end]) for end in ends]
    assert len({repr(found) for found in shortened}) > 5
    step = 1 if IS_SOAK else 2003
    for place in sorted({*range(LOG_HEADER_SIZE), *range(0, len(copy.log), step), *frame_headers(copy.log)}):
        found = await copy.read(log=flipped(copy.log, place))
        # The frame itself and all after it do not count; its commit is not there.
        earlier = shortened[: max(0, place - LOG_HEADER_SIZE) // frame_size + 1]
        is_earlier = repr(found) in {repr(each) for each in earlier}
        assert is_earlier or repr(found) == repr(shortened[-1]), f"byte {place} of the log: {found!r}"


def frame_headers(log: bytes) -> Iterator[int]:
    """The places of some frames' headers."""
    frames = range(LOG_HEADER_SIZE, len(log), FRAME_HEADER_SIZE + PAGE_SIZE)
    for start in frames[:: stride(len(frames), most=12)]:
        yield from range(start, start + FRAME_HEADER_SIZE)
