"""Write and read values that hold no others: numbers, text, bytes, times, paths."""

from __future__ import annotations

import base64
import math
import pathlib
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perdure.codec.errors import Misfit, Refusal, attribute_step
from perdure.codec.memo import Leaf
from perdure.codec.reader import Node, Reader, Tag, require
from perdure.codec.writer import (
    LEAF_LENGTH_MIN,
    Write,
    Writer,
    blob_reference,
    quote,
    text_leaf,
    to_bytes,
)
from perdure.records import Blob

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.codec.memo import Memo

RAW_LENGTH_MAX = 1024
"""Longer bytes become a blob of their own."""

_BYTES_HEAD = '{"~":"bytes"'

# Python converts integers of at most 4300 digits to and from decimal; 2**14000 has 4215.
_DECIMAL_BITS_MAX = 14000

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _write_none(_: Writer, __: None) -> str:
    return "null"


def _write_bool(_: Writer, value: bool) -> str:  # noqa: FBT001  called with the value alone
    return "true" if value else "false"


def _write_int(_: Writer, value: int) -> str:
    if value.bit_length() > _DECIMAL_BITS_MAX:
        return f'{{"~":"int","value":"{value:#x}"}}'
    return int.__repr__(value)


def _read_int(_: Reader, node: Node) -> int:
    return int(require(node["value"], str, "value"), 16)


