"""Rows of the database as records, and records as columns. Reading compares checksums."""

from __future__ import annotations

import contextlib
import json
import logging
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from perdure.errors import CheckpointDamagedError
from perdure.records import (
    ArchivedCheckpoint,
    Command,
    Commit,
    EventBatch,
    Halt,
    JournalRecord,
    Manifest,
    Owner,
    RunRecord,
    digest,
)
from perdure.storage.rules import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.storage.sql.database import Row

T = TypeVar("T")

logger = logging.getLogger(__name__)

_POSITION_DIGITS_MAX = 18

_RUN_COLUMNS = (
    "run_id",
    "workflow_name",
    "created_at",
    "nonce",
    "input_digest",
    "parent_checkpoint_id",
    "head",
    "position",
    "settled",
    "status",
    "wake_at",
    "events",
)
"""The columns of a run that its checksum covers, in this order, which is stored: never change it."""
_run_values = attrgetter(*_RUN_COLUMNS)
_FACTS = ("parent_run_id", "tags", "version", "supersteps", "spent")
"""Columns of a run for listings alone. They have a checksum of their own, which earlier releases do not write."""
_fact_values = attrgetter("run_id", *_FACTS)

_MANIFEST_COLUMNS = (
    "checkpoint_id",
    "run_id",
    "workflow_name",
    "position",
    "previous_id",
    "timestamp",
    "iteration_count",
    "header",
)
_manifest_values = attrgetter(*_MANIFEST_COLUMNS)

quote: Callable[[str], str] = json.dumps
"""Encode a text that a database might not accept as it is."""

_compact = json.JSONEncoder(separators=(",", ":")).encode
# A damaged cell may hold anything, even bytes.
_compact_any = json.JSONEncoder(separators=(",", ":"), default=repr).encode


def require_count(found: Sequence[Row], run_id: str, *, key: str, kind: str) -> list[Row]:
    """Return the rows of a run, if there are as many as the run counts. A row without a key stands for none.

    Raises CheckpointDamagedError.
    """
    present = [row for row in found if row[key] is not None]
    if found and len(present) != found[0]["due"]:
        reason = f"its run {run_id!r} has {found[0]['due']} {kind}, but {len(present)} are found"
        raise CheckpointDamagedError(str(found[0]["run_head"] or run_id), reason)
    return present


def read_run(row: Row) -> RunState:
    """Read a row of `runs`. Raises CheckpointDamagedError."""
    record = RunRecord(
        **{name: row[name] for name in _RUN_COLUMNS if name != "settled"},
        settled=bool(row["settled"]),
        owner=None if row["owner_id"] is None else read_owner(row),
        halt=None if row["halt"] is None else _read_halt(row),
        attempts=row["attempts"],
        requests=row["requests"] if row["described_at"] == row["position"] else None,
        commands=row["commands"],
        moment=row["moment"],
        **{name: row[name] for name in _FACTS},
    )
    if row["checksum"] not in {None, _run_checksum(record)}:
        raise CheckpointDamagedError(str(record.run_id), "the record of the run is not what was written")
    facts_checksum = _facts_checksum(record, requests=row["requests"], described_at=row["described_at"])
    if row["facts_checksum"] not in {None, facts_checksum}:
        raise CheckpointDamagedError(str(record.run_id), "what its record says for listings is not what was written")
    return RunState(record, token=row["token"])


def listed_run(row: Row) -> RunRecord:
    """Read a row of `runs` for a list of all runs. A damaged one has failed, and its halt is the reason."""
    try:
        return read_run(row).record
    except CheckpointDamagedError as error:
        created_at = str(row["created_at"])
        return RunRecord(
            run_id=str(row["run_id"]),
            workflow_name=str(row["workflow_name"]),
            created_at=created_at,
            nonce="",
            input_digest=None,
            parent_checkpoint_id=None,
            head=str(row["head"]),
            position=0,
            settled=False,
            owner=None,
            halt=Halt("failed", created_at, str(error)),
        )


def readable_manifests(found: Iterable[Row]) -> Iterator[Manifest]:
    """Read rows of `checkpoints` of many runs. Leave out those that are damaged, and log which."""
    for row in found:
        try:
            yield read_manifest(row)
        except CheckpointDamagedError as error:
            logger.warning("left out of the list: %s", error)


