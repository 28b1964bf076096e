"""Types of modules that are loaded when first met: a new process reads, writes and trusts them as any other."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATE = ("decimal", "fractions", "uuid", "zoneinfo")

VALUES = [
    ("decimal", "Decimal('1.50')", '{"~":"decimal","value":"1.50"}'),
    ("fractions", "Fraction(1, 3)", '{"~":"fraction","value":[1,3]}'),
    ("uuid", "UUID(int=7)", '{"~":"uuid","value":"00000000-0000-0000-0000-000000000007"}'),
    ("zoneinfo", "ZoneInfo('UTC')", '{"~":"zone","key":"UTC"}'),
]

BEGINNING = f"""
import sys
from perdure.codec.codec import Codec
from perdure.codec.trust import Trust
assert not set({LATE!r}) & set(sys.modules)
codec = Codec(Trust.of())
"""


def run(program: str) -> str:
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", BEGINNING + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("module", "value", "text"), VALUES)
def test_the_first_of_its_type_is_read(module: str, value: str, text: str) -> None:
    shown = run(f"""
value = codec.decode({text.encode()!r}, {{}}, path="it")

import {module}
print(type(value) is {module}.{value.partition("(")[0]}, value == {module}.{value})
""")
    assert shown == "True True"


@pytest.mark.parametrize(("module", "value", "text"), VALUES)
def test_the_first_of_its_type_is_written(module: str, value: str, text: str) -> None:
    shown = run(f"""
import {module}
encoded = codec.encode({module}.{value}, path="it")
print(encoded.text.decode(), encoded.immutable)
""")
    assert shown == f"{text} True"


@pytest.mark.parametrize(("module", "value", "_"), VALUES)
def test_the_first_of_its_type_that_is_named_is_trusted(module: str, value: str, _: str) -> None:
    name = f"{module}:{value.partition('(')[0]}"
    shown = run(f"""
found = Trust.of().lookup({name!r})
print(found.__module__, found.__name__, Trust.of().trusts(found))
""")
    assert shown == f"{name.replace(':', ' ')} True"


def test_once_met_they_are_known_to_hold_nothing_that_could_change() -> None:
    shown = run("""
from perdure.codec.copy import is_immutable, spare
codec.decode(b'{"~":"uuid","value":"00000000-0000-0000-0000-000000000007"}', {}, path="it")
from dataclasses import dataclass
from uuid import UUID

@dataclass(frozen=True)
class Ticket:
    id: UUID

print(is_immutable((UUID(int=7),)), spare(Ticket(UUID(int=7))))
""")
    assert shown == "True Ticket(id=UUID('00000000-0000-0000-0000-000000000007'))"


def test_a_class_that_says_that_it_is_of_such_a_module_is_refused_as_any_other() -> None:
    shown = run("""
from perdure.errors import EncodeError
Decimal = type("Decimal", (), {"__module__": "decimal"})
try:
    codec.encode(Decimal(), path="it")
except EncodeError as error:
    print("refused")
""")
    assert shown == "refused"


def test_their_names_are_taken() -> None:
    shown = run("""
from dataclasses import dataclass
from perdure import register_type

@dataclass
class Price:
    cents: int

try:
    register_type(Price, name="decimal:Decimal")
except ValueError as error:
    print(error)
""")
    assert "is taken by a built-in type" in shown
