"""Write and read the values of Python's own types: numbers, text, bytes, times, paths, and containers of values."""

from __future__ import annotations

import base64
import math
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perdure.codec import errors
from perdure.codec.encoded import encoder, reference, require, to_bytes
from perdure.codec.reader import Node, Read, Reader, Tag
from perdure.codec.writer import LEAF_LENGTH_MIN, ElementTexts, Leaf, quote, tagged_sequence, type_of
from perdure.records import Blob

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from perdure.codec.writer import Memo, ValueWriter, Write

RAW_LENGTH_MAX = 1024
"""Longer bytes become a blob of their own."""

_BYTES_HEAD = '{"~":"bytes"'

# Python converts integers of at most 4300 digits to and from decimal; 2**14000 has 4215.
_DECIMAL_BITS_MAX = 14000

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _write_int(_: ValueWriter, value: int) -> str:
    return int.__repr__(value) if value.bit_length() <= _DECIMAL_BITS_MAX else f'{{"~":"int","value":"{value:#x}"}}'


def _write_float(_: ValueWriter, value: float) -> str:
    return float.__repr__(value) if math.isfinite(value) else f'{{"~":"float","value":"{value!r}"}}'


def _write_str(writer: ValueWriter, value: str) -> str:
    if len(value) < LEAF_LENGTH_MIN or writer.is_canonical:
        return quote(value)
    return writer.leaf(writer.codec.memo.text_leaf(value))


def bytes_leaf(memo: Memo, value: bytes) -> Leaf:
    """Return long bytes as a blob, made once per object while the memo has it."""
    leaf = memo.leaf(value)
    if leaf is not None:
        return leaf
    if _can_be_raw(value):
        blob = Blob.of(value, kind="raw")
        return memo.add_leaf(Leaf(value, f'{_BYTES_HEAD},"part":"{blob.hash}"}}', blob))
    blob = Blob.of(to_bytes(_as_base64(value, _BYTES_HEAD)))
    return memo.add_leaf(Leaf(value, reference(blob.hash), blob))


def _can_be_raw(data: bytes) -> bool:
    # A raw blob refers to nothing, so bytes that could be the text of a blob with references must not share its hash.
    return len(data) > RAW_LENGTH_MAX and b'"~"' not in data


def _as_base64(data: bytes, head: str) -> str:
    return f'{head},"base64":"{base64.b64encode(data).decode("ascii")}"}}'


def write_bytes(writer: ValueWriter, data: bytes, head: str) -> str:
    """Write bytes into an object that starts with `head`: inline if they are short, else as a blob."""
    if not _can_be_raw(data):
        return _as_base64(data, head)
    hash_ = writer.blob(data, kind="raw")
    writer.refs.append(hash_)
    return f'{head},"part":"{hash_}"}}'


def read_bytes(reader: Reader, node: Node) -> bytes:
    """Read bytes written by `write_bytes`."""
    if "part" in node:
        return reader.raw(node["part"])
    return base64.b64decode(require(node["base64"], str, "base64"), validate=True)


def _write_bytes(writer: ValueWriter, value: bytes) -> str:
    if len(value) <= RAW_LENGTH_MAX:
        return _as_base64(value, _BYTES_HEAD)
    return writer.leaf(bytes_leaf(writer.codec.memo, value))


def _write_bytearray(writer: ValueWriter, value: bytearray) -> str:
    writer.immutable = False
    return write_bytes(writer, bytes(value), '{"~":"bytearray"')


def _write_moment(writer: ValueWriter, value: datetime | time) -> str:
    tag, plain = type(value).__name__, value.replace(tzinfo=None, fold=0).isoformat()
    fold = ',"fold":1' if value.fold else ""
    zone = "" if value.tzinfo is None else f',"zone":{writer.child(value.tzinfo, errors.attribute_step, "tzinfo")}'
    return f'{{"~":"{tag}","value":"{plain}"{fold}{zone}}}'


def _read_moment(cls: type[datetime | time]) -> Read:
    def read(_: Reader, node: Node) -> datetime | time:
        zone = node.get("zone")
        if zone is not None and not isinstance(zone, tzinfo):
            raise TypeError(f"{zone!r} is not a time zone")
        return cls.fromisoformat(node["value"]).replace(tzinfo=zone, fold=node.get("fold", 0))

    return read


