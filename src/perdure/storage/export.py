"""Move runs between stores in files. A run is closed in its store before the file appears."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from perdure.checkpoint import (
    PRODUCT,
    DamagedExportError,
    NewerExportError,
    NoExportError,
    closing_note,
    halt_before,
    lines_of,
    read_archive,
    require_whole,
)
from perdure.checkpoint.archive import FORMAT
from perdure.clock import Clock, now
from perdure.errors import RunBusyError, RunExportedError, RunNotFoundError, WorkflowCheckpointException
from perdure.records import Archive, Halt, RunRecord
from perdure.storage.owners import this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.storage.port import TenantStore

_FIRST_LOOK_SIZE = 64 * 1024


async def export_run(
    store: TenantStore, clock: Clock, run_id: str, path: str | os.PathLike[str], *, takeover: bool = False
) -> None:
    """Close a run and write it to a file. A run that is closed already is written again.

    A crash leaves a run that is open and unchanged, or one that is closed and can be exported again.
    """
    target = _target(path)
    with contextlib.suppress(RunExportedError):
        await _close(store, clock, run_id, takeover=takeover)
    halt = _require_closed(await _require_run(store, run_id))
    archive = await _archive(store, run_id, closed_by=halt)
    aside = target.with_name(f".{clock.new_id()}.export")
    try:
        await asyncio.to_thread(_write, archive, aside)
        # If it was removed meanwhile, the file is the only copy.
        if record := await store.run(run_id):
            _require_closed(record, by=halt)
        await asyncio.to_thread(_publish, aside, target)
    except OSError as error:
        raise WorkflowCheckpointException(
            f"run {run_id!r} could not be written to {str(target)!r}: {error.strerror or error}; it is closed here "
            "until it is imported from a file, so export it again to a place with room"
        ) from error
    finally:
        await asyncio.to_thread(aside.unlink, missing_ok=True)


async def _close(store: TenantStore, clock: Clock, run_id: str, *, takeover: bool) -> None:
    """Close a run. Raises RunExportedError if it is closed already."""
    # Notice damage while the run can still go on here.
    await _archive(store, run_id)
    export_id, is_closed = clock.new_id(), False
    while not is_closed:
        record = await _require_run(store, run_id)
        if record.owner is not None and record.owner.id == this_process().id and not takeover:
            raise RunBusyError(
                run_id, owner="another task of this process", advice="read its stream to the end, or close it"
            )
        note = closing_note(export_id, record.halt)
        halt = Halt("exported", at=now(clock), reason="it was exported to a file", data=note)
        is_closed = await store.close_run(run_id, halt=halt, instead_of=record.halt, takeover=takeover)


async def _require_run(store: TenantStore, run_id: str) -> RunRecord:
    record = await store.run(run_id)
    if record is None:
        raise RunNotFoundError(run_id)
    return record


def _require_closed(record: RunRecord, *, by: Halt | None = None) -> Halt:
    """Return the halt of a closed run. Refuse one that goes on here, or that is closed by another halt."""
    if record.halt is None or record.halt.kind != "exported" or by not in (None, record.halt):
        raise RunBusyError(
            record.run_id,
            owner="a process that has imported it here meanwhile",
            advice="no file was written; export it again",
        )
    return record.halt


async def _archive(store: TenantStore, run_id: str, *, closed_by: Halt | None = None) -> Archive:
    """Return a whole run with the halt that it had before it was closed. Raises WorkflowCheckpointException."""
    archive = await store.archive(run_id)
    try:
        require_whole(archive)
        halt = halt_before(closed_by.data) if closed_by is not None else None
    except DamagedExportError as error:
        raise WorkflowCheckpointException(
            f"run {run_id!r} can't be exported: {error}; restore the storage from a copy"
        ) from error
    return replace(archive, record=replace(archive.record, halt=halt))


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file. Refuse one that can't be written before anything is changed."""
    target = Path(path).absolute()
    parent, problem = target.parent, None
    try:
        if stat.S_ISDIR(target.stat().st_mode):
            problem = f"{str(target)!r} is a directory; give the path of a file to export to"
    except FileNotFoundError:
        if not parent.is_dir():
            problem = f"there is no directory {str(parent)!r} to export to; create it first"
    except (OSError, ValueError) as error:
        problem = f"{str(target)!r} can't be a file to export to: {_reason(error)}; give another path"
    if problem is None and not os.access(parent, os.W_OK | os.X_OK):
        problem = f"the directory {str(parent)!r} is not writable; export to another one"
    if problem is not None:
        raise WorkflowCheckpointException(problem)
    return target


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _write(archive: Archive, aside: Path) -> None:
    with aside.open("xb") as file:
        file.writelines(lines_of(archive))
        file.flush()
        os.fsync(file.fileno())


def _publish(aside: Path, target: Path) -> None:
    """Give the complete file its name."""
    aside.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


async def import_run(store: TenantStore, path: str | os.PathLike[str]) -> str:
    """Store a run from a file. Return its id. The whole file is verified before anything is written."""
    archive = await asyncio.to_thread(_read, Path(path))
    await store.restore(archive)
    return archive.record.run_id


def _read(path: Path) -> Archive:
    """Return the run in a file. Raises WorkflowCheckpointException."""
    try:
        with path.open("rb") as file:
            archive = read_archive(_lines(file))
        require_whole(archive)
        return archive  # noqa: TRY300 - the handlers below end in a raise
    except NoExportError as error:
        cause, problem = error, "is not the export of a run; give a file that export_run has written"
    except NewerExportError as error:
        cause = error
        problem = f"has export format {error}, this perdure reads up to {FORMAT}; upgrade perdure to read it"
    except DamagedExportError as error:
        cause = error
        problem = f"is damaged: {error}; nothing was imported: take another copy of it, or export the run again"
    except (OSError, ValueError) as error:
        cause = error
        problem = f"could not be read: {_reason(error)}; give a file that export_run has written"
    raise WorkflowCheckpointException(f"{str(path)!r} {problem}") from cause


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Return the lines of a file. Read only the beginning of the first line, which is endless in some other files."""
    first = file.readline(_FIRST_LOOK_SIZE)
    if PRODUCT.encode() in first and not first.endswith(b"\n"):
        first += file.readline()
    yield first
    yield from file