def readable_runs(found: Iterable[Row]) -> Iterator[tuple[RunRecord, Row]]:
    """Read rows of `runs` and leave out those that are damaged."""
    for row in found:
        with contextlib.suppress(CheckpointDamagedError):
            yield read_run(row).record, row


def read_owner(row: Row) -> Owner:
    """Read the owner of a run that has one."""
    return Owner(id=row["owner_id"], host=row["owner_host"], boot=row["owner_boot"], pid=row["owner_pid"])


def _read_halt(row: Row) -> Halt:
    text, run_id = row["halt"], str(row["run_id"])
    try:
        fields = json.loads(text)
        data = bytes.fromhex(fields["data"])
        halt = Halt(kind=fields["kind"], at=fields["at"], reason=fields["reason"], data=data)
        is_whole = halt_text(run_id, halt) == text
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointDamagedError(run_id, f"why the run has halted can't be read ({error})") from error
    if not is_whole:
        raise CheckpointDamagedError(run_id, "why the run has halted is not what was written")
    return halt


def halt_text(run_id: str, halt: Halt) -> str:
    """Encode a halt with a digest. The format is stored: never change it."""
    fields = {"kind": halt.kind, "at": halt.at, "reason": halt.reason, "data": halt.data.hex()}
    covered = _compact([run_id, *fields.values()])
    return _compact({**fields, "digest": digest(covered.encode("ascii"))})


def _run_checksum(run: RunRecord) -> str:
    """Hash everything except the lease."""
    return digest(_compact_any(_run_values(run)).encode("ascii"))


def run_columns(state: RunState) -> dict[str, object]:
    """Return all columns of a run."""
    return {
        **dict(zip(_RUN_COLUMNS, _run_values(state.record), strict=True)),
        "checksum": _run_checksum(state.record),
        "moment": state.record.moment,
        **{name: getattr(state.record, name) for name in _FACTS},
        **_description(state.record),
        **lease_columns(state),
    }


def _description(record: RunRecord) -> dict[str, object]:
    described: dict[str, object] = {"requests": record.requests, "described_at": record.position}
    return {**described, "facts_checksum": _facts_checksum(record, **described)}


def _facts_checksum(record: RunRecord, *, requests: object, described_at: object) -> str:
    return digest(_compact_any([*_fact_values(record), requests, described_at]).encode("ascii"))


def lease_columns(state: RunState) -> dict[str, object]:
    """Return the columns that change when a run is leased or released."""
    record = state.record
    owner = record.owner
    return {
        "token": state.token,
        "owner_id": owner.id if owner else None,
        "owner_host": owner.host if owner else None,
        "owner_boot": owner.boot if owner else None,
        "owner_pid": owner.pid if owner else None,
        "attempts": record.attempts,
        "halt": halt_text(record.run_id, record.halt) if record.halt else None,
    }


def commit_columns(state: RunState, *, before: str | None, tenant: str) -> dict[str, object]:
    """Return the columns that a commit changes, and those that show that the run is as it was before."""
    record = state.record
    return {
        "tenant": tenant,
        "run_id": record.run_id,
        "token": state.token,
        "owner_id": record.owner.id if record.owner else None,
        "before": before,
        "head": record.head,
        **name_columns(str(record.head)),
        "position": record.position,
        "settled": record.settled,
        "status": record.status,
        "wake_at": record.wake_at,
        "events": record.events,
        "checksum": _run_checksum(record),
        "moment": record.moment,
        "version": record.version,
        "supersteps": record.supersteps,
        "spent": record.spent,
        **_description(record),
    }


def name_columns(checkpoint_id: str) -> dict[str, object]:
    """Return the run and the position in a checkpoint id of the form `run@position`, or None for both."""
    run_id, _, digits = checkpoint_id.rpartition("@")
    if digits.isascii() and digits.isdigit() and len(digits) <= _POSITION_DIGITS_MAX:
        return {"of_run": run_id, "at": int(digits)}
    return {"of_run": None, "at": None}


def checkpoint_columns(checkpoint: Commit | ArchivedCheckpoint, moment: float | None) -> dict[str, object]:
    """Return the columns of a checkpoint, with the state of the run after its commit at that moment."""
    manifest = checkpoint.manifest
    table = manifest.table_text()
    return {
        **dict(zip(_MANIFEST_COLUMNS, _manifest_values(manifest), strict=True)),
        "moment": moment,
        "settled": checkpoint.settled,
        "status": checkpoint.status,
        "wake_at": checkpoint.wake_at,
        "checksum": manifest.checksum(table=table),
        "toc": table,
        "pieces": manifest.pieces or None,
    }