def write_fixed_offset(_: ValueWriter, value: Any) -> str:
    """Write the offset of a zone. One that pydantic made is read back as a `timezone`."""
    # Only these arguments tell a given name from a derived one.
    offset, *name = value.__getinitargs__() if type_of(value) is timezone else (value.utcoffset(None),)
    named = f',"name":{quote(name[0])}' if name else ""
    return f'{{"~":"timezone","offset":{_duration(offset)}{named}}}'


def _read_timezone(_: Reader, node: Node) -> timezone:
    offset = timedelta(*node["offset"])
    return timezone(offset, node["name"]) if "name" in node else timezone(offset)


def _duration(value: timedelta) -> str:
    return f"[{value.days},{value.seconds},{value.microseconds}]"


def _read_timedelta(_: Reader, node: Node) -> timedelta:
    days, seconds, microseconds = node["value"]
    return timedelta(days, seconds, microseconds)


def _write_range(writer: ValueWriter, value: range) -> str:
    bounds = ",".join(map(writer.child, (value.start, value.stop, value.step)))
    return f'{{"~":"range","value":[{bounds}]}}'


_PURE_PATHS = {"posix": pathlib.PurePosixPath, "windows": pathlib.PureWindowsPath}


def _write_path(_: ValueWriter, value: pathlib.PurePath) -> str:
    pure = next((f',"pure":"{name}"' for name, cls in _PURE_PATHS.items() if type(value) is cls), "")
    return f'{{"~":"path","value":{quote(str(value))}{pure}}}'


def _read_path(_: Reader, node: Node) -> pathlib.PurePath:
    cls = _PURE_PATHS[node["pure"]] if "pure" in node else pathlib.Path
    return cls(node["value"])


def _write_zone_info(_: ValueWriter, value: ZoneInfo) -> str:
    if value.key is None:  # pyright: ignore[reportUnnecessaryComparison]  ZoneInfo.from_file gives None
        raise errors.Refusal("it is a time zone without a key", "create it with ZoneInfo(key)")
    return f'{{"~":"zone","key":{quote(value.key)}}}'


def _read_zone_info(_: Reader, node: Node) -> ZoneInfo:
    try:
        return ZoneInfo(node["key"])
    except ZoneInfoNotFoundError as error:
        raise errors.Misfit(
            "zoneinfo:ZoneInfo", f"time zone {node['key']!r} is not installed here (see tzdata)"
        ) from error


def _write_text(tag: str) -> Write:
    """Return the writer of a type that is stored as its text."""
    return lambda _, value: f'{{"~":"{tag}","value":"{value}"}}'


def _read_text(make: Callable[[str], Any]) -> Read:
    return lambda _, node: make(require(node["value"], str, "value"))


_SETS = frozenset({set, frozenset})

_EQUAL_HASHES_MAX = 1000
"""Python compares all elements of one hash with each other: a set of 30,000 takes seconds."""


def _has_many_equal_hashes(keys: Collection[Any]) -> bool:
    return len(keys) > _EQUAL_HASHES_MAX and max(Counter(map(hash, keys)).values()) > _EQUAL_HASHES_MAX


def _require_hashes(keys: Collection[Any]) -> None:
    if _has_many_equal_hashes(keys):
        raise errors.Refusal(
            f"more than {_EQUAL_HASHES_MAX} of its elements or keys have the same hash, so reading it would take long",
            "keep them in a list, or give their class a better __hash__",
        )


def _write_sequence(writer: ValueWriter, value: Any) -> str:
    cls, refs, child = type_of(value), writer.refs, writer.child
    step = errors.element_step if cls in _SETS else errors.index_step
    if cls in _SETS:
        _require_hashes(value)
    was_immutable, writer.immutable = writer.immutable, True
    writer.enter(value)
    can_remember = cls in (list, tuple) and not writer.is_at_cut and not writer.is_canonical
    items = ElementTexts(len(refs), known=writer.known(value) if can_remember else ())
    count = sum([len(chunk.elements) for chunk, _ in items.known])
    rest = value[count:] if count else value
    for element in rest:
        items.texts.append(child(element, step, count + len(items.texts)))
        items.ends.append(len(refs))
    writer.leave(value)
    items.elements, items.is_shared = rest if can_remember else None, writer.immutable
    is_immutable = cls in (tuple, frozenset) and writer.immutable and all(chunk.is_shared for chunk, _ in items.known)
    writer.immutable = was_immutable and is_immutable
    if cls is list and not items.known:
        text = ",".join(items.texts)
        if writer.is_short(text):
            return f"[{text}]"
    bound = f',"maxlen":{value.maxlen}' if cls is deque and value.maxlen is not None else ""
    return tagged_sequence(
        writer, f'{{"~":"{cls.__name__}"{bound}', _sorted_texts(writer, items) if cls in _SETS else items
    )


