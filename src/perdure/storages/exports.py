"""Runs that move from one store to another by a file. A run is closed where it leaves before the file is there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.checkpoint.archive import FORMAT, lines_of
from perdure.checkpoint.archive_read import (
    DamagedExportError,
    NewerExportError,
    NoExportError,
    read_archive,
    require_whole,
)
from perdure.errors import RunBusyError, RunExportedError, WorkflowCheckpointException
from perdure.moments import now
from perdure.records import Halt
from perdure.stores.owners import this_process

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.records import Archive
    from perdure.stores.port import HostStore

_HEADER_SIZE_MAX = 64 * 1024


async def exported(
    store: HostStore, clock: Clock, run_id: str, path: str | os.PathLike[str], *, takeover: bool = False
) -> None:
    """Close a run and write it to a file; one that is closed already is written again.

    A crash before the end leaves a run that is open and unchanged, or one that is closed and can be exported again.
    """
    target = _target(path)
    with contextlib.suppress(RunExportedError):
        await _close(store, clock, run_id, takeover=takeover)
    archive = await _archive(store, run_id)
    aside = target.with_name(f".{target.name[:100]}.{clock.new_id()}")
    try:
        await asyncio.to_thread(_write, archive, target, aside)
    except OSError as error:
        raise WorkflowCheckpointException(
            f"run {run_id!r} could not be written to {str(target)!r}: {error.strerror or error}; it is closed here "
            "until it is imported from a file, so export it again where there is room"
        ) from error


async def _close(store: HostStore, clock: Clock, run_id: str, *, takeover: bool) -> None:
    """Let nobody go on with a run here. Raises RunExportedError if that is so already."""
    before = await store.run(run_id)
    if before is not None and before.owner is not None and before.owner.id == this_process().id and not takeover:
        # A store lets a process replace its own claims; but what another task of it does would be lost.
        raise RunBusyError(
            run_id, owner="another task of this process", advice="read its stream to the end, or close it"
        )
    claim = await store.claim(run_id, takeover=takeover)
    halt = before.halt if before is not None else None
    try:
        # What can't be written is found out while the run can still go on here.
        await _archive(store, run_id)
        halt = Halt("exported", at=now(clock), reason="it was exported to a file")
    finally:
        await store.release(claim, halt=halt)
    after = await store.run(run_id)
    if after is None or after.standing != "exported":
        raise RunBusyError(run_id, owner="somebody who has replaced our claim")


async def _archive(store: HostStore, run_id: str) -> Archive:
    """All that there is of a run. Raises WorkflowCheckpointException if something is missing."""
    archive = await store.archive(run_id)
    try:
        require_whole(archive)
    except DamagedExportError as error:
        raise WorkflowCheckpointException(
            f"run {run_id!r} can't be exported: {error}; restore the storage from a copy"
        ) from error
    return archive


def _target(path: str | os.PathLike[str]) -> Path:
    """Where the file is to be. A path that no file can be written to is refused before anything is changed."""
    target = Path(path).absolute()
    if target.is_dir():
        raise WorkflowCheckpointException(f"{str(target)!r} is a directory; give the path of a file to export to")
    if not target.parent.is_dir():
        raise WorkflowCheckpointException(f"there is no directory {str(target.parent)!r} to export to; make it first")
    return target


def _write(archive: Archive, target: Path, aside: Path) -> None:
    """Write the file aside and rename it: under its name there is never a part of it."""
    try:
        with aside.open("xb") as file:
            file.writelines(lines_of(archive))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


async def imported(store: HostStore, path: str | os.PathLike[str]) -> str:
    """Take in a run from a file; its id. Nothing is written before all of the file has been verified."""
    archive = await asyncio.to_thread(_read, Path(path))
    await store.restore(archive)
    return archive.record.run_id


def _read(path: Path) -> Archive:
    """The run in a file. Raises WorkflowCheckpointException, FileNotFoundError."""
    try:
        with path.open("rb") as file:
            # The first line of something else may be endless.
            return read_archive(chain([file.readline(_HEADER_SIZE_MAX)], file))
    except NoExportError as error:
        raise WorkflowCheckpointException(
            f"{str(path)!r} is not the export of a run; give a file that export_run has written"
        ) from error
    except NewerExportError as error:
        raise WorkflowCheckpointException(
            f"{str(path)!r} has export format {error}, this perdure reads up to {FORMAT}; upgrade perdure to read it"
        ) from error
    except DamagedExportError as error:
        raise WorkflowCheckpointException(
            f"{str(path)!r} is damaged: {error}; nothing was imported: take another copy of it, or export the run "
            "again where it was"
        ) from error
