"""The examples of the format's page are what the codec writes."""

from __future__ import annotations

import json
import re
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, NamedTuple, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel

from perdure.codec import Codec, Trust, document, register_type
from perdure.log import Log

PAGE = Path(__file__).parents[2] / "docs" / "checkpoint-format.md"


@dataclass
class Point:
    x: int
    y: int


class Pair(NamedTuple):
    left: str
    right: str


class Colour(Enum):
    RED = 1


class Access(Flag):
    READ = 1
    WRITE = 2


class User(BaseModel):
    name: str
    age: int | None = None


class Money:
    def __init__(self, amount: int, currency: str) -> None:
        self.amount = amount
        self.currency = currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.currency)


register_type(
    Money,
    name="money of the page",
    encode=lambda money: (money.amount, money.currency),
    decode=lambda pair: Money(*pair),
)

SHOP = (Point, Pair, Colour, Access, User)
NAMES: dict[str, Any] = {
    **{cls.__name__: cls for cls in (*SHOP, Money)},
    **{cls.__name__: cls for cls in (Counter, OrderedDict, defaultdict, deque, Decimal, Fraction, UUID, ZoneInfo)},
    **{cls.__name__: cls for cls in (date, datetime, time, timedelta, timezone)},
    **{cls.__name__: cls for cls in (Path, PurePosixPath, PureWindowsPath)},
    "UTC": UTC,
    "List": typing.List,  # noqa: UP006  the page shows it
    "Log": Log,
    "Annotated": Annotated,
    "Literal": Literal,
    "Optional": Optional,
}


def examples() -> list[tuple[str, str]]:
    """Every line of a Python block on the page: an expression, and in its comment the text."""
    values = PAGE.read_text("utf-8").partition("## Values")[2]
    blocks = re.findall(r"```python\n(.*?)```", values, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [(source.strip(), text) for source, _, text in (line.partition("  # ") for line in lines)]


def stored(text: str) -> str:
    return text.replace('"shop:', f'"{__name__}:').replace('"money"', '"money of the page"')


@pytest.mark.parametrize(("source", "text"), examples())
def test_an_example_of_the_page_is_what_the_codec_writes_and_reads(source: str, text: str) -> None:
    value = eval(source, dict(NAMES))
    codec = Codec(Trust.of(SHOP))
    encoded = codec.encode(value, path="it")
    assert encoded.text.decode() == stored(text)
    assert not encoded.blobs
    copy = codec.decode(encoded.text, {}, path="it")
    assert repr(copy) == repr(value) or copy == value


def test_the_page_has_an_example_of_every_tag() -> None:
    values = PAGE.read_text("utf-8").partition("## Checkpoints")[0]
    tags = set(re.findall(r'"~":"(\w+)"', values))
    assert tags == set(Codec(Trust.of()).tags) | {"part", "object", "index"}


UNORDERED: list[tuple[Any, Any]] = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ([{"a": {"x": 1, "y": 2}}], [{"a": {"y": 2, "x": 1}}]),
    ({1: "a", (2, 3): "b"}, {(2, 3): "b", 1: "a"}),
    ({str(n): "x" * 50 for n in range(2000)}, {str(n): "x" * 50 for n in reversed(range(2000))}),
    ({"a": {"x": "x" * 9000, "y": 1}, "b": "y" * 9000}, {"b": "y" * 9000, "a": {"y": 1, "x": "x" * 9000}}),
]


@pytest.mark.parametrize(("one", "other"), UNORDERED)
def test_equal_dicts_have_the_same_bytes_if_mappings_are_sorted(one: Any, other: Any) -> None:
    assert one == other
    codec = Codec(Trust.of())
    assert codec.encode(one, path="x").text != codec.encode(other, path="x").text
    first, second = (codec.encode(value, path="x", is_canonical=True) for value in (one, other))
    assert first.text == second.text
    assert codec.decode(first.text, {blob.hash: blob.data for blob in first.blobs}, path="x") == one


def test_the_order_of_an_ordered_dict_is_kept_if_mappings_are_sorted() -> None:
    value = OrderedDict[str, int](b=1, a=2)
    codec = Codec(Trust.of())
    assert codec.encode(value, path="x", is_canonical=True) == codec.encode(value, path="x")


@pytest.mark.parametrize("name", ["\0", "\0\0", 'a"\0"b', "plain"])
def test_document_keeps_names_that_look_like_the_mark_of_an_inserted_value(name: str) -> None:
    inserted = Codec(Trust.of()).encode({"value": 1}, path="it")
    tree = {name: [name, inserted, {"inner": inserted}, name]}
    found = json.loads(document(tree).text)
    assert found == {name: [name, {"value": 1}, {"inner": {"value": 1}}, name]}