def _sorted_texts(writer: ValueWriter, items: ElementTexts) -> ElementTexts:
    """Sort the elements by their texts: the order of a set differs between processes."""
    refs = list(writer.refs)
    del writer.refs[items.start :]
    ordered = ElementTexts(items.start)
    for index in sorted(range(len(items.texts)), key=items.texts.__getitem__):
        begin, end = items.bounds(index, index + 1)
        writer.refs.extend(refs[begin:end])
        ordered.ends.append(len(writer.refs))
        ordered.texts.append(items.texts[index])
    return ordered


_STRINGS = frozenset({str})
_JSON_ATOMS = frozenset({str, int, float, bool, NoneType})
_JSON_LEVELS_MAX = 3

# A text of this length holds no string that would become a blob.
_JSON_LENGTH_MAX = 500
_JSON_COUNT_MAX = _JSON_LENGTH_MAX // 2

_encode_json = encoder(allow_nan=False)


def _json_text(value: dict[Any, Any]) -> str | None:
    """Return the text of a short dict that is plain JSON; None if it needs the general way.

    Large states are mostly lists of such dicts. A superstep that sets 10 MB of them takes half the time this way.
    """
    try:
        text = _encode_json(value) if _is_json(value, _JSON_LEVELS_MAX) else ""
    except ValueError:  # not a finite number
        return None
    return text if 0 < len(text) <= _JSON_LENGTH_MAX and '"~"' not in text else None


def _is_json(value: Any, levels: int) -> bool:
    if len(value) > _JSON_COUNT_MAX:
        return False
    # Exactly these types: the encoder would write a subclass as its base.
    if type_of(value) is dict:
        if not _STRINGS.issuperset(map(type, value)):
            return False
        value = value.values()
    for inner in value:
        cls = type_of(inner)
        if cls is str:
            # A long string is a blob of its own. Encoding it here would cost its length every time.
            if len(inner) >= LEAF_LENGTH_MIN:
                return False
        elif cls not in _JSON_ATOMS and not (levels and cls in (dict, list) and _is_json(inner, levels - 1)):
            return False
    return True


def _write_mapping(writer: ValueWriter, value: Any) -> str:
    writer.immutable = False
    cls, refs, child = type_of(value), writer.refs, writer.child
    if cls is dict and not writer.is_canonical and not writer.is_at_cut:
        text = _json_text(value)
        if text is not None:
            return text
    # A dict becomes a JSON object if all its keys are strings and it does not look tagged.
    is_object = cls is dict and "~" not in value and _STRINGS.issuperset(map(type, value))
    if not is_object:
        _require_hashes(value)
    head = f'{{"~":"{cls.__name__}"'
    if cls is defaultdict and value.default_factory is not None:
        if not isinstance(value.default_factory, type):
            why = "it is a defaultdict whose default_factory is not a class"
            raise errors.Refusal(why, "use a class such as list or int, or a plain dict")
        head += f',"factory":{writer.child(value.default_factory, errors.attribute_step, "default_factory")}'
    items = ElementTexts(len(refs))
    writer.enter(value)
    for key, element in value.items():
        if is_object:
            text = f"{quote(key)}:{child(element, errors.key_step, key)}"
        else:
            key_text = child(key, errors.keys_step, len(items.texts))
            text = f"[{key_text},{child(element, errors.key_step, key)}]"
        items.ends.append(len(refs))
        items.texts.append(text)
    writer.leave(value)
    # The order of an OrderedDict is part of its value.
    if writer.is_canonical and cls is not OrderedDict:
        items = _sorted_texts(writer, items)
    if not is_object:
        return tagged_sequence(writer, head, items)
    text = ",".join(items.texts)
    return f"{{{text}}}" if writer.is_short(text) else f'{{"~":"object","chunks":[{writer.chunks(items, "{}")}]}}'


def _read_pair(make: Callable[[Any, Any], Any], expected: type) -> Read:
    """Return the reader of a type that is stored as two values."""

    def read(_: Reader, node: Node) -> Any:
        first, second = node["value"]
        return make(require(first, expected, "value"), require(second, expected, "value"))

    return read


