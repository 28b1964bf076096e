"""What a log costs and keeps: sealed chunks, lazy reading, isolation, trust, damage."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from perdure import Log
from perdure.codec import Codec, CodedValues, Encoded, Kept, Trust, plain_data, references
from perdure.errors import CheckpointDamagedError, EncodeError
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Message:
    text: str
    tags: list[str] = field(default_factory=list[str])


@dataclass
class Agent:
    name: str
    history: Log[Message]


codec = Codec(Trust.of([Agent]))


def blobs_of(encoded: Encoded) -> dict[str, bytes]:
    return {blob.hash: blob.data for blob in encoded.blobs}


def decode(encoded: Encoded, by: Codec = codec) -> Any:
    return by.decode(encoded.text, blobs_of(encoded), path="it")


class Counting(dict[str, bytes]):
    """Parts, and which of them were looked at."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        super().__init__(blobs)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


@settings(deadline=None, max_examples=40)
@given(growth=st.lists(st.lists(st.one_of(st.integers(), st.text(max_size=900)), max_size=20), max_size=12))
def test_however_often_it_was_kept_the_same_log_has_the_same_bytes(growth: list[list[Any]]) -> None:
    grown: Log[Any] = Log()
    for elements in growth:
        grown.extend(elements)
        kept = codec.encode(grown, path="it")
        assert decode(kept) == grown
        assert references(kept.text) == kept.refs
    at_once = codec.encode(Log([element for elements in growth for element in elements]), path="it")
    assert codec.encode(grown, path="it") == at_once
    assert blobs_of(codec.encode(grown, path="it")) == blobs_of(at_once)


def test_an_appended_element_costs_itself_and_a_few_references() -> None:
    log = Log("x" * 1_000 + str(number) for number in range(10_000))
    before = codec.encode({"log": log}, path="it")
    written = 0
    for number in range(100):
        log.append("y" * 1_000 + str(number))
        after = codec.encode({"log": log}, path="it")
        new = list(after.beyond(before.has))
        assert len(new) <= 8
        written += sum(len(blob.data) + 41 * len(blob.refs) for blob in new) + len(after.text) + 41 * len(after.refs)
        before = after
    assert written < 100 * 3_500
    assert decode(before)["log"] == log


def test_handing_a_log_out_and_keeping_it_again_reads_nothing_but_its_tail() -> None:
    encoded = codec.encode(Log("x" * 1_000 + str(number) for number in range(3_000)), path="it")
    values, stored = CodedValues(codec), Counting(blobs_of(encoded))
    kept = Kept(path="it", encoded=Encoded(encoded.text, refs=encoded.refs), stored=stored, checkpoint_id="c")
    log = values.give(kept)
    log.append("more")
    again = values.fix(log, "it")
    assert len(log) == 3_001
    assert len(stored.read) <= 17
    assert log[0].endswith("x0")
    assert len(stored.read) <= 17 + 4 + 17
    assert again.encoded is not None
    assert decode(again.encoded) == log


def test_a_log_that_was_read_and_moved_brings_all_of_its_blobs() -> None:
    encoded = codec.encode(Log(Message("x" * 600 + str(number)) for number in range(500)), path="it")
    moved = codec.encode([decode(encoded)], path="it")
    assert decode(moved) == [decode(encoded)]
    assert blobs_of(moved).keys() >= blobs_of(encoded).keys()
    assert {blob.hash for blob in moved.beyond(encoded.has)} == set()


def test_what_follows_a_log_that_was_read_refers_to_what_is_there() -> None:
    encoded = codec.encode(Log("x" * 600 + str(number) for number in range(500)), path="it")
    read = Encoded(encoded.text, refs=encoded.refs)
    log = decode(encoded)
    log.append("more")
    assert len(list(codec.encode(log, path="it").beyond(read.has))) <= 1


