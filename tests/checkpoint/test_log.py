"""`Log` as programs see it: a sequence that only grows."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, ValidationError

from perdure import Log
from perdure.codec import Codec, CodedValues, Trust

ELEMENTS = st.one_of(st.integers(), st.text(max_size=40), st.lists(st.integers(), max_size=3))
SLICES = st.slices(40)


def sealed(elements: list[Any]) -> Log[Any]:
    """A log that was kept once, and is still in the hands of the program."""
    log = Log(elements)
    CodedValues(Codec(Trust.of())).fix(log, "it")
    return log


def restored(elements: list[Any]) -> Log[Any]:
    """A log that was read from what is stored."""
    codec = Codec(Trust.of())
    encoded = codec.encode(Log(elements), path="it")
    return codec.decode(encoded.text, {blob.hash: blob.data for blob in encoded.blobs}, path="it")


MAKERS = [Log, sealed, restored]


@pytest.mark.parametrize("make", MAKERS)
@settings(deadline=None, max_examples=40)
@given(elements=st.lists(ELEMENTS, max_size=40), blob=SLICES)
def test_it_reads_like_the_list_of_its_elements(make: Any, elements: list[Any], blob: slice) -> None:
    log = make(elements * 10)
    expected = elements * 10
    assert len(log) == len(expected)
    assert list(log) == expected
    assert list(reversed(log)) == expected[::-1]
    assert log[blob] == expected[blob]
    assert [log[index] for index in range(-len(expected), len(expected))] == expected * 2
    assert log == Log(expected)
    assert log != Log([*expected, None])


@pytest.mark.parametrize("make", MAKERS)
def test_it_grows_at_its_end_alone(make: Any) -> None:
    log = make(list(range(2_000)))
    log.append("a")
    log.extend(["b", "c"])
    log += ["d"]
    assert log[1_998:] == [1_998, 1_999, "a", "b", "c", "d"]
    for forbidden in ("__setitem__", "__delitem__", "insert", "pop", "remove", "clear", "sort", "reverse"):
        assert not hasattr(log, forbidden)


@pytest.mark.parametrize("make", MAKERS)
def test_a_place_outside_of_it_is_an_index_error(make: Any) -> None:
    log = make(list(range(2_000)))
    for index in (2_000, -2_001):
        with pytest.raises(IndexError, match="it has 2000 elements"):
            log[index]
    assert log[2_000:] == []


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_added_to_a_copy_is_not_in_the_log(make: Any) -> None:
    log = make([[number] for number in range(600)])
    for other in (log.copy(), copy.copy(log), copy.deepcopy(log)):
        other.append([600])
        assert (len(log), len(other)) == (600, 601)
        assert other[:600] == log[:]


def test_a_copy_has_the_same_elements_and_a_deep_copy_has_others() -> None:
    log = sealed([[number] for number in range(600)])
    assert log.copy()[0] is log[0]
    deep = copy.deepcopy(log)
    deep[0].append("changed")
    assert log[0] == [0]


def test_it_can_be_added_to_itself() -> None:
    log = Log([1, 2])
    log.extend(log)
    log += log
    assert list(log) == [1, 2] * 4


def test_the_program_keeps_the_elements_that_it_has_appended() -> None:
    elements = [[number] for number in range(600)]
    log = Log(elements)
    CodedValues(Codec(Trust.of())).fix(log, "it")
    assert all(mine is its for mine, its in zip(log, elements, strict=True))


def test_an_element_of_a_log_that_was_read_stays_the_same_object() -> None:
    log = restored([[number] for number in range(600)])
    assert log[3] is log[3]
    log[3].append("mine")
    assert next(iter(log[3:4])) == [3, "mine"]


def test_whoever_goes_through_it_while_it_is_kept_misses_nothing() -> None:
    log = Log(list(range(3_000)))
    seen = iter(log)
    first = [next(seen) for _ in range(10)]
    CodedValues(Codec(Trust.of())).fix(log, "it")
    assert [*first, *seen] == list(range(3_000))


def test_it_is_no_list_and_has_no_hash() -> None:
    assert Log([1]) != [1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Log())


def test_its_repr_shows_the_beginning() -> None:
    assert repr(Log(["a"])) == "Log(['a'])"
    assert repr(Log(range(100))) == "Log([0, 1, 2, 3, 4, 5, 6, 7, ... 92 more])"


def test_a_pickle_has_its_elements() -> None:
    assert pickle.loads(pickle.dumps(restored(list(range(999))))) == Log(range(999))


class Model(BaseModel):
    log: Log[int] = Log()


def test_a_field_of_a_model_takes_a_log_as_it_is_or_a_list() -> None:
    log = Log([1])
    assert Model(log=log).log is log
    assert Model.model_validate({"log": [1, 2]}).log == Log([1, 2])
    assert Model.model_validate_json('{"log":[1,2]}').log == Log([1, 2])
    assert Model(log=log).model_dump_json() == '{"log":[1]}'
    with pytest.raises(ValidationError):
        Model.model_validate({"log": ["x"]})
