"""What the codec remembers: it spares work, and never gives a value that is not the one that was kept."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel

from perdure.codec import Codec, CodedValues, Encoded, Kept, LiveValues, Trust
from perdure.errors import CheckpointDamagedError, EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Message:
    role: Any
    text: Any


@dataclass(frozen=True)
class Closed:
    text: Any


class Model(BaseModel):
    text: str
    tags: list[str] = []


TYPES = [Message, Closed, Model]


@pytest.fixture
def values() -> CodedValues:
    return CodedValues(Codec(Trust.of(TYPES)))


def made(kept: Kept) -> dict[str, Any]:
    """The parts of a value by their hashes. A part that is the same object was not made again."""
    return dict(kept.require_encoded().made)


LONG = "x" * 100_000


HOLDERS: list[Callable[[Any], Any]] = [
    lambda leaf: {"small": 1, "large": leaf},
    lambda leaf: [Message("user", leaf)],
    lambda leaf: (leaf, [leaf]),
    lambda leaf: {1: leaf, 2: deque([leaf])},
]


@pytest.mark.parametrize("holding", HOLDERS)
@pytest.mark.parametrize("leaf", [LONG, LONG.encode(), LONG.encode() + b'"~"'])
def test_a_long_leaf_is_handed_out_as_the_object_that_it_was(
    values: CodedValues, holding: Callable[[Any], Any], leaf: Any
) -> None:
    kept = values.fix(holding(leaf), "it")
    given_ = values.give(kept)
    assert given_ == holding(leaf)
    assert any(leaf is each for each in gc.get_referents(given_, *gc.get_referents(given_), *deep(given_)))


def deep(value: Any) -> list[Any]:
    return [inner for each in gc.get_referents(value) for inner in gc.get_referents(each)]


def test_a_long_text_becomes_a_blob_once_however_often_it_is_kept(values: CodedValues) -> None:
    kept = values.fix({"small": 0, "large": LONG, "list": [LONG]}, "it")
    ((address, blob),) = made(kept).items()
    for number in range(10):
        value = values.give(kept)
        value["small"] = number
        kept = values.fix(value, "it")
        assert made(kept)[address] is blob
    other = values.fix([LONG], "elsewhere")
    assert made(other)[address] is blob
    assert values.give(other) == [LONG]


def test_of_a_list_that_grows_the_end_is_made_anew(values: CodedValues) -> None:
    kept = values.fix([f"{number} " + "x" * 5_000 for number in range(300)], "it")
    for number in range(300, 320):
        before, history = made(kept), values.give(kept)
        history.append(f"{number} " + "x" * 5_000)
        kept = values.fix(history, "it")
        after = made(kept)
        assert [len(blob.data) for address, blob in after.items() if before.get(address) is not blob].count(5_006) == 1
        assert sum(len(after[address].data) for address in after.keys() - before.keys()) < 5_006 + 5_000
    assert values.give(kept) == [f"{number} " + "x" * 5_000 for number in range(320)]


def test_an_appended_kilobyte_costs_three_in_all(values: CodedValues) -> None:
    kept = values.fix([f"{number} " + "x" * 1_000 for number in range(1_000)], "it")
    written = 0
    for number in range(50):
        history = values.give(kept)
        history.append(f"{number} " + "y" * 1_000)
        earlier, kept = kept, values.fix(history, "it")
        new = [*kept.require_encoded().beyond(earlier.require_encoded().has), kept.blob()]
        written += sum(len(blob.data) + 41 * len(blob.refs) for blob in new)
    assert written < 50 * 3_300


def test_what_nobody_keeps_is_forgotten(values: CodedValues) -> None:
    memo = values.codec.memo
    text = "x" * 5_000
    kept = values.fix({"a": text, "list": [["y" * 90] for _ in range(100)]}, "it")
    values.give(kept)
    assert memo.leaf(text) is not None
    del kept
    gc.collect()
    assert memo.leaf(text) is None
    assert not memo._chunks  # pyright: ignore[reportPrivateUsage]


class Text(str):
    __slots__ = ()


def test_a_subclass_of_a_leaf_is_never_taken_for_it(values: CodedValues) -> None:
    kept = values.fix(["x" * 5_000], "it")
    with pytest.raises(EncodeError, match="would be read back as a plain str"):
        values.fix([Text("x" * 5_000)], "it")
    with pytest.raises(EncodeError, match="would be read back as a plain str"):
        values.fix([{"a": Text("x")}], "it")
    assert values.give(kept) == ["x" * 5_000]


def test_a_change_to_what_can_change_is_always_seen(values: CodedValues) -> None:
    data = bytearray(b"x" * 5_000)
    message = Message("user", ["y" * 900] * 30)
    history = [Message("user", "z" * 900 + str(number)) for number in range(50)]
    plain: list[Any] = [{"a": number, "b": ["c"]} for number in range(500)]
    *_, before = [values.fix([data, message, history, plain], "it") for _ in range(3)]
    data[0] = 0
    message.text[7] = "other"
    history[25].role = "other"
    plain[250]["b"].append("other")
    after = values.give(values.fix([data, message, history, plain], "it"))
    assert after == [data, message, history, plain]
    assert values.give(before)[0][0] == ord("x")
    assert values.give(before)[1].text[7] == "y" * 900
    assert values.give(before)[2][25].role == "user"
    assert values.give(before)[3][250]["b"] == ["c"]


ELEMENTS: list[Callable[[int], Any]] = [
    lambda number: Message("user", f"{number} " + "x" * 600),
    lambda number: {"a": [number], "b": {"c": "x" * 600}},
    lambda number: Model(text=f"{number} " + "x" * 600, tags=["a"]),
    lambda number: ([number], Closed([number]), "x" * 100),
    lambda number: {number},
    lambda number: Closed(f"{number} " + "x" * 600),
]


@pytest.mark.parametrize("make", ELEMENTS)
def test_each_who_is_given_a_long_list_has_it_alone(values: CodedValues, make: Callable[[int], Any]) -> None:
    elements = [make(number) for number in range(400)]
    kept = values.fix(elements, "it")
    for _ in range(3):
        given_ = values.give(kept)
        assert given_ == elements
        assert list(map(type, given_)) == list(map(type, elements))
        spoil(given_)
    assert values.give(kept) == elements


def spoil(value: Any) -> None:
    """Change all that can be changed."""
    for inner in deepest(value):
        spoil(inner)
    if isinstance(value, list):
        cast("list[Any]", value).append("spoiled")
    elif isinstance(value, dict):
        value["spoiled"] = True
    elif isinstance(value, set):
        cast("set[Any]", value).add("spoiled")
    elif isinstance(value, Model):
        value.text = "spoiled"
    elif isinstance(value, Message):
        value.role = "spoiled"


def deepest(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(cast("list[Any]", value))
    return (
        list(cast("dict[str, Any]", vars(value)).values())
        if hasattr(value, "__dict__")
        else list(getattr(value, "values", list)())
    )


@settings(deadline=None, max_examples=20)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
        lambda inner: st.one_of(
            st.lists(inner), st.dictionaries(st.text(), inner), st.builds(Message, st.text(), inner), st.tuples(inner)
        ),
    )
)
def test_what_was_given_and_kept_again_has_the_same_bytes(value: Any) -> None:
    values = CodedValues(Codec(Trust.of(TYPES)))
    many = [value] * 50
    kept = values.fix(many, "it")
    for _ in range(3):
        again = values.fix(values.give(kept), "it")
        assert again.require_encoded() == kept.require_encoded()
        kept = again
    assert values.give(kept) == many


def test_a_blob_that_is_damaged_is_noticed_though_its_content_is_remembered(values: CodedValues) -> None:
    kept = values.fix({"a": "x" * 5_000, "list": ["y" * 600 + str(number) for number in range(100)]}, "it")
    encoded = kept.require_encoded()
    blobs = {blob.hash: blob.data for blob in encoded.blobs}
    for address, data in blobs.items():
        stored = {**blobs, address: data + b" "}
        read = Encoded(encoded.text, refs=encoded.refs)
        with pytest.raises(CheckpointDamagedError, match=f"part {address} has other bytes than were written"):
            values.give(Kept(path="it", encoded=read, stored=stored, checkpoint_id="run@1"))


def test_what_was_read_once_is_not_read_again(values: CodedValues) -> None:
    encoded = values.fix(["x" * 600 + str(number) for number in range(100)], "it").require_encoded()
    blobs = {blob.hash: blob.data for blob in encoded.blobs}
    kept = Kept(path="it", encoded=Encoded(encoded.text, refs=encoded.refs), stored=blobs, checkpoint_id="run@1")
    first, second = values.give(kept), values.give(kept)
    assert first == second
    assert first is not second
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_reading_again_and_again_takes_no_more_memory(values: CodedValues) -> None:
    for value in (["x" * 600 + str(number) for number in range(50)], {"a": LONG, "b": LONG.encode()}):
        kept = values.fix({"docs": value}, "it")
        values.give(kept)
        count = len(kept.source().leaves)
        for _ in range(3):
            values.give(kept)
        assert 0 < len(kept.source().leaves) == count


def test_a_long_text_that_is_the_whole_value_is_its_own_blob(values: CodedValues) -> None:
    kept = values.fix(LONG, "it")
    inline = kept.require_encoded().inline()
    assert kept.blob().data == kept.require_encoded().text
    assert inline.refs == (kept.blob().hash,)
    again = values.fix(LONG, "elsewhere")
    assert again.blob() is kept.blob()


def test_the_size_of_a_value_is_that_of_its_text_and_blobs(values: CodedValues) -> None:
    encoded = values.fix({"a": "x" * 5_000, "b": b"y" * 5_000, "c": 1}, "it").require_encoded()
    assert encoded.size == len(encoded.text) + 5_002 + 5_000
    assert values.fix(7, "it").require_encoded().size == 1


def test_without_a_storage_what_can_not_change_is_handed_out_as_it_is() -> None:
    values = LiveValues()
    for value in ("x", (1, ("a", b"b")), 2.5, None):
        assert values.give_state(values.fix(value, "it")) is value
    for mutable in ([1], {"a": 1}, ([1],), Closed([1]), Message("a", "b")):
        given_ = values.give_state(values.fix(mutable, "it"))
        assert given_ == mutable
        assert given_ is not mutable


def changed(elements: list[str], source: random.Random) -> None:
    """Do to a list what programs do."""
    place = source.randrange(len(elements) + 1)
    long = str(source.random()) * source.choice([1, 5, 60])
    match source.randrange(6):
        case 0 | 1:
            elements.append(long)
        case 2:
            elements.insert(place, long)
        case 3:
            elements[place : place + source.randrange(30)] = []
        case 4:
            elements[place : place + 1] = [long]
        case _:
            elements.extend(elements[place : place + 20])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [list, tuple])
def test_however_a_sequence_came_about_its_bytes_are_those_of_its_value(kind: Callable[..., Any], seed: int) -> None:
    source = random.Random(seed)
    values, elements = CodedValues(Codec(Trust.of())), [str(number) * 50 for number in range(60)]
    for _ in range(40):
        changed(elements, source)
        kept = values.fix(kind(elements), "it")
        afresh = Codec(Trust.of()).encode(kind(elements), path="it")
        assert kept.require_encoded() == afresh
        assert made(kept).keys() == afresh.made.keys()
        elements = list(values.give(kept))


def test_blobs_come_after_those_that_they_refer_to_when_they_are_remembered(values: CodedValues) -> None:
    elements = [(f"{number} " + "x" * 600, "y" * 5_000) for number in range(200)]
    kept = [values.fix([*elements, str(number)], "it") for number in range(3)]
    known: set[str] = set()
    for blob in kept[-1].require_encoded().blobs:
        assert known.issuperset(blob.refs)
        known.add(blob.hash)


def meddled(element: Any, source: random.Random) -> None:
    """Change something inside of an element, by as little as possible."""
    match element:
        case Message():
            element.role = source.choice(["user", "other", 1, True, 1.0])
        case Model():
            source.choice([element.tags.clear, lambda: element.tags.append("b"), lambda: None])()
        case _:
            element["a"] = source.choice([1, True, 1.0, "1", [1], [True], {"b": 1}, None])
            element.setdefault("c", []).append(source.choice([0, False]))


RECORDS: list[Callable[[int], Any]] = [
    lambda number: Message("user", f"{number} " + "x" * (number % 7 * 100)),
    lambda number: Model(text=f"{number} " + "x" * (number % 7 * 100), tags=["a"]),
    lambda number: {"a": 1, "text": f"{number} " + "x" * (number % 7 * 100)},
]


@pytest.mark.parametrize("make", RECORDS)
def test_however_records_are_changed_the_bytes_are_those_of_the_value(make: Callable[[int], Any]) -> None:
    source = random.Random(1)
    values, elements = CodedValues(Codec(Trust.of(TYPES))), [make(number) for number in range(120)]
    for turn in range(40):
        if turn % 3 == 0:
            meddled(source.choice(elements), source)
        elements.append(make(turn))
        kept = values.fix(elements, "it")
        afresh = Codec(Trust.of(TYPES)).encode(elements, path="it")
        assert kept.require_encoded() == afresh
        assert made(kept).keys() == afresh.made.keys()
        if turn % 2:
            elements = values.give(kept)
        assert values.give(kept) == elements


def test_a_type_that_was_equal_before_is_never_taken_for_the_same(values: CodedValues) -> None:
    elements: list[Any] = [{"a": 1, "text": f"{number} " + "x" * 90} for number in range(60)]
    kept = [values.fix(elements, "it") for _ in range(3)]
    elements[5]["a"] = True
    elements[6] = Closed("x")
    again = values.give(values.fix(elements, "it"))
    assert again[5]["a"] is True
    assert again[6] == Closed("x")
    elements[7]["a"] = Text("x")
    with pytest.raises(EncodeError, match=r"it\[7\]\['a'\]"):
        values.fix(elements, "it")
    assert values.give(kept[0])[5]["a"] == 1


@pytest.mark.parametrize("hold", HOLDERS)
def test_encoding_a_long_string_again_does_not_copy_it(values: CodedValues, hold: Callable[[Any], Any]) -> None:
    text = "x" * 4_000_000
    first = values.fix(hold(text), "state")
    tracemalloc.start()
    try:
        again = values.fix(hold(text), "state")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made(again) == made(first)
    assert peak < len(text) // 10
