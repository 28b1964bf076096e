"""The examples of the format's page are what the codec writes."""

from __future__ import annotations

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

from perdure.checkpoint.codec import Codec
from perdure.checkpoint.trust import Trust, register_type

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
    assert not encoded.parts
    copy = codec.decode(encoded.text, {}, path="it")
    assert repr(copy) == repr(value) or copy == value


def test_the_page_has_an_example_of_every_tag() -> None:
    tags = set(re.findall(r'"~":"(\w+)"', PAGE.read_text("utf-8")))
    assert tags == set(Codec(Trust.of())._tags) | {"part", "object", "index"}  # pyright: ignore[reportPrivateUsage]
