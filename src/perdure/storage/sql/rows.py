"""Rows of the database as the records that they hold, if they are what was written."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError
from perdure.records import Command, EventBatch, Halt, JournalRecord, Manifest, Owner, RunRecord, digest
from perdure.storage import retention as keep
from perdure.storage.rules import RunState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.records import HeadStatus
    from perdure.storage.sql.database import Row


_POSITION_DIGITS_MAX = 18

_compact = json.JSONEncoder(separators=(",", ":")).encode
# A damaged cell may hold anything, bytes too.
_covered = json.JSONEncoder(separators=(",", ":"), default=repr).encode


def those_of_run(found: Sequence[Row], run_id: str, *, key: str, kind: str) -> list[Row]:
    """The rows that a run has, if they are as many as it counts; those without a key are none. `kind` is of what.

    Raises CheckpointDamagedError.
    """
    present = [row for row in found if row[key] is not None]
    if found and len(present) != found[0]["due"]:
        reason = f"its run {run_id!r} has {found[0]['due']} {kind}, but {len(present)} are found"
        raise CheckpointDamagedError(str(found[0]["run_head"] or run_id), reason)
    return present


def run_state(row: Row) -> RunState:
    """A row of runs."""
    record = RunRecord(
        run_id=row["run_id"],
        workflow_name=row["workflow_name"],
        created_at=row["created_at"],
        nonce=row["nonce"],
        input_digest=row["input_digest"],
        parent_checkpoint_id=row["parent_checkpoint_id"],
        head=row["head"],
        position=row["position"],
        settled=bool(row["settled"]),
        owner=owner(row),
        status=row["status"],
        wake_at=row["wake_at"],
        events=row["events"],
        halt=_halt(row),
        attempts=row["attempts"],
    )
    if row["checksum"] not in {None, _checksum(record)}:
        raise CheckpointDamagedError(str(record.run_id), "the record of the run is not what was written")
    return RunState(record, token=row["token"], moment=row["moment"])


def sound_runs(found: Iterable[Row]) -> Iterator[tuple[RunRecord, Row]]:
    """The runs of those rows that can be read."""
    for row in found:
        with contextlib.suppress(CheckpointDamagedError):
            yield run_state(row).record, row


def owner(row: Row) -> Owner | None:
    """Who advances the run of a row."""
    if row["owner_id"] is None:
        return None
    return Owner(id=row["owner_id"], host=row["owner_host"], boot=row["owner_boot"], pid=row["owner_pid"])


def _halt(row: Row) -> Halt | None:
    text, run_id = row["halt"], str(row["run_id"])
    if text is None:
        return None
    try:
        fields = json.loads(text)
        data = bytes.fromhex(fields["data"])
        halt = Halt(kind=fields["kind"], at=fields["at"], reason=fields["reason"], data=data)
        is_whole = _of_halt(run_id, halt) == text
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointDamagedError(run_id, f"why the run has halted can't be read ({error})") from error
    if not is_whole:
        raise CheckpointDamagedError(run_id, "why the run has halted is not what was written")
    return halt


def _of_halt(run_id: str, halt: Halt) -> str:
    """A halt with a digest of it. What that covers never changes, nor does the form of the text."""
    fields = {"kind": halt.kind, "at": halt.at, "reason": halt.reason, "data": halt.data.hex()}
    covered = _compact([run_id, *fields.values()])
    return _compact({**fields, "digest": digest(covered.encode("ascii"))})


def _checksum(run: RunRecord) -> str:
    """A hash over all but the owner. What it covers never changes: it is compared with what was written long ago."""
    covered = [
        run.run_id,
        run.workflow_name,
        run.created_at,
        run.nonce,
        run.input_digest,
        run.parent_checkpoint_id,
        run.head,
        run.position,
        run.settled,
        run.status,
        run.wake_at,
        run.events,
    ]
    return digest(_covered(covered).encode("ascii"))


def of_run_state(state: RunState) -> dict[str, object]:
    """The columns of a run."""
    record = state.record
    return {
        "run_id": record.run_id,
        "workflow_name": record.workflow_name,
        "created_at": record.created_at,
        "nonce": record.nonce,
        "input_digest": record.input_digest,
        "parent_checkpoint_id": record.parent_checkpoint_id,
        "head": record.head,
        "position": record.position,
        "settled": record.settled,
        "status": record.status,
        "wake_at": record.wake_at,
        "events": record.events,
        "checksum": _checksum(record),
        "moment": state.moment,
        **of_holder(state),
    }


def of_holder(state: RunState) -> dict[str, object]:
    """The columns that change when a run is claimed or given free."""
    record = state.record
    owner = record.owner
    return {
        "token": state.token,
        "owner_id": owner.id if owner else None,
        "owner_host": owner.host if owner else None,
        "owner_boot": owner.boot if owner else None,
        "owner_pid": owner.pid if owner else None,
        "attempts": record.attempts,
        "halt": _of_halt(record.run_id, record.halt) if record.halt else None,
    }


def of_commit(state: RunState, *, before: str | None) -> dict[str, object]:
    """The columns of a run that a commit changes, and those by which it is known to be as it was before."""
    record = state.record
    return {
        "run_id": record.run_id,
        "token": state.token,
        "owner_id": record.owner.id if record.owner else None,
        "before": before,
        "head": record.head,
        **named_after(str(record.head)),
        "position": record.position,
        "settled": record.settled,
        "status": record.status,
        "wake_at": record.wake_at,
        "events": record.events,
        "checksum": _checksum(record),
        "moment": state.moment,
    }


def named_after(checkpoint_id: str) -> dict[str, object]:
    """The run and the position that a checkpoint of this id is named after, if it is."""
    run_id, _, digits = checkpoint_id.rpartition("@")
    if digits.isascii() and digits.isdigit() and len(digits) <= _POSITION_DIGITS_MAX:
        return {"of_run": run_id, "at": int(digits)}
    return {"of_run": None, "at": None}


def of_checkpoint(manifest: Manifest, *, settled: bool, status: HeadStatus, wake_at: str | None) -> dict[str, object]:
    """The columns of a checkpoint, with what its commit says of the run."""
    table = manifest.table_text()
    return {
        "checkpoint_id": manifest.checkpoint_id,
        "run_id": manifest.run_id,
        "workflow_name": manifest.workflow_name,
        "position": manifest.position,
        "previous_id": manifest.previous_id,
        "timestamp": manifest.timestamp,
        "moment": keep.moment(manifest.timestamp),
        "iteration_count": manifest.iteration_count,
        "settled": settled,
        "status": status,
        "wake_at": wake_at,
        "checksum": manifest.checksum(table=table),
        "header": manifest.header,
        "toc": table,
        "pieces": manifest.pieces or None,
    }


def manifest(row: Row) -> Manifest:
    """A row of checkpoints. Raises CheckpointDamagedError."""
    checkpoint_id = str(row["checkpoint_id"])
    try:
        found = Manifest(
            checkpoint_id=checkpoint_id,
            run_id=row["run_id"],
            workflow_name=row["workflow_name"],
            position=row["position"],
            previous_id=row["previous_id"],
            timestamp=row["timestamp"],
            iteration_count=row["iteration_count"],
            header=row["header"],
            toc={},
            pieces=_pieces(row["pieces"]),
        ).with_table(json.loads(row["toc"]))
        checksum = found.checksum()
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(checkpoint_id, f"its record can't be read ({error})") from error
    if checksum != row["checksum"]:
        raise CheckpointDamagedError(checkpoint_id, "its checksum does not match")
    return found


def _pieces(found: bytes | None) -> bytes:
    if found is None:
        return b""
    if not found:
        raise ValueError("what stands in it is empty")
    return found


def journal_record(row: Row) -> JournalRecord:
    """A row of the journal, with the head of its run. Raises CheckpointDamagedError."""
    run_id = str(row["run_id"])
    where = str(row["run_head"] or run_id)
    try:
        record = JournalRecord(key=json.loads(row["key"]), data=row["data"], refs=tuple(json.loads(row["refs"])))
        checksum = record.checksum(run_id=run_id, head=row["head"])
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(where, f"a record of its journal can't be read ({error})") from error
    if checksum != row["checksum"]:
        raise CheckpointDamagedError(where, "the checksum of a record of its journal does not match")
    return record


def command(row: Row) -> Command:
    """A row of the inbox, with the head of its run. Raises CheckpointDamagedError."""
    run_id = str(row["run_id"])
    where = str(row["run_head"] or run_id)
    try:
        found = Command(
            id=json.loads(row["id"]),
            kind=json.loads(row["kind"]),
            data=row["data"],
            refs=tuple(json.loads(row["refs"])),
            expects=_pair(row["expects"]),
            number=row["number"],
        )
        checksum = found.checksum(run_id=run_id)
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(where, f"a command of its inbox can't be read ({error})") from error
    if checksum != row["checksum"]:
        raise CheckpointDamagedError(where, "the checksum of a command of its inbox does not match")
    return found


def _pair(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    path, part_hash = json.loads(text)
    return path, part_hash


def of_refs(refs: tuple[str, ...]) -> str:
    """The hashes that something refers to, of which there mostly are none."""
    return json.dumps(refs) if refs else "[]"


def of_batch(batch: EventBatch, moment: float | None) -> dict[str, object]:
    """The columns of a batch of events, of a commit at that moment."""
    return {
        "run_id": batch.run_id,
        "first": batch.first,
        "count": batch.count,
        "checkpoint_id": batch.checkpoint_id,
        "moment": moment,
        "checksum": batch.checksum(),
        "refs": of_refs(batch.refs),
        "data": batch.data,
    }


def batch(row: Row) -> EventBatch:
    """A row of events. Raises CheckpointDamagedError."""
    checkpoint_id = str(row["checkpoint_id"])
    try:
        found = EventBatch(
            run_id=row["run_id"],
            checkpoint_id=checkpoint_id,
            first=row["first"],
            count=row["count"],
            data=row["data"],
            refs=tuple(json.loads(row["refs"])),
        )
        checksum = found.checksum()
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(checkpoint_id, f"its events can't be read ({error})") from error
    if checksum != row["checksum"]:
        raise CheckpointDamagedError(checkpoint_id, "the checksum of its events does not match")
    return found