def test_two_who_are_given_a_log_do_not_see_each_others_changes() -> None:
    values = CodedValues(codec)
    kept = values.fix(Agent("a", Log(Message("x" * 300 + str(number)) for number in range(100))), "it")
    one, other = values.give(kept), values.give(kept)
    one.history[0].tags.append("changed")
    one.history.append(Message("mine"))
    one.history[-2].tags.append("changed")
    assert other.history[0].tags == []
    assert (len(one.history), len(other.history)) == (101, 100)
    assert values.give(kept).history[99].tags == []


def test_elements_that_can_not_change_are_shared() -> None:
    values = CodedValues(codec)
    elements = [("x" * 300, number) for number in range(100)]
    kept = values.fix(Log(elements), "it")
    assert all(given_ is mine for given_, mine in zip(values.give(kept)[:90], elements[:90], strict=True))


def test_a_log_may_hold_logs() -> None:
    log = Log(Log("x" * 100 + str(number) for number in range(count)) for count in range(0, 200, 7))
    encoded = codec.encode({"outer": log}, path="it")
    assert decode(encoded) == {"outer": log}
    log[-1].append("after it was sealed")
    log.append(Log(["y" * 3_000]))
    again = codec.encode({"outer": log}, path="it")
    assert len(decode(again)["outer"]) == len(log)
    assert decode(again)["outer"][-1] == Log(["y" * 3_000])


def test_the_same_blob_inside_and_outside_of_a_log_is_kept_for_both() -> None:
    long = "x" * 700
    for value in ({"a": Log([long] * 40), "b": long}, {"b": long, "a": Log([long] * 40)}, [Log([long] * 40)] * 2):
        assert decode(codec.encode(value, path="it")) == value
    (log, first) = (Log([long] * 40), {"log": Log(["y" * 700] * 40), "text": "y" * 700})
    assert decode(codec.encode([first, log, long], path="it")) == [first, log, long]


def test_a_log_that_contains_itself_is_refused_and_nothing_of_it_is_sealed() -> None:
    log: Log[Any] = Log(["x" * 600] * 10)
    log.append([log])
    with pytest.raises(EncodeError, match=r"it\[10\]\[0\].* contains itself"):
        codec.encode(log, path="it")
    assert not log.__seals__().sealed


def test_an_element_that_is_refused_is_named_with_its_place() -> None:
    log: Log[Any] = Log(range(5_000))
    codec.encode(log, path="it")
    log.append(object())
    with pytest.raises(EncodeError, match=r"it\[5000\]"):
        codec.encode(log, path="it")


def test_what_another_program_has_sealed_is_not_taken_on_trust() -> None:
    log = Log(Message("x" * 300) for _ in range(100))
    assert decode(codec.encode(log, path="it")) == log
    stranger = Codec(Trust.of())
    with pytest.raises(EncodeError, match="does not trust"):
        stranger.encode(log, path="it")
    friend = Codec(Trust.of([Agent, Message]))
    assert decode(friend.encode(log, path="it"), friend) == log


def test_equal_logs_have_the_same_bytes_if_mappings_are_sorted() -> None:
    one = Log({"a": number, "b": "x" * 90} for number in range(500))
    other = Log({"b": "x" * 90, "a": number} for number in range(500))
    codec.encode(one, path="it")
    first, second = (codec.encode(log, path="it", is_canonical=True) for log in (one, other))
    assert first.text == second.text


def test_its_size_is_that_of_its_blobs() -> None:
    log = Log("x" * 1_000 + str(number) for number in range(1_000))
    codec.encode(log, path="it")
    encoded = codec.encode({"log": log}, path="it")
    assert encoded.size == len(encoded.text) + sum(len(blob.data) for blob in encoded.blobs)


def test_who_does_not_know_the_types_sees_the_elements() -> None:
    log = Log(Message("x" * 300 + str(number)) for number in range(100))
    encoded = codec.encode(log, path="it")
    plain = plain_data(encoded.text, blobs_of(encoded), path="it")
    assert plain == [{"text": message.text, "tags": []} for message in log]


