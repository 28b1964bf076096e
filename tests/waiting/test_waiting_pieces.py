"""What waits, was stopped or is limited, as pieces of a checkpoint and back; and moved to another store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import pytest

from perdure.checkpoint import JournalReader, snapshot_record
from perdure.checkpoint.documents import DocumentReader, tree_of
from perdure.checkpoint.writer import Changes
from perdure.codec import Codec, CodedValues, Kept, LiveValues, Trust, as_kept, document
from perdure.engine import convert_values
from perdure.kernel import Cancelled, Delayed, Delivery, Limits, Request, Snapshot, Suspended, Trail

CODEC = Codec(Trust.of([]))
VALUES = CodedValues(CODEC)
LARGE = "x" * 20_000  # a part of its own


def kept(value: object) -> Kept:
    return VALUES.fix(value, "a value")


REQUEST = Request(
    "q/1",
    "a",
    kept({"text": LARGE}),
    str,
    int,
    opened_at="2024-01-01T00:00:00+00:00",
    deadline="2024-01-02T00:00:00+00:00",
    default=kept(7),
    approves="digest",
    resumes="1.0/a#0",
    refusals=("too small", "too large"),
)
DELIVERY = Delivery("a", ("internal:a",), (kept([LARGE, 1]),), send="turn:1", asked_for="a", activation_id="1.0/a#0")
WAITING: dict[str, Snapshot] = {
    "a suspended activation": Snapshot(
        suspended=(
            Suspended(DELIVERY, wake_at="2024-01-01T00:00:00+00:00"),
            Suspended(replace(DELIVERY, activation_id="1.0/a#1"), awaits="q/1"),
            Suspended(replace(DELIVERY, answers=REQUEST, is_gathered=True)),
        )
    ),
    "a delayed message": Snapshot(
        delayed=(
            Delayed("2024-01-01T00:00:00+00:00", "a", "a#0/1", kept(LARGE), None, ("b", "c"), ("fan-in",)),
            Delayed("2024-01-01T00:00:00.5+00:00", "a", "a#0/2", kept(None), "b", (), ()),
        )
    ),
    "a message that wakes a sub-workflow": Snapshot(
        deliveries=(Delivery("sub", (), (), send="wake", woken_at="2024-01-01T00:00:00+00:00"),)
    ),
    "a request with terms": Snapshot(requests={"q/1": REQUEST, "q/2": replace(REQUEST, id="q/2", default=None)}),
    "records": Snapshot(
        carried={"1.0/a#0/step/x%2Fy#0": kept([LARGE]), "1.0/a/b#0/sleep/0": kept("2024"), "0": kept(0)}
    ),
    "a wish to stop": Snapshot(cancelled=Cancelled("2024-01-01T00:00:00+00:00", "alice", None)),
    "limits": Snapshot(limits=Limits("2024-01-01T00:00:00+00:00", {"usd": 1.5, "supersteps": 3}, {"usd": 0.25})),
}
WAITING["all of it"] = Snapshot(
    **{
        field.name: value
        for snapshot in WAITING.values()
        for field in fields(Snapshot)
        if (value := getattr(snapshot, field.name)) != getattr(Snapshot(), field.name)
    }
)
WAITING["all of it inside"] = Snapshot(children={"s/ub": Snapshot(turn=1, children={"sub": WAITING["all of it"]})})

each = pytest.mark.parametrize("name", WAITING)


def shown(value: Any, values: Any = VALUES) -> Any:
    """A snapshot as plain data, with the values that are kept in it."""
    match value:
        case Kept():
            return values.give(value)
        case Trail() | tuple():
            return [shown(item, values) for item in cast("tuple[Any, ...]", value)]
        case Mapping():
            return {key: shown(item, values) for key, item in cast("Mapping[Any, Any]", value).items()}
        case _ if is_dataclass(value):
            return {field.name: shown(getattr(value, field.name), values) for field in fields(value)}
        case _:
            return value


def written(snapshot: Snapshot) -> tuple[dict[str, str], dict[str, bytes]]:
    """The table of contents of a snapshot, and its parts, with all that they refer to."""
    toc: dict[str, str] = {}
    blobs: dict[str, bytes] = {}
    for path, fresh in Changes(CODEC).compare(None, snapshot).fresh.items():
        toc[path] = fresh.encoded.blob().hash
        blobs.update((inner.hash, inner.data) for inner in (fresh.encoded.blob(), *fresh.nested()))
    return toc, blobs


def read(toc: Mapping[str, str], blobs: Mapping[str, bytes]) -> Snapshot:
    return DocumentReader(CODEC, blobs, "r@1").snapshot(tree_of(toc), (0, 0, 0))


@each
def test_a_snapshot_is_read_as_it_was_written(name: str) -> None:
    assert shown(read(*written(WAITING[name]))) == shown(WAITING[name])


@each
def test_a_snapshot_that_was_read_is_written_with_the_same_bytes(name: str) -> None:
    toc, blobs = written(WAITING[name])
    again, _ = written(read(toc, blobs))
    assert again == toc


@each
def test_a_sub_workflow_in_a_journal_is_read_as_it_was_written_and_brings_its_blobs(name: str) -> None:
    record = snapshot_record(WAITING[name], CODEC)
    blobs = {blob.hash: blob.data for blob in record.blobs}
    found = JournalReader(CODEC, blobs, "r@1").snapshot(record.text)
    assert shown(found) == shown(WAITING[name])
    toc, brought = written(found)
    assert shown(read(toc, brought)) == shown(WAITING[name])


@each
def test_a_run_that_moves_to_another_store_brings_all_that_it_waits_for(name: str) -> None:
    stored = read(*written(WAITING[name]))
    moved = convert_values(stored, VALUES, CodedValues(CODEC))
    assert shown(read(*written(moved))) == shown(WAITING[name])


@each
def test_a_record_of_a_sub_workflow_that_is_carried_brings_all_blobs_to_another_store(name: str) -> None:
    record = Kept(path="record", encoded=snapshot_record(WAITING[name], CODEC))
    stored = read(*written(Snapshot(carried={"1.0/sub#0/child": record})))
    moved = as_kept(convert_values(stored, VALUES, VALUES).carried["1.0/sub#0/child"]).require_encoded()
    found = JournalReader(CODEC, {blob.hash: blob.data for blob in moved.blobs}, "r@1").snapshot(moved.text)
    assert shown(found) == shown(WAITING[name])


def test_a_run_that_moves_through_memory_keeps_its_records() -> None:
    live, records = LiveValues(), WAITING["records"]
    there = convert_values(read(*written(records)), VALUES, live)
    back = convert_values(there, live, VALUES)
    assert shown(read(*written(back)).carried) == shown(records.carried)


def test_a_record_is_moved_as_the_document_that_it_is() -> None:
    record = Kept(path="record", encoded=document({"at": "2024", "result": 1}), stored={})
    moved = convert_values(Snapshot(carried={"1.0/a#0/step/x#0": record}), VALUES, VALUES)
    assert as_kept(moved.carried["1.0/a#0/step/x#0"]).require_encoded().text == record.require_encoded().text
