"""A form asks for every kind of value that a JSON schema of ours describes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Literal

from pydantic import TypeAdapter

from perdure.cli.form import ask_for

if TYPE_CHECKING:
    import pytest


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Inner:
    count: int
    weight: float | None = None


@dataclass
class Everything:
    text: str
    flag: bool
    colour: Colour
    numbers: list[int]
    inner: Inner
    either: int | Inner | str
    at: datetime
    by_name: dict[str, int]
    size: Literal["small", "large"]
    day: date | None
    pair: tuple[int, str]
    more: int = 3


TYPED = (
    *("hello", "y", "2", "y", "1", "y", "x", "2", "n"),  # a colour by number; a number that is none is asked for again
    *("3", "y", "1.5", "2", "7", "n", "tomorrow", "2026-01-02T03:04", "key", "1", ""),
    *("1", "y", "2026-01-01", "1", "s", "n"),
)


def test_every_kind_of_field_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TYPED) + "\n"))
    schema = TypeAdapter(Everything)
    answer = ask_for(schema.json_schema())
    assert schema.validate_python(answer) == Everything(
        text="hello",
        flag=True,
        colour=Colour.BLUE,
        numbers=[1, 2],
        inner=Inner(3, 1.5),
        either=Inner(7),
        at=datetime.fromisoformat("2026-01-02T03:04"),
        by_name={"key": 1},
        size="small",
        day=date(2026, 1, 1),
        pair=(1, "s"),
    )


def test_labels_of_a_hostile_schema_are_escaped_and_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    name = "field\x1b[31m\u202e" + "y" * 1_000
    assert ask_for({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}) == {name: "x"}
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert len(shown) < 200