def test_every_blob_that_is_damaged_or_missing_is_named_when_it_is_needed() -> None:
    values = CodedValues(codec)
    encoded = codec.encode(Log(Message("x" * 200 + str(number)) for number in range(60)), path="it")
    blobs = blobs_of(encoded)
    for address, data in blobs.items():
        for damaged in ({**blobs, address: data[:-1] + b"?"}, {key: blobs[key] for key in blobs if key != address}):
            stored = Encoded(encoded.text, refs=encoded.refs)
            log = values.give(Kept(path="state['h']", encoded=stored, stored=damaged, checkpoint_id="run@7"))
            with pytest.raises(CheckpointDamagedError, match=rf"'run@7' is damaged: state\['h'\].*part {address}"):
                list(log)


def text_of(address: str, *, counts: str = "[1]", heights: str = "[0]", sizes: str = "[3]") -> bytes:
    members = f'"counts":{counts},"heights":{heights},"sizes":{sizes}'
    return f'{{"~":"log","chunks":["{address}"],{members},"tail":[]}}'.encode()


@pytest.mark.parametrize(
    ("data", "members"),
    [
        (b"[1,2]", {}),
        (b'{"a":1}', {}),
        (b"[1]", {"counts": "[0]"}),
        (b"[1]", {"counts": "[1,1]"}),
        (b"[1]", {"counts": '["1"]'}),
        (b"[1]", {"heights": "[]"}),
        (b"[1]", {"sizes": "[]"}),
        (b"[1]", {"sizes": "[0]"}),
        (b"[1]", {"sizes": '["3"]'}),
        (b"[1]", {"heights": "[-1]"}),
        (b"[1]", {"heights": "[1]"}),
        (b'{"~":"index","chunks":[],"counts":[]}', {"heights": "[1]"}),
    ],
)
def test_a_log_that_does_not_add_up_is_damage(data: bytes, members: dict[str, str]) -> None:
    values = CodedValues(codec)
    text, stored = text_of(digest(data), **members), {digest(data): data}
    kept = Kept(path="it", encoded=Encoded(text), stored=stored, checkpoint_id="run@7")
    with pytest.raises(CheckpointDamagedError):
        list(values.give(kept))


@pytest.mark.parametrize("says", ["its size", "nothing"])
def test_a_log_that_was_read_is_as_large_as_the_one_that_was_written(says: str) -> None:
    values = CodedValues(codec)
    log = Log(Message("x" * 700 + str(number), ["y" * 600 + str(number)]) for number in range(102))
    encoded = codec.encode(log, path="it")
    text, blobs = encoded.text, blobs_of(encoded)
    if says == "nothing":
        # As a log is that has one chunk, and does not say its size.
        log = Log([Message("x" * 1_100)])
        encoded = codec.encode(log, path="it")
        text, blobs = re.sub(rb',"sizes":\[\d+\]', b"", encoded.text), blobs_of(encoded)
    stored = Counting(blobs)
    read = values.give(Kept(path="it", encoded=Encoded(text, refs=encoded.refs), stored=stored))
    assert codec.encode(read, path="it").size == encoded.size == len(encoded.text) + sum(map(len, blobs.values()))
    assert bool(stored.read) is (says == "nothing")


def test_another_process_writes_the_same_bytes() -> None:
    program = (
        "from perdure import Log\n"
        "from perdure.codec.codec import Codec\n"
        "from perdure.codec.trust import Trust\n"
        "log = Log()\n"
        "for n in range(150):\n"
        "    log.append('x' * 600 + str(n))\n"
        "    encoded = Codec(Trust.of()).encode(log, path='it')\n"
        "print(encoded.blob().hash)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    here = Codec(Trust.of()).encode(Log("x" * 600 + str(number) for number in range(150)), path="it")
    assert told.strip() == here.blob().hash


def test_a_type_expression_may_name_it() -> None:
    for expression in (Log, Log[int], list[Log[str]]):
        assert decode(codec.encode(expression, path="it")) == expression