def _write_float(_: Writer, value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return f'{{"~":"float","value":"{value!r}"}}'


def _read_float(_: Reader, node: Node) -> float:
    return _NON_FINITE[node["value"]]


def _write_complex(_: Writer, value: complex) -> str:
    return f'{{"~":"complex","value":["{value.real!r}","{value.imag!r}"]}}'


def _read_complex(_: Reader, node: Node) -> complex:
    real, imaginary = node["value"]
    return complex(float(require(real, str, "value")), float(require(imaginary, str, "value")))


def _write_str(writer: Writer, value: str) -> str:
    if len(value) < LEAF_LENGTH_MIN or writer.sorts_mappings:
        return quote(value)
    return writer.leaf(text_leaf(writer.memo, value))


def bytes_leaf(memo: Memo, value: bytes) -> Leaf:
    """Return long bytes as a blob, made once per object while the memo has it."""
    leaf = memo.leaf(value)
    if leaf is not None:
        return leaf
    if _can_be_raw(value):
        blob = Blob.of(value, kind="raw")
        return memo.add_leaf(Leaf(value, f'{_BYTES_HEAD},"part":"{blob.hash}"}}', blob))
    blob = Blob.of(to_bytes(_as_base64(value, _BYTES_HEAD)))
    return memo.add_leaf(Leaf(value, blob_reference(blob.hash), blob))


def _can_be_raw(data: bytes) -> bool:
    # A raw blob refers to nothing, so bytes that could be the text of a blob with references must not share its hash.
    return len(data) > RAW_LENGTH_MAX and b'"~"' not in data


def _as_base64(data: bytes, head: str) -> str:
    return f'{head},"base64":"{base64.b64encode(data).decode("ascii")}"}}'


def write_bytes(writer: Writer, data: bytes, head: str) -> str:
    """Write bytes into an object that starts with `head`: inline if they are short, else as a blob."""
    if _can_be_raw(data):
        hash_ = writer.blob(data, kind="raw")
        writer.refs.append(hash_)
        return f'{head},"part":"{hash_}"}}'
    return _as_base64(data, head)


def read_bytes(reader: Reader, node: Node) -> bytes:
    """Read bytes written by `write_bytes`."""
    if "part" in node:
        return reader.raw(node["part"])
    return base64.b64decode(require(node["base64"], str, "base64"), validate=True)


def _write_bytes(writer: Writer, value: bytes) -> str:
    if len(value) <= RAW_LENGTH_MAX:
        return _as_base64(value, _BYTES_HEAD)
    return writer.leaf(bytes_leaf(writer.memo, value))


def _write_bytearray(writer: Writer, value: bytearray) -> str:
    writer.immutable = False
    return write_bytes(writer, bytes(value), '{"~":"bytearray"')


def _read_bytearray(reader: Reader, node: Node) -> bytearray:
    return bytearray(read_bytes(reader, node))


def _write_datetime(writer: Writer, value: datetime) -> str:
    plain = value.replace(tzinfo=None, fold=0).isoformat()
    return f'{{"~":"datetime","value":"{plain}"{_fold_and_zone(writer, value)}}}'


def _read_datetime(_: Reader, node: Node) -> datetime:
    plain = datetime.fromisoformat(node["value"])
    return plain.replace(tzinfo=_zone(node), fold=node.get("fold", 0))


def _write_time(writer: Writer, value: time) -> str:
    plain = value.replace(tzinfo=None, fold=0).isoformat()
    return f'{{"~":"time","value":"{plain}"{_fold_and_zone(writer, value)}}}'


def _read_time(_: Reader, node: Node) -> time:
    plain = time.fromisoformat(node["value"])
    return plain.replace(tzinfo=_zone(node), fold=node.get("fold", 0))


def _fold_and_zone(writer: Writer, value: datetime | time) -> str:
    text = ',"fold":1' if value.fold else ""
    if value.tzinfo is None:
        return text
    return f'{text},"zone":{writer.child(value.tzinfo, attribute_step, "tzinfo")}'


def _zone(node: Node) -> tzinfo | None:
    zone = node.get("zone")
    if zone is not None and not isinstance(zone, tzinfo):
        raise TypeError(f"{zone!r} is not a time zone")
    return zone


def _write_timezone(_: Writer, value: timezone) -> str:
    offset, *name = _timezone_arguments(value)
    named = f',"name":{quote(name[0])}' if name else ""
    return f'{{"~":"timezone","offset":{_duration(offset)}{named}}}'


def write_fixed_offset(_: Writer, value: tzinfo) -> str:
    """Write the offset of a time that pydantic parsed. It is read back as a `timezone`."""
    offset = value.utcoffset(None)
    assert offset is not None, f"{value!r} has no fixed offset"
    return f'{{"~":"timezone","offset":{_duration(offset)}}}'


def _timezone_arguments(value: Any) -> tuple[timedelta, str] | tuple[timedelta]:
    # Only this tells a given name from a derived one.
    return value.__getinitargs__()


def _read_timezone(_: Reader, node: Node) -> timezone:
    offset = timedelta(*node["offset"])
    return timezone(offset, node["name"]) if "name" in node else timezone(offset)


def _write_date(_: Writer, value: date) -> str:
    return f'{{"~":"date","value":"{value.isoformat()}"}}'


def _read_date(_: Reader, node: Node) -> date:
    return date.fromisoformat(node["value"])


def _write_timedelta(_: Writer, value: timedelta) -> str:
    return f'{{"~":"timedelta","value":{_duration(value)}}}'


def _duration(value: timedelta) -> str:
    return f"[{value.days},{value.seconds},{value.microseconds}]"


def _read_timedelta(_: Reader, node: Node) -> timedelta:
    days, seconds, microseconds = node["value"]
    return timedelta(days, seconds, microseconds)


def _write_range(writer: Writer, value: range) -> str:
    bounds = ",".join(map(writer.child, (value.start, value.stop, value.step)))
    return f'{{"~":"range","value":[{bounds}]}}'


def _read_range(_: Reader, node: Node) -> range:
    start, stop, step = node["value"]
    return range(start, stop, step)


def _write_path(_: Writer, value: pathlib.Path) -> str:
    return f'{{"~":"path","value":{quote(str(value))}}}'


def _read_path(_: Reader, node: Node) -> pathlib.PurePath:
    match node.get("pure"):
        case None:
            return pathlib.Path(node["value"])
        case "posix":
            return pathlib.PurePosixPath(node["value"])
        case "windows":
            return pathlib.PureWindowsPath(node["value"])
        case other:
            raise ValueError(f"unknown kind of path: {other!r}")


def _write_pure_posix_path(_: Writer, value: pathlib.PurePosixPath) -> str:
    return f'{{"~":"path","value":{quote(str(value))},"pure":"posix"}}'


def _write_pure_windows_path(_: Writer, value: pathlib.PureWindowsPath) -> str:
    return f'{{"~":"path","value":{quote(str(value))},"pure":"windows"}}'


def _write_ellipsis(_: Writer, __: EllipsisType) -> str:
    return '{"~":"ellipsis"}'


def _read_ellipsis(_: Reader, __: Node) -> EllipsisType:
    return ...


def _write_zone_info(_: Writer, value: ZoneInfo) -> str:
    if value.key is None:  # pyright: ignore[reportUnnecessaryComparison]  ZoneInfo.from_file gives None
        raise Refusal("it is a time zone without a key", "create it with ZoneInfo(key)")
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


LEAF_KINDS: Mapping[type, Write] = {
    NoneType: _write_none,
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytearray,
    datetime: _write_datetime,
    date: _write_date,
    time: _write_time,
    timedelta: _write_timedelta,
    timezone: _write_timezone,
    range: _write_range,
    pathlib.PurePosixPath: _write_pure_posix_path,
    pathlib.PureWindowsPath: _write_pure_windows_path,
    type(pathlib.Path()): _write_path,
    EllipsisType: _write_ellipsis,
    ZoneInfo: _write_zone_info,
    UUID: _write_uuid,
    Decimal: _write_decimal,
    Fraction: _write_fraction,
}

LEAF_TAGS: Mapping[str, Tag] = {
    "int": Tag.of(_read_int, "value"),
    "float": Tag.of(_read_float, "value"),
    "complex": Tag.of(_read_complex, "value"),
    "bytes": Tag.of(read_bytes, "base64", "part"),
    "bytearray": Tag.of(_read_bytearray, "base64", "part"),
    "datetime": Tag.of(_read_datetime, "value", "fold", "zone"),
    "date": Tag.of(_read_date, "value"),
    "time": Tag.of(_read_time, "value", "fold", "zone"),
    "timedelta": Tag.of(_read_timedelta, "value"),
    "timezone": Tag.of(_read_timezone, "offset", "name"),
    "zone": Tag.of(_read_zone_info, "key"),
    "uuid": Tag.of(_read_uuid, "value"),
    "decimal": Tag.of(_read_decimal, "value"),
    "fraction": Tag.of(_read_fraction, "value"),
    "range": Tag.of(_read_range, "value"),
    "path": Tag.of(_read_path, "value", "pure"),
    "ellipsis": Tag.of(_read_ellipsis),
}
