"""A run after a change, as a line of its log says it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perdure.records import Halt, Owner, RunRecord
from perdure.storage import rules
from perdure.storage.file import lineparts, lines
from perdure.storage.file.document import LogEntry, status_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.storage.file.document import Document, RunAfter

Change: TypeAlias = Literal[
    "claim", "release", "commit", "rewind", "deletion announced", "deletion", "progress", "restore"
]

_RECORD_FIELDS = tuple(each.name for each in fields(RunRecord))


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run after a change. `subject` is the checkpoint that the change is about."""

    change: Change
    state: rules.RunState
    newest: LogEntry | None
    """The newest commit; it is the head unless the run was rewound."""
    subject: str | None = None
    life: int = 0
    """The token of the claim with which the run began. What was written for an earlier run of its id has another."""
    consumed: tuple[int, ...] = ()
    """The numbers of commands that have left the inbox, although they may still stand in its file."""
    dropped: tuple[int, ...] = ()
    """The numbers of those that go with the deletion which is announced."""
    forgotten: int = 0
    """The number of the last event that the retention has removed."""
    since: tuple[LogEntry, ...] = ()
    """The commits that no line before this one tells of; its own is left out."""


def after_commit(line: RunLine, document: Document, run: RunAfter) -> RunLine:
    """The run after a commit, as its checkpoint tells it."""
    manifest, entry = document.manifest, document.entry
    record = replace(
        line.state.record,
        head=manifest.checkpoint_id,
        position=manifest.position,
        settled=document.settled,
        status=document.status,
        wake_at=document.wake_at,
        events=document.events,
        attempts=0,
        # Who committed had claimed the run, and that ends a halt, though the line of the claim may be lost.
        halt=None,
    )
    return RunLine(
        change="commit",
        state=replace(line.state, record=record, moment=entry.moment),
        newest=entry,
        subject=entry.checkpoint_id,
        life=line.life,
        consumed=run.consumed,
        forgotten=run.forgotten,
    )


def encoded(line: RunLine, kept: Iterable[LogEntry]) -> bytes:
    """A whole log that says of the run what the line does, and which checkpoints it has."""
    whole = replace(line, since=())
    commits = (replace(whole, change="commit", newest=entry, subject=entry.checkpoint_id) for entry in kept)
    return b"".join(lines.encoded(to_json(each)) for each in (*commits, whole))


def to_json(line: RunLine) -> dict[str, Any]:
    """A line as it stands in a log."""
    record = line.state.record
    return {
        "change": line.change,
        "subject": line.subject,
        "since": [asdict(entry) for entry in line.since],
        # Field by field, since asdict would copy each value.
        **{name: getattr(record, name) for name in _RECORD_FIELDS},
        "owner": asdict(record.owner) if record.owner else None,
        "halt": _halt_to_json(record.halt) if record.halt else None,
        "token": line.state.token,
        "moment": line.state.moment,
        "newest": asdict(line.newest) if line.newest else None,
        "life": line.life,
        "consumed": line.consumed,
        "dropped": line.dropped,
        "forgotten": line.forgotten,
    }


def from_json(value: dict[str, Any]) -> RunLine:
    """And back."""
    known: dict[str, Any] = {"status": status_of(value["settled"]), **value}
    change, subject, newest = known.pop("change"), known.pop("subject"), known.pop("newest")
    token, moment, owner = known.pop("token"), known.pop("moment"), known.pop("owner")
    # Lines that were written before there were inboxes, events and halts have nothing to say of them.
    life, forgotten = known.pop("life", 0), known.pop("forgotten", 0)
    consumed, dropped = known.pop("consumed", ()), known.pop("dropped", ())
    halt, since = known.pop("halt", None), known.pop("since", ())
    record = RunRecord(**known, owner=Owner(**owner) if owner else None, halt=_halt_from_json(halt) if halt else None)
    return RunLine(
        change=change,
        state=rules.RunState(record, token=token, moment=moment),
        newest=_entry(newest) if newest else None,
        subject=subject,
        life=life,
        consumed=tuple(consumed),
        dropped=tuple(dropped),
        forgotten=forgotten,
        since=tuple(map(_entry, since)),
    )


def _halt_to_json(halt: Halt) -> dict[str, str]:
    return {"kind": halt.kind, "at": halt.at, "reason": halt.reason, **lineparts.coded(halt.data)}


def _halt_from_json(value: dict[str, Any]) -> Halt:
    return Halt(kind=value["kind"], at=value["at"], reason=value["reason"], data=lineparts.decoded(value))


def _entry(value: dict[str, Any]) -> LogEntry:
    known: dict[str, Any] = {"status": status_of(value["settled"]), **value}
    return LogEntry(**known)
