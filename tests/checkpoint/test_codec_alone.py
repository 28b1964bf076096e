"""Whoever is given a value has it alone: nothing that others do to theirs is seen in it, nor kept with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pytest

from perdure import Log, register_type
from perdure.codec import Codec, CodedValues, Kept, LiveValues, Trust


@dataclass
class Page:
    url: str
    scratch: dict[str, str] = field(default_factory=dict[str, str])


register_type(Page, encode=lambda page: page.url, decode=Page)


@dataclass
class Currency:
    name: str


CURRENCIES: dict[str, Currency] = {}


def currency(name: str) -> Currency:
    return CURRENCIES.setdefault(name, Currency(name))


register_type(Currency, encode=lambda money: money.name, decode=currency)


class Pair(NamedTuple):
    text: str


class Marked(Pair):
    """It has a `__dict__`."""


@dataclass(frozen=True)
class Text:
    text: str

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()


@dataclass(frozen=True)
class Note:
    text: str


@dataclass
class Sealed:
    left: list[str]
    right: list[str]


LONG = "a word and more " * 10


def values_of(*types: type) -> CodedValues:
    return CodedValues(Codec(Trust.of(types)))


def kept_twice(values: CodedValues, value: Any) -> Kept:
    """Kept as by a run that goes on: what was seen before is remembered."""
    values.give(values.fix(value, "it"))
    return values.fix(value, "it")


def decoded(values: CodedValues, kept: Kept) -> Any:
    """What another life reads."""
    encoded = kept.require_encoded()
    stored = {blob.hash: blob.data for blob in encoded.blobs}
    return values.codec.decode(encoded.text, stored, path="it")


def test_of_a_registered_type_each_gets_what_its_decode_makes() -> None:
    values = values_of(Page)
    mine = kept_twice(values, [Page(f"{number}{LONG}", {"secret": "mine"}) for number in range(100)])
    theirs = kept_twice(values, [Page(f"{number}{LONG}", {"secret": "theirs"}) for number in range(100)])
    for kept in (mine, theirs, mine):
        assert [page.scratch for page in values.give(kept)] == [{}] * 100


def test_what_a_decode_has_one_of_stays_one() -> None:
    values = values_of(Currency)
    kept = kept_twice(values, [currency(f"{number % 7}{LONG}") for number in range(100)])
    for _ in range(3):
        assert all(money is currency(money.name) for money in values.give(kept))


def test_a_key_of_a_registered_type_is_decoded_each_time() -> None:
    @dataclass(frozen=True)
    class Key:
        name: str
        seen: list[str] = field(default_factory=list[str], compare=False)

    register_type(Key, encode=lambda key: key.name, decode=Key)
    values = values_of(Key)
    kept = kept_twice(values, [{Key(f"{number}{LONG}", ["here"]): 1} for number in range(100)])
    for _ in range(2):
        given = values.give(kept)
        assert [key.seen for each in given for key in each] == [[]] * 100


def test_what_is_pickled_is_unpickled_each_time() -> None:
    values = CodedValues(Codec(Trust.of(), allow_pickle=True))
    one = [LONG]
    kept = kept_twice(values, [Sealed(one, one) for _ in range(100)])
    for _ in range(3):
        assert all(sealed.left is sealed.right for sealed in values.give(kept))


@pytest.mark.parametrize("holder", [list, tuple, Log], ids=["list", "tuple", "log"])
def test_an_attribute_that_is_set_on_a_named_tuple_is_kept_and_seen_by_nobody_else(holder: Any) -> None:
    values = values_of(Marked)
    elements = [Marked(f"{number}{LONG}") for number in range(100)]
    before = kept_twice(values, holder(elements))
    values.give(before)[0].mark = "mine"
    assert vars(values.give(before)[0]) == {}
    for element in elements:
        element.mark = "paid"  # pyright: ignore[reportAttributeAccessIssue]
    assert vars(decoded(values, kept_twice(values, holder(elements)))[99]) == {"mark": "paid"}
    assert vars(values.give(before)[0]) == {}


def first_of(texts: list[Any]) -> Any:
    return texts[0]


@pytest.mark.parametrize("holder", [list, tuple, Log, first_of], ids=["list", "tuple", "log", "alone"])
def test_what_a_frozen_dataclass_has_worked_out_is_its_owner_s_alone(holder: Any) -> None:
    values = values_of(Text)
    kept = kept_twice(values, holder([Text(f"{number} {LONG}") for number in range(100)]))
    mine, theirs = values.give(kept), values.give(kept)
    mine, theirs = (each if isinstance(each, Text) else each[0] for each in (mine, theirs))
    mine.words.append("mine")
    assert theirs.words[-1] == "more"


def test_without_a_storage_what_is_worked_out_is_its_owner_s_too() -> None:
    values = LiveValues()
    kept = values.fix(Text(LONG), "it")
    values.give_state(kept).words.append("mine")
    assert values.give_state(kept).words[-1] == "more"
    marked = values.fix(Marked(LONG), "it")
    values.give_state(marked).mark = "mine"
    assert vars(values.give_state(marked)) == {}


def test_a_small_frozen_dataclass_is_handed_out_as_it_was_kept() -> None:
    values, note = values_of(Note), Note("a")
    kept = values.fix(note, "it")
    vars(note)["later"] = 1
    given = values.give(kept)
    assert (given, vars(given)) == (Note("a"), {"text": "a"})
    vars(given)["mine"] = 1
    assert vars(values.give(kept)) == {"text": "a"}