def record_columns(run_id: str, record: JournalRecord, *, head: str | None) -> dict[str, object]:
    """Return the columns of a journal record that follows the head."""
    return {
        "run_id": run_id,
        "key": quote(record.key),
        "head": head,
        "checksum": record.checksum(run_id=run_id, head=head),
        "refs": json.dumps(record.refs),
        "data": record.data,
    }


def command_columns(run_id: str, command: Command) -> dict[str, object]:
    """Return the columns of a command that waits."""
    return {
        "number": command.number,
        "run_id": run_id,
        "id": quote(command.id),
        "kind": quote(command.kind),
        "expects": None if command.expects is None else json.dumps(command.expects),
        "checksum": command.checksum(run_id=run_id),
        "refs": json.dumps(command.refs),
        "data": command.data,
    }


def event_columns(batch: EventBatch, moment: float | None) -> dict[str, object]:
    """Return the columns of a batch of events, committed at that moment."""
    return {
        "run_id": batch.run_id,
        "first": batch.first,
        "count": batch.count,
        "checkpoint_id": batch.checkpoint_id,
        "moment": moment,
        "checksum": batch.checksum(),
        "refs": json.dumps(batch.refs),
        "data": batch.data,
    }


def _verify(row: Row, where: str, what: str, read: Callable[[], tuple[T, str]]) -> T:
    """Return the record that `read` makes of a row, if its checksum is the stored one."""
    try:
        found, checksum = read()
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(where, f"{what} can't be read ({error})") from error
    if checksum != row["checksum"]:
        raise CheckpointDamagedError(where, f"the checksum of {what} does not match")
    return found


def read_manifest(row: Row) -> Manifest:
    """Read a row of `checkpoints`. Raises CheckpointDamagedError."""
    checkpoint_id = str(row["checkpoint_id"])

    def read() -> tuple[Manifest, str]:
        pieces = row["pieces"]
        if pieces is not None and not pieces:
            raise ValueError("its pieces are empty")
        manifest = Manifest(**{name: row[name] for name in _MANIFEST_COLUMNS}, toc={}, pieces=pieces or b"").with_table(
            json.loads(row["toc"])
        )
        return manifest, manifest.checksum()

    return _verify(row, checkpoint_id, "its record", read)


def read_journal_record(row: Row) -> JournalRecord:
    """Read a row of `journal`, joined with the head of its run. Raises CheckpointDamagedError."""
    run_id = str(row["run_id"])

    def read() -> tuple[JournalRecord, str]:
        record = JournalRecord(key=json.loads(row["key"]), data=row["data"], refs=tuple(json.loads(row["refs"])))
        return record, record.checksum(run_id=run_id, head=row["head"])

    return _verify(row, str(row["run_head"] or run_id), "a record of its journal", read)


def read_command(row: Row) -> Command:
    """Read a row of `inbox`, joined with the head of its run. Raises CheckpointDamagedError."""
    run_id = str(row["run_id"])

    def read() -> tuple[Command, str]:
        expects = row["expects"]
        if expects is not None:
            path, blob_hash = json.loads(expects)
            expects = (path, blob_hash)
        command = Command(
            id=json.loads(row["id"]),
            kind=json.loads(row["kind"]),
            data=row["data"],
            refs=tuple(json.loads(row["refs"])),
            expects=expects,
            number=row["number"],
        )
        return command, command.checksum(run_id=run_id)

    return _verify(row, str(row["run_head"] or run_id), "a command of its inbox", read)


def read_batch(row: Row) -> EventBatch:
    """Read a row of `events`. Raises CheckpointDamagedError."""
    checkpoint_id = str(row["checkpoint_id"])

    def read() -> tuple[EventBatch, str]:
        batch = EventBatch(
            run_id=row["run_id"],
            checkpoint_id=checkpoint_id,
            first=row["first"],
            count=row["count"],
            data=row["data"],
            refs=tuple(json.loads(row["refs"])),
            moment=row["moment"],
        )
        return batch, batch.checksum()

    return _verify(row, checkpoint_id, "its events", read)
