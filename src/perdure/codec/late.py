"""Leaves of types that few programs use. Their modules, and this one, are loaded when the first of them is met.

They took a tenth of the time in which perdure was imported.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perdure.codec.copy import ATOMS
from perdure.codec.faults import Misfit, Refusal
from perdure.codec.read import Node, Read, Reader, require
from perdure.codec.write import Write, Writer, quote

if TYPE_CHECKING:
    from collections.abc import Mapping


def _write_zone_info(_: Writer, value: ZoneInfo) -> str:
    if value.key is None:  # pyright: ignore[reportUnnecessaryComparison]  ZoneInfo.from_file gives None
        raise Refusal("it is a time zone without a key", "make it with ZoneInfo(key)")
    return f'{{"~":"zone","key":{quote(value.key)}}}'


def _read_zone_info(_: Reader, node: Node) -> ZoneInfo:
    try:
        return ZoneInfo(node["key"])
    except ZoneInfoNotFoundError as error:
        raise Misfit("zoneinfo:ZoneInfo", f"time zone {node['key']!r} is not installed here (see tzdata)") from error


def _write_uuid(_: Writer, value: UUID) -> str:
    return f'{{"~":"uuid","value":"{value}"}}'


def _read_uuid(_: Reader, node: Node) -> UUID:
    return UUID(node["value"])


def _write_decimal(_: Writer, value: Decimal) -> str:
    return f'{{"~":"decimal","value":"{value}"}}'


def _read_decimal(_: Reader, node: Node) -> Decimal:
    return Decimal(require(node["value"], str, "value"))


def _write_fraction(writer: Writer, value: Fraction) -> str:
    return f'{{"~":"fraction","value":[{writer.child(value.numerator)},{writer.child(value.denominator)}]}}'


def _read_fraction(_: Reader, node: Node) -> Fraction:
    numerator, denominator = node["value"]
    return Fraction(require(numerator, int, "value"), require(denominator, int, "value"))


LATE_KINDS: Mapping[type, Write] = {
    ZoneInfo: _write_zone_info,
    UUID: _write_uuid,
    Decimal: _write_decimal,
    Fraction: _write_fraction,
}

LATE_READS: Mapping[str, Read] = {
    "zone": _read_zone_info,
    "uuid": _read_uuid,
    "decimal": _read_decimal,
    "fraction": _read_fraction,
}

ATOMS.update(LATE_KINDS)
