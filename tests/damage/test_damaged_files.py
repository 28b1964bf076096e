"""Every byte of every file of the file store, changed or cut off."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from smallrun import LIMIT_SECONDS, RUN_ID, TOLD_RUN_ID, cuts, errands, flips, noticed, read_runs, stride

from perdure import FileCheckpointStorage
from perdure.errors import CheckpointDamagedError, WorkflowException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smallrun import Reading

pytestmark = pytest.mark.timeout(LIMIT_SECONDS)

FILES_OF_ALL = {"format": "the layout of the whole directory"}
"""Files that belong to no run, so that an error names the directory."""


class Copy:
    """The store in a directory of its own, one file of it damaged at a time."""

    def __init__(self, original: Path, path: Path) -> None:
        self._original = original
        self.path = path
        self.restore()

    def restore(self) -> None:
        if self.path.exists():
            shutil.rmtree(self.path)
        shutil.copytree(self._original, self.path)

    def files(self) -> list[Path]:
        return sorted(path.relative_to(self._original) for path in self._original.rglob("*") if path.is_file())

    def read(self, name: Path) -> bytes:
        return (self._original / name).read_bytes()

    async def noticed(self, name: Path, damaged: bytes, undamaged: Reading) -> WorkflowException | None:
        """What comes of it if a file has these bytes."""
        (self.path / name).write_bytes(damaged)
        async with FileCheckpointStorage(self.path) as storage:
            error = await noticed(storage, undamaged)
        if error:
            (self.path / name).write_bytes(self.read(name))
        else:
            # The run has gone on.
            self.restore()
        return error


async def undamaged_reading(path: Path) -> Reading:
    async with FileCheckpointStorage(path) as storage:
        return await read_runs(storage)


def is_named(error: WorkflowException, name: Path, directory: Path) -> bool:
    names = str(directory) if name.name in FILES_OF_ALL else RUN_ID
    return names in str(error)


def grows_by_lines(data: bytes) -> bool:
    """Whether it is a log: lines that each begin with their checksum."""
    return data[16:18] == b" {" and data.endswith(b"\n")


def spoilt(data: bytes) -> Iterator[bytes]:
    """The data with a byte changed. In a log also each space made a zero, since zeros are what a power cut leaves."""
    yield from flips(data, stride=stride(len(data), most=60))
    if grows_by_lines(data):
        for place in (place for place, byte in enumerate(data) if byte == ord(" ")):
            yield data[:place] + b"\0" + data[place + 1 :]


async def test_a_changed_byte_of_a_file_changes_nothing_or_is_an_error_that_names_it(
    directory: Path, tmp_path: Path
) -> None:
    copy = Copy(directory, tmp_path / "runs")
    undamaged = await undamaged_reading(copy.path)
    for name in copy.files():
        for number, damaged in enumerate(spoilt(copy.read(name))):
            error = await copy.noticed(name, damaged, undamaged)
            assert error is None or is_named(error, name, copy.path), f"{name}, change {number}: {error}"


async def test_a_file_that_is_cut_off_changes_nothing_or_is_an_error_that_names_it(
    directory: Path, tmp_path: Path
) -> None:
    copy = Copy(directory, tmp_path / "runs")
    undamaged = await undamaged_reading(copy.path)
    for name in copy.files():
        data = copy.read(name)
        if not grows_by_lines(data):
            for damaged in cuts(data, stride=stride(len(data), most=40)):
                error = await copy.noticed(name, damaged, undamaged)
                assert error is None or is_named(error, name, copy.path), f"{name} at {len(damaged)}: {error}"


async def test_a_log_that_is_cut_off_is_what_it_was_when_it_was_so_long(directory: Path, tmp_path: Path) -> None:
    """Its end can't be told from one that was not written further, as with the log of a database."""
    copy = Copy(directory, tmp_path / "runs")
    logs = [name for name in copy.files() if grows_by_lines(copy.read(name))]
    assert len(logs) > 4
    for name in logs:
        data = copy.read(name)
        for damaged in cuts(data, stride=stride(len(data), most=40)):
            whole_lines = damaged[: damaged.rfind(b"\n") + 1]
            assert await seen(copy, name, damaged) == await seen(copy, name, whole_lines), f"{name} at {len(damaged)}"


async def test_a_log_of_a_run_that_ends_early_is_made_up_for_by_checkpoints(directory: Path, tmp_path: Path) -> None:
    copy = Copy(directory, tmp_path / "runs")
    undamaged = await undamaged_reading(copy.path)
    name = Path(".perdure", "runs", f"{TOLD_RUN_ID}.log")
    lines = copy.read(name).splitlines(keepends=True)
    assert len(lines) > 2
    for number in range(1, len(lines)):
        assert await seen(copy, name, b"".join(lines[:number])) == undamaged


async def test_a_run_whose_log_is_gone_does_not_begin_anew(directory: Path, tmp_path: Path) -> None:
    copy = Copy(directory, tmp_path / "runs")
    (copy.path / ".perdure" / "runs" / f"{RUN_ID}.log").unlink()
    async with FileCheckpointStorage(copy.path) as storage:
        with pytest.raises(CheckpointDamagedError, match=f"'{RUN_ID}@0'"):
            await errands(storage, []).run("bread", run_id=RUN_ID)


async def seen(copy: Copy, name: Path, damaged: bytes) -> Reading | type[WorkflowException]:
    """What can be read if a file has these bytes, or the kind of error that says why not."""
    (copy.path / name).write_bytes(damaged)
    try:
        return await undamaged_reading(copy.path)
    except WorkflowException as error:
        return type(error)
    finally:
        (copy.path / name).write_bytes(copy.read(name))
