"""Events as bytes and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest
from tests.events.samples import LARGE, SHOP, STRANGER, VALUES, Cart, batch_of, kept, progress, read_again, told_again

from perdure import WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.checkpoint import EventReader, event_batch
from perdure.codec import CodedValues
from perdure.errors import CheckpointDamagedError
from perdure.events import CheckpointInfo, Undecoded, UndeliveredMessage, WorkflowEventType
from perdure.kernel import PendingEvent, Request

if TYPE_CHECKING:
    from perdure.codec import Codec

FRAMEWORK, EXECUTOR = WorkflowEventSource.FRAMEWORK, WorkflowEventSource.EXECUTOR
CART = Cart("ada", ["bread"])
DETAILS = WorkflowErrorDetails("ValueError", "no", "line 1", "worker", {"try": 2})
INFO = CheckpointInfo("r@1", "r@0", "r", "flow", 1, "2024-01-01T00:00:00+00:00")


def test_a_commit_that_tells_nothing_has_no_events() -> None:
    assert event_batch([], SHOP) is None


@pytest.mark.parametrize("kind", [*get_args(WorkflowEventType), "a kind of the user's own"])
def test_an_event_of_each_kind_comes_back_with_all_that_it_says(kind: str) -> None:
    (event,) = told_again(PendingEvent(kind, kept(CART), "worker", ("outer", "inner"), "q1", 3, kept(DETAILS)))
    assert (event.type, event.data, event.executor_id, event.path) == (kind, CART, "worker", ("outer", "inner"))
    assert (event.iteration, event.details, event.seq, event.state) == (3, DETAILS, 1, None)


def test_an_event_that_says_nothing_but_its_kind_comes_back_so() -> None:
    (event,) = told_again(PendingEvent("superstep_started", iteration=1))
    assert (event.data, event.details, event.executor_id, event.path, event.iteration) == (None, None, None, (), 1)
    assert repr(event) == "WorkflowEvent(type='superstep_started', seq=1, iteration=1)"


@pytest.mark.parametrize(
    "data", [INFO, UndeliveredMessage(CART, "a", "b", "no edge"), WorkflowEvent("note", CART, path=("x",))]
)
def test_the_data_of_the_engines_own_events_comes_back(data: object) -> None:
    (event,) = told_again(PendingEvent("checkpoint", kept(data)))
    assert repr(event.data) == repr(data)


def test_numbers_follow_from_the_first_of_the_batch() -> None:
    new = event_batch(progress("a", "b", "c"), SHOP)
    assert [(event.seq, event.data) for event in read_again(new, first=7)] == [(7, "a"), (8, "b"), (9, "c")]


def test_events_before_the_number_that_was_asked_for_are_left_out() -> None:
    new = event_batch(progress("a", "b", "c"), SHOP)
    reader = EventReader(SHOP, batch_of(new, first=7), {})
    assert [event.data for event in reader.events(from_seq=8)] == ["b", "c"]
    assert reader.events(from_seq=10) == []


@pytest.mark.parametrize(
    ("kind", "origin"),
    [
        ("output", FRAMEWORK),
        ("executor_invoked", FRAMEWORK),
        ("superstep_completed", FRAMEWORK),
        ("answered", FRAMEWORK),
        ("request_info", EXECUTOR),
        ("progress", EXECUTOR),
    ],
)
def test_the_origin_is_that_of_the_live_event(kind: str, origin: WorkflowEventSource) -> None:
    assert told_again(PendingEvent(kind, kept(1)))[0].origin is origin


def test_the_details_of_a_failed_executor_are_its_data_as_well() -> None:
    (event,) = told_again(PendingEvent("executor_failed", None, "worker", details=kept(DETAILS)))
    assert (event.data, event.details) == (DETAILS, DETAILS)
    (event,) = told_again(PendingEvent("failed", details=kept(DETAILS)))
    assert (event.data, event.details) == (None, DETAILS)


def test_a_request_comes_back_with_its_types() -> None:
    request = Request("q1", "worker", kept(CART), Cart, list[int] | None)
    told = PendingEvent("request_info", request.data, "worker", request_id="q1")
    (event,) = read_again(event_batch([told], SHOP, requests={"q1": request}))
    assert (event.request_id, event.source_executor_id, event.executor_id) == ("q1", "worker", "worker")
    assert (event.request_type, event.response_type, event.data) == (Cart, list[int] | None, CART)


def test_a_request_whose_types_are_not_known_here_can_be_read() -> None:
    request = Request("q1", "worker", kept("?"), Cart, bool)
    told = PendingEvent("request_info", request.data, "worker", request_id="q1")
    (event,) = read_again(event_batch([told], SHOP, requests={"q1": request}), codec=STRANGER)
    assert (event.request_id, event.request_type, event.response_type, event.data) == ("q1", None, bool, "?")


def test_the_event_of_the_checkpoint_says_which_one_the_commit_writes() -> None:
    told = [PendingEvent("superstep_started", iteration=1), PendingEvent("checkpoint"), *progress("a")]
    new = event_batch(told, SHOP, checkpoint=INFO)
    assert [(event.type, event.data) for event in read_again(new)] == [
        ("superstep_started", None),
        ("checkpoint", INFO),
        ("progress", "a"),
    ]


def test_small_data_stands_in_the_document_and_large_data_in_a_blob() -> None:
    small = event_batch(progress("x" * 1000), SHOP)
    assert small is not None
    assert (small.refs, small.blobs) == ((), ())
    text = "x" * LARGE
    large = event_batch(progress(text, text), SHOP)
    assert large is not None
    assert len(large.data) < 1000
    assert {blob.hash for blob in large.blobs} == set(large.refs)
    assert [event.data for event in read_again(large)] == [text, text]


def test_data_that_was_not_kept_says_why() -> None:
    (event,) = told_again(PendingEvent("progress", lost="a socket can't be stored"))
    assert event.data == Undecoded("a socket can't be stored")


def test_data_that_could_not_be_encoded_is_lost_and_the_event_is_told() -> None:
    lenient = CodedValues(SHOP, is_lenient=True)
    refused = PendingEvent("progress", lenient.fix(iter([1]), "data"), "worker")
    event, following = told_again(refused, *progress(2))
    assert isinstance(event.data, Undecoded)
    assert "data can't be stored" in event.data.reason
    assert event.data.json is None
    assert (event.executor_id, following.data) == ("worker", 2)


def test_data_of_a_type_that_is_not_trusted_shows_its_json_and_the_rest_is_read() -> None:
    event, following = told_again(*progress(CART, "next"), codec=STRANGER)
    assert isinstance(event.data, Undecoded)
    assert "does not trust" in event.data.reason
    assert event.data.json["fields"] == {"owner": "ada", "lines": ["bread"]}
    assert following.data == "next"


@pytest.mark.parametrize("lines", [["x" * LARGE], [f"line {number}" for number in range(5000)]])
def test_the_json_of_untrusted_data_is_whole_though_it_was_stored_in_blobs(lines: list[str]) -> None:
    new = event_batch(progress(Cart("ada", lines)), SHOP)
    assert new is not None
    assert new.blobs
    (event,) = read_again(new, codec=STRANGER)
    stored = event.data.json["fields"]["lines"]
    assert (stored if isinstance(stored, list) else stored["items"]) == lines


def test_the_json_of_a_large_untrusted_mapping_is_whole() -> None:
    prices = {f"article {number}": number for number in range(5000)}
    new = event_batch([PendingEvent("progress", kept([CART, prices]))], SHOP)
    (event,) = read_again(new, codec=STRANGER)
    assert event.data.json[1] == prices


def test_untrusted_details_are_seen_as_data() -> None:
    details = WorkflowErrorDetails("ValueError", "no", extra={"cart": CART})
    (event,) = told_again(PendingEvent("failed", details=kept(details)), codec=STRANGER)
    assert event.details is None
    assert isinstance(event.data, Undecoded)


def test_untrusted_data_that_is_nested_deeply_does_not_make_the_log_unreadable() -> None:
    deep: object = CART
    for _ in range(300):
        deep = [deep]
    event, following = told_again(*progress(deep, "next"), codec=STRANGER)
    assert isinstance(event.data, Undecoded)
    assert following.data == "next"


def test_reading_hands_out_fresh_values() -> None:
    new = event_batch(progress(CART), SHOP)
    (first,), (second,) = read_again(new), read_again(new)
    first.data.lines.append("changed")
    assert second.data == Cart("ada", ["bread"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"{}",
        b"[]",
        b"[1]",
        b"[null]",
        b"[{}]",
        b'[{"type":[]}]',
        b'[{"type":"a"},{"type":"b"}]',
        b"\xff",
    ],
)
def test_bytes_that_are_no_events_are_damage_that_names_the_checkpoint(data: bytes) -> None:
    batch = replace(batch_of(event_batch(progress("a"), SHOP)), data=data)
    with pytest.raises(CheckpointDamagedError, match=r"'r@0' is damaged: its events can't be read"):
        EventReader(SHOP, batch, {}).events()


@pytest.mark.parametrize("codec", [SHOP, STRANGER], ids=["trusted", "untrusted"])
def test_a_blob_that_is_gone_or_changed_is_damage_that_names_the_checkpoint(codec: Codec) -> None:
    new = event_batch(progress(Cart("ada", ["x" * LARGE])), SHOP)
    assert new is not None
    whole = {blob.hash: blob.data for blob in new.blobs}
    for address in whole:
        for damaged in ({}, whole | {address: b"{}"}):
            with pytest.raises(CheckpointDamagedError, match="'r@0' is damaged"):
                EventReader(codec, batch_of(new), damaged).events()


def test_a_batch_is_one_json_document() -> None:
    new = event_batch([PendingEvent("output", VALUES.fix("done", "output"), "worker"), PendingEvent("woken")], SHOP)
    assert new is not None
    assert json.loads(new.data) == [{"type": "output", "executor_id": "worker", "data": "done"}, {"type": "woken"}]
