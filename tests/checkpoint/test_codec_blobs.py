"""Parts and chunks: what a change costs, and that damage never goes unnoticed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.soak import IS_SOAK

from perdure.codec import Codec, DamagedPartError, Encoded, Trust, references
from perdure.errors import IncompatibleTypeError, UntrustedTypeError
from perdure.records import Blob, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass
class Message:
    role: str
    text: str


@dataclass
class History:
    messages: list[Message]


codec = Codec(Trust.of([History]))


def encode(value: object) -> Encoded:
    return codec.encode(value, path="it")


def blobs_of(encoded: Encoded) -> dict[str, bytes]:
    return {blob.hash: blob.data for blob in encoded.blobs}


def decode(encoded: Encoded) -> Any:
    return codec.decode(encoded.text, blobs_of(encoded), path="it")


def new_blobs(before: object, after: object) -> list[Blob]:
    known = blobs_of(encode(before))
    return [blob for blob in encode(after).blobs if blob.hash not in known]


def messages(count: int) -> list[Message]:
    source = random.Random(1)
    return [Message("user", f"{number} {source.random()}" * source.randint(1, 9)) for number in range(count)]


MAKERS: list[Callable[[int], Any]] = [
    messages,
    lambda count: list(range(count)),
    lambda count: [0] * count,
    lambda count: tuple(str(number) * 20 for number in range(count)),
    lambda count: deque(range(count)),
    lambda count: {f"key {number}": number for number in range(count)},
    lambda count: {number: f"value {number}" for number in range(count)},
    lambda count: History(messages(count)),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("count", [500, 20_000])
def test_an_appended_element_costs_the_last_chunk_however_long_the_sequence(
    make: Callable[[int], Any], count: int
) -> None:
    before, after = make(count), make(count + 1)
    fresh = new_blobs(before, after)
    assert len(fresh) <= 4
    assert sum(len(blob.data) for blob in fresh) < 40_000
    assert len(encode(after).text) < 5_000


@pytest.mark.parametrize("count", [500, 5_000] if IS_SOAK else [500])
def test_an_element_that_is_changed_inserted_or_removed_costs_the_chunks_around_it(count: int) -> None:
    before = messages(count)
    for place in range(0, count, count // 7):
        changed, longer, shorter = list(before), list(before), list(before)
        changed[place] = Message("user", "changed")
        longer.insert(place, Message("user", "inserted"))
        del shorter[place]
        for after in (changed, longer, shorter):
            fresh = new_blobs(before, after)
            assert sum(len(blob.data) for blob in fresh) < 60_000


def test_a_window_that_slides_costs_its_two_ends() -> None:
    every = messages(1_000)
    before, after = deque(every[:999], maxlen=999), deque(every[1:], maxlen=999)
    fresh = new_blobs(before, after)
    assert sum(len(blob.data) for blob in fresh) < 60_000
    assert sum(len(blob.data) for blob in encode(before).blobs) > 100_000


def test_a_long_string_is_a_blob_of_its_own() -> None:
    long = "x" * 5_000
    encoded = encode({"short": 1, "long": long})
    assert blobs_of(encoded) == {digest(json.dumps(long).encode()): json.dumps(long).encode()}
    assert decode(encoded) == {"short": 1, "long": long}


def test_many_bytes_are_a_raw_blob_of_their_own() -> None:
    encoded = encode([b"x" * 1_024, b"y" * 1_025])
    assert [(blob.kind, blob.data) for blob in encoded.blobs] == [("raw", b"y" * 1_025)]


def test_bytes_never_share_the_address_of_a_text_that_refers_to_blobs() -> None:
    inner = encode(["x" * 5_000] * 30)
    text = inner.text
    assert references(text)
    assert len(text) > 1_024
    encoded = encode([text, {"inner": ["x" * 5_000] * 30}])
    assert all(blob.kind == "json" for blob in encoded.blobs)
    assert {blob.hash: blob.refs for blob in encoded.blobs}.get(digest(text), inner.refs) == inner.refs
    assert decode(encoded)[0] == text


def test_equal_blobs_are_kept_once() -> None:
    encoded = encode(["x" * 5_000] * 10)
    assert len(encoded.blobs) == 1
    assert encoded.refs == (encoded.blobs[0].hash,)
    assert decode(encoded) == ["x" * 5_000] * 10


def test_blobs_come_after_the_blobs_that_they_refer_to() -> None:
    known: set[str] = set()
    for blob in encode([messages(3_000), "x" * 9_000]).blobs:
        assert known.issuperset(blob.refs)
        known.add(blob.hash)


def test_the_whole_as_a_blob_refers_to_what_the_text_does() -> None:
    encoded = encode(messages(1_000))
    whole = encoded.blob()
    assert (whole.data, whole.refs, whole.kind) == (encoded.text, encoded.refs, "json")
    assert whole.hash == digest(encoded.text)
    assert references(whole.data) == whole.refs


def test_a_short_text_stays_inline_and_a_long_one_becomes_a_reference() -> None:
    encoded = encode(["x" * 1_000, "y" * 1_000])
    assert encoded.inline() is encoded
    inline = encoded.inline(100)
    assert inline.text == f'{{"~":"part","part":"{encoded.blob().hash}"}}'.encode()
    assert inline.blobs == (*encoded.blobs, encoded.blob())
    assert decode(inline) == ["x" * 1_000, "y" * 1_000]


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from perdure.codec.codec import Codec\n"
        "from perdure.codec.trust import Trust\n"
        "value = [{str(n) for n in range(2000)}, frozenset({('a', 1), 'b', None, 2.5}), {'z' * 5000, 'w' * 5000},"
        " {frozenset({'x', 'y'}): {'p', 'q'}}]\n"
        "encoded = Codec(Trust.of()).encode(value, path='it')\n"
        "print(encoded.blob().hash, encoded.refs, sorted((blob.hash, blob.refs) for blob in encoded.blobs))\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(answers) == 1


def damaged(text: bytes, blobs: Mapping[str, bytes]) -> str:
    with pytest.raises(DamagedPartError) as caught:
        codec.decode(text, blobs, path="state['x']")
    return str(caught.value)


def test_every_flipped_byte_of_every_blob_is_noticed() -> None:
    value = [b"x" * 1_025, {f"k{number}": number for number in range(400)}, messages(2)]
    encoded = encode(value).inline(0)
    blobs = blobs_of(encoded)
    source = random.Random(1)
    assert decode(encoded) == value
    for address, data in blobs.items():
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= 1 << source.randrange(8)
            reason = damaged(encoded.text, {**blobs, address: bytes(flipped)})
            assert f"part {address} has other bytes than were written" in reason


def test_a_missing_blob_is_noticed_and_named_with_its_place() -> None:
    cart = {"cart": History([Message("user", "x" * 5_000)])}
    encoded = encode(cart)
    (address,) = encoded.refs
    assert damaged(encoded.text, {}) == f"state['x']['cart'].messages[0].text: part {address} is missing"


def test_a_blob_under_the_hash_of_another_is_noticed() -> None:
    encoded = encode(["x" * 5_000, "y" * 5_000])
    first, second = encoded.blobs
    swapped = {first.hash: second.data, second.hash: first.data}
    assert "has other bytes than were written" in damaged(encoded.text, swapped)


MALFORMED: list[str] = [
    "",
    "[",
    "[1,]",
    "NaN",
    "Infinity",
    "\xff",
    '{"~":null}',
    '{"~":1}',
    '{"~":["tuple"]}',
    '{"~":"later"}',
    '{"~":"index","chunks":[]}',
    '{"~":"object","items":[]}',
    '{"~":"part"}',
    '{"~":"part","part":1}',
    '{"~":"part","part":"0"}',
    '{"~":"part","part":"0","more":1}',
    '{"~":"list","chunks":1}',
    '{"~":"list","chunks":["0"]}',
    '{"~":"list","chunks":[],"items":[]}',
    '{"~":"list","chunks":[[]]}',
    '{"~":"tuple"}',
    '{"~":"tuple","items":{}}',
    '{"~":"tuple","items":[],"more":1}',
    '{"~":"set","items":[[]]}',
    '{"~":"set","items":[1,1]}',
    '{"~":"frozenset","items":[1,1.0]}',
    '{"~":"deque","items":[1,2],"maxlen":1}',
    '{"~":"deque","items":[],"maxlen":"x"}',
    '{"~":"dict","items":[1]}',
    '{"~":"dict","items":[[1]]}',
    '{"~":"dict","items":[[1,2],[1,3]]}',
    '{"~":"dict","items":[[[],2]]}',
    '{"~":"defaultdict","items":[],"factory":1}',
    '{"~":"bytes"}',
    '{"~":"bytes","base64":"?"}',
    '{"~":"bytes","base64":1}',
    '{"~":"bytearray","part":"0"}',
    '{"~":"int","value":"x"}',
    '{"~":"int","value":1}',
    '{"~":"float","value":"1.5"}',
    '{"~":"float","value":[]}',
    '{"~":"complex","value":[1]}',
    '{"~":"complex","value":[1,2]}',
    '{"~":"datetime","value":"yesterday"}',
    '{"~":"datetime","value":1}',
    '{"~":"datetime","value":"2024-01-01T00:00:00","fold":2}',
    '{"~":"datetime","value":"2024-01-01T00:00:00","zone":1}',
    '{"~":"date","value":"x"}',
    '{"~":"time","value":"25:00"}',
    '{"~":"timedelta","value":[1]}',
    '{"~":"timezone","offset":[9,0,0]}',
    '{"~":"zone","key":"../../etc/passwd"}',
    '{"~":"uuid","value":"x"}',
    '{"~":"decimal","value":"x"}',
    '{"~":"decimal","value":1}',
    '{"~":"fraction","value":[1,0]}',
    '{"~":"fraction","value":["1","2"]}',
    '{"~":"range","value":[1,2,0]}',
    '{"~":"path","value":1}',
    '{"~":"path","value":"x","pure":"mac"}',
    '{"~":"type","name":1}',
    '{"~":"type","name":"builtins:list","args":1}',
    '{"~":"union","args":[]}',
    '{"~":"union","args":[1,2]}',
    '{"~":"Union","args":[1]}',
    '{"~":"Annotated","args":[{"~":"type","name":"builtins:int"}]}',
    '{"~":"dataclass","type":1}',
    '{"~":"dataclass","type":"HISTORY"}',
    '{"~":"dataclass","type":"HISTORY","fields":[]}',
    '{"~":"dataclass","type":"HISTORY","fields":{"messages":1},"unset":1}',
    '{"~":"dataclass","type":"HISTORY","fields":{"messages":1},"attributes":1}',
    "[" * 100_000,
    '{"a":' * 100_000,
]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:70])
def test_a_malformed_text_is_damage(text: str) -> None:
    text = text.replace("HISTORY", f"{__name__}:History")
    assert damaged(text.encode("latin-1"), {}).startswith("state['x']")


def test_a_chunk_that_is_no_chunk_is_damage() -> None:
    for data in (b"1", b'{"a":1}', b'{"~":"tuple","items":[]}'):
        text = f'{{"~":"tuple","chunks":["{digest(data)}"]}}'.encode()
        assert "'chunk' is a" in damaged(text, {digest(data): data})


def test_a_key_that_stands_in_two_chunks_is_damage() -> None:
    data = b'{"a":1}'
    text = f'{{"~":"object","chunks":["{digest(data)}","{digest(data)}"]}}'.encode()
    assert "a key is duplicated" in damaged(text, {digest(data): data})


def test_random_damage_to_a_text_gives_an_error_of_ours_or_a_value() -> None:
    encoded = encode([{"a": (1, {2}), "b": History([Message("a", "b")])}, b"x", 1.5, list[int]])
    source = random.Random(1)
    for _ in range(3_000):
        text = bytearray(encoded.text)
        text[source.randrange(len(text))] = source.randrange(256)
        try:
            codec.decode(bytes(text), blobs_of(encoded), path="it")
        except (DamagedPartError, UntrustedTypeError, IncompatibleTypeError):
            continue


def test_references_of_a_malformed_text_are_damage() -> None:
    for text in (b'{"~"', b'{"~":"list","chunks":1}', b'["~",' + b"[" * 100_000):
        with pytest.raises(DamagedPartError):
            references(text)


def test_what_is_handed_out_can_not_change_what_is_stored() -> None:
    encoded = encode({"a": [1]})
    decode(encoded)["a"].append(2)
    assert decode(encoded) == {"a": [1]}


def test_reading_needs_little_of_the_stack() -> None:
    value: Any = 1
    for _ in range(390):
        value = History([value])
        value = value.messages
    encoded = encode(value)
    spare = 60

    def at_depth(frames_left: int) -> Any:
        return decode(encoded) if frames_left <= 0 else at_depth(frames_left - 1)

    used, frame = 0, sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        used, frame = used + 1, frame.f_back
    parsing = 3 * 64
    assert at_depth(sys.getrecursionlimit() - used - spare - parsing) == value
