"""An inbox as a file: each line is a command.

A commit names the commands that it takes in within its own line of the run's log, so they have left the inbox exactly
if the commit has happened. Their lines in this file are left out later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Command
from perdure.storage.file import lineparts, lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from perdure.records import Part
    from perdure.storage.disk import Disk, Stamp
    from perdure.storage.file.runline import RunLine

CONSUMED_MAX = 32
"""So many commands a run's log names as consumed before their lines are left out here for good."""


@dataclass(frozen=True, slots=True)
class _Posted:
    """A command with its small parts, and of which run of that id it is."""

    life: int
    command: Command
    parts: tuple[Part, ...]


@dataclass(slots=True)
class _Contents:
    """What stands in the file, up to the end of its last whole line."""

    stamp: Stamp | None = None
    mark: bytes = b""
    end: int = 0
    is_synced: bool = False
    """Whether this process knows that the file and its name last."""
    posted: list[_Posted] = field(default_factory=list[_Posted])


class RunInbox:
    """The inbox of one run. What the file holds is remembered until it changes."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._contents = _Contents()

    def waiting(self, run: RunLine) -> list[Command]:
        """The commands that wait, in the order in which they came. Raises CheckpointDamagedError."""
        return [posted.command for posted in self._waiting(run)]

    def expecting(self, run: RunLine) -> tuple[int, ...]:
        """The numbers of those that expect something of the head, and go when it is moved."""
        return tuple(command.number for command in self.waiting(run) if command.expects is not None)

    def newest(self, run: RunLine) -> int:
        """The number of the newest that waits, 0 if none does."""
        return max((command.number for command in self.waiting(run)), default=0)

    def roots(self, run: RunLine) -> set[str]:
        """The parts that the commands refer to which wait. Raises CheckpointDamagedError."""
        waiting = self._waiting(run)
        refs = chain.from_iterable((posted.command.refs, *(part.refs for part in posted.parts)) for posted in waiting)
        return set(chain.from_iterable(refs))

    def highest_number(self, run: RunLine) -> int:
        """The highest number of any command in the file. Raises CheckpointDamagedError."""
        return max((posted.command.number for posted in self._refreshed(run).posted), default=0)

    def part(self, part_hash: str) -> Part | None:
        """A part that stands in the file, as far as it was looked at."""
        parts = chain.from_iterable(posted.parts for posted in self._contents.posted)
        return next((part for part in parts if part.hash == part_hash), None)

    def all_parts(self) -> Iterator[Part]:
        """Every part that stands in the file. Raises WorkflowCheckpointException."""
        values, _ = lines.forward(self._disk, self._path)
        return chain.from_iterable(_from_json(value).parts for value in values)

    def append(self, run: RunLine, command: Command, parts: tuple[Part, ...]) -> None:
        """Add a command; it lasts when this returns. Raises CheckpointDamagedError for what is there already."""
        contents = self._refreshed(run)
        posted = _Posted(run.life, replace(command, parts=()), parts)
        data = encoded(posted.life, posted.command, posted.parts)
        was_synced, contents.is_synced = contents.is_synced, False
        self._disk.write_at(self._path, contents.end, data, sync=True)
        if not was_synced:
            self._disk.sync_directory(self._path.parent)
        contents.posted.append(posted)
        contents.end += len(data)
        contents.is_synced = True
        self._note_file(contents)

    def secure(self, run: RunLine) -> None:
        """Let what stands in the file last, although whoever wrote it may not have come to that."""
        if not self._refreshed(run).is_synced:
            self._rewrite(self._waiting(run))

    def shorten(self, run: RunLine) -> None:
        """Leave out, for good, the commands that wait no longer."""
        waiting = self._waiting(run)
        if not waiting:
            self.drop()
            self._disk.sync_directory(self._path.parent)
        elif len(waiting) < len(self._contents.posted):
            self._rewrite(waiting)

    def drop(self) -> None:
        """Remove the file, damaged or not."""
        self._contents = _Contents()
        if self._disk.stamp(self._path):
            self._disk.remove(self._path)

    def _waiting(self, run: RunLine) -> Sequence[_Posted]:
        posted, consumed = self._refreshed(run).posted, set(run.consumed)
        return [each for each in posted if each.life == run.life and each.command.number not in consumed]

    def _refreshed(self, run: RunLine) -> _Contents:
        """What is in the file now, read again if it has changed. The run is for the error to name it."""
        stamp = self._disk.stamp(self._path)
        # A file that was removed and made again within the tick of a clock may have the stamp of the one before.
        mark = self._read_mark() if stamp else b""
        if stamp != self._contents.stamp or mark != self._contents.mark:
            self._contents = _Contents()
            try:
                values, end = lines.forward(self._disk, self._path)
            except WorkflowCheckpointException as error:
                record = run.state.record
                reason = f"the inbox of its run {record.run_id!r} is not what was written"
                raise CheckpointDamagedError(record.head or f"{record.run_id}@0", reason) from error
            self._contents = _Contents(stamp, mark, end, posted=[_from_json(value) for value in values])
        return self._contents

    def _rewrite(self, kept: Iterable[_Posted]) -> None:
        contents = _Contents(posted=list(kept), is_synced=True)
        data = b"".join(encoded(each.life, each.command, each.parts) for each in contents.posted)
        contents.end = len(data)
        aside = self._path.with_suffix(".aside")
        self._contents = _Contents()
        self._disk.write_new(aside, data)
        self._disk.rename(aside, self._path)
        self._disk.sync_directory(self._path.parent)
        self._note_file(contents)

    def _note_file(self, contents: _Contents) -> None:
        contents.stamp, contents.mark = self._disk.stamp(self._path), self._read_mark()
        self._contents = contents

    def _read_mark(self) -> bytes:
        return self._disk.read(self._path, end=lines.CHECKSUM_LENGTH)


def encoded(life: int, command: Command, parts: Iterable[Part]) -> bytes:
    """The line of a command with its small parts, for the run that began with that number."""
    return lines.encoded(
        {
            "life": life,
            "number": command.number,
            "id": command.id,
            "kind": command.kind,
            "expects": command.expects,
            "refs": command.refs,
            **lineparts.coded(command.data),
            "parts": lineparts.parts_to_json(parts),
        }
    )


def _from_json(value: dict[str, Any]) -> _Posted:
    expects = value["expects"]
    command = Command(
        id=value["id"],
        kind=value["kind"],
        data=lineparts.decoded(value),
        refs=tuple(value["refs"]),
        expects=(expects[0], expects[1]) if expects else None,
        number=value["number"],
    )
    return _Posted(value["life"], command, lineparts.parts_from_json(value["parts"]))