def _items(node: Node) -> list[Any]:
    return require(node.get("items"), list, "items")


def _read_items(make: Callable[[Any], Any], content: Callable[[Node], Any] = _items) -> Read:
    """Return the reader of a collection."""
    return lambda _, node: _all_kept(make(content(node)), _items(node))


def _read_defaultdict(_: Reader, node: Node) -> defaultdict[Any, Any]:
    factory = node.get("factory")
    if factory is not None and not isinstance(factory, type):
        raise TypeError(f"{factory!r} is not a class")
    return _all_kept(defaultdict(factory, _pairs(node)), _items(node))


def _pairs(node: Node) -> dict[Any, Any]:
    pairs = [require(pair, list, "items") for pair in _items(node)]
    _spread([key for key, _ in pairs])
    return dict(pairs)


def _spread(keys: list[Any]) -> list[Any]:
    if _has_many_equal_hashes(keys):
        raise errors.DamagedPartError(f"more than {_EQUAL_HASHES_MAX} elements or keys have the same hash")
    return keys


def _all_kept(collection: Any, elements: Collection[Any]) -> Any:
    if len(collection) != len(elements):
        raise errors.DamagedPartError("an element is duplicated, or there are too many")
    return collection


BUILTIN_KINDS: Mapping[type, Write] = {
    NoneType: lambda _, __: "null",
    bool: lambda _, value: "true" if value else "false",
    int: _write_int,
    float: _write_float,
    complex: lambda _, value: f'{{"~":"complex","value":["{value.real!r}","{value.imag!r}"]}}',
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytearray,
    **dict.fromkeys((datetime, time), _write_moment),
    date: _write_text("date"),
    timedelta: lambda _, value: f'{{"~":"timedelta","value":{_duration(value)}}}',
    timezone: write_fixed_offset,
    range: _write_range,
    **dict.fromkeys((pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())), _write_path),
    EllipsisType: lambda _, __: '{"~":"ellipsis"}',
    ZoneInfo: _write_zone_info,
    UUID: _write_text("uuid"),
    Decimal: _write_text("decimal"),
    Fraction: lambda writer, value: (
        f'{{"~":"fraction","value":[{writer.child(value.numerator)},{writer.child(value.denominator)}]}}'
    ),
    **dict.fromkeys((list, tuple, deque, set, frozenset), _write_sequence),
    **dict.fromkeys((dict, OrderedDict, Counter, defaultdict), _write_mapping),
}

BUILTIN_TAGS: Mapping[str, Tag] = {
    "int": Tag.of(_read_text(lambda text: int(text, 16)), "value"),
    "float": Tag.of(_read_text(_NON_FINITE.__getitem__), "value"),
    "complex": Tag.of(_read_pair(lambda real, imaginary: complex(float(real), float(imaginary)), str), "value"),
    "bytes": Tag.of(read_bytes, "base64", "part"),
    "bytearray": Tag.of(lambda reader, node: bytearray(read_bytes(reader, node)), "base64", "part"),
    "datetime": Tag.of(_read_moment(datetime), "value", "fold", "zone"),
    "date": Tag.of(_read_text(date.fromisoformat), "value"),
    "time": Tag.of(_read_moment(time), "value", "fold", "zone"),
    "timedelta": Tag.of(_read_timedelta, "value"),
    "timezone": Tag.of(_read_timezone, "offset", "name"),
    "zone": Tag.of(_read_zone_info, "key"),
    "uuid": Tag.of(_read_text(UUID), "value"),
    "decimal": Tag.of(_read_text(Decimal), "value"),
    "fraction": Tag.of(_read_pair(Fraction, int), "value"),
    "range": Tag.of(lambda _, node: range(*node["value"]), "value"),
    "path": Tag.of(_read_path, "value", "pure"),
    "ellipsis": Tag.of(lambda _, __: ...),
    **{cls.__name__: Tag.of(_read_items(cls), "items") for cls in (list, tuple)},
    "deque": Tag.of(
        lambda _, node: _all_kept(deque(_items(node), node.get("maxlen")), _items(node)), "items", "maxlen"
    ),
    **{cls.__name__: Tag.of(_read_items(cls, lambda node: _spread(_items(node))), "items") for cls in (set, frozenset)},
    **{cls.__name__: Tag.of(_read_items(cls, _pairs), "items") for cls in (dict, OrderedDict, Counter)},
    "defaultdict": Tag.of(_read_defaultdict, "items", "factory"),
}
