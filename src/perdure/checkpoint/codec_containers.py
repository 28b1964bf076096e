"""Sequences, sets and mappings: how each is written and read."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.codec_faults import Damage, Refusal
from perdure.checkpoint.codec_paths import attribute_step, element_step, index_step, key_step, keys_step
from perdure.checkpoint.codec_read import Node, Reader, Tag, items, require
from perdure.checkpoint.codec_write import Run, Write, Writer, quote, tagged_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_STRINGS = frozenset({str})


def _write_sequence(writer: Writer, value: Collection[Any]) -> str:
    cls = type(value)
    refs, child = writer.refs, writer.child
    step = element_step if cls in _SETS else index_step
    run = Run(len(refs))
    texts, ends = run.texts, run.ends
    writer.enter(value)
    for element in value:
        texts.append(child(element, step, len(texts)))
        ends.append(len(refs))
    writer.leave(value)
    if cls not in _IMMUTABLE:
        writer.immutable = False
    return _LAYOUTS[cls](writer, value, run)


def _list_text(writer: Writer, _: list[Any], run: Run) -> str:
    chunks = writer.chunks(run)
    return f'{{"~":"list","chunks":[{chunks}]}}' if chunks else f"[{','.join(run.texts)}]"


def _tuple_text(writer: Writer, _: tuple[Any, ...], run: Run) -> str:
    return tagged_sequence(writer, '{"~":"tuple"', run)


def _deque_text(writer: Writer, value: deque[Any], run: Run) -> str:
    bound = "" if value.maxlen is None else f',"maxlen":{value.maxlen}'
    return tagged_sequence(writer, '{"~":"deque"' + bound, run)


def _set_text(writer: Writer, _: set[Any], run: Run) -> str:
    return tagged_sequence(writer, '{"~":"set"', _sorted_run(writer, run))


def _frozenset_text(writer: Writer, _: frozenset[Any], run: Run) -> str:
    return tagged_sequence(writer, '{"~":"frozenset"', _sorted_run(writer, run))


def _sorted_run(writer: Writer, run: Run) -> Run:
    """The elements in the order of their texts: that of the set itself differs from process to process."""
    starts = [run.start, *run.ends]
    refs = list(writer.refs)
    del writer.refs[run.start :]
    ordered = Run(run.start)
    for index in sorted(range(len(run.texts)), key=run.texts.__getitem__):
        writer.refs.extend(refs[starts[index] : starts[index + 1]])
        ordered.texts.append(run.texts[index])
        ordered.ends.append(len(writer.refs))
    return ordered


def _read_list(_: Reader, node: Node) -> list[Any]:
    return items(node)


def _read_tuple(_: Reader, node: Node) -> tuple[Any, ...]:
    return tuple(items(node))


def _read_deque(_: Reader, node: Node) -> deque[Any]:
    return _all_kept(deque(items(node), node.get("maxlen")), items(node))


def _read_set(_: Reader, node: Node) -> set[Any]:
    return _all_kept(set(items(node)), items(node))


def _read_frozenset(_: Reader, node: Node) -> frozenset[Any]:
    return _all_kept(frozenset(items(node)), items(node))


def _write_mapping(writer: Writer, value: dict[Any, Any]) -> str:
    writer.immutable = False
    # Only a dict with nothing but strings for keys can be a JSON object, and only one that does not look tagged.
    is_object = type(value) is dict and "~" not in value and _STRINGS.issuperset(map(type, value))
    head = _MAPPING_HEADS[type(value)](writer, value)
    refs, child = writer.refs, writer.child
    keys: list[str] = []
    run = Run(len(refs))
    writer.enter(value)
    for key, element in value.items():
        keys.append(quote(key) if is_object else child(key, keys_step, len(keys)))
        run.texts.append(child(element, key_step, key))
        run.ends.append(len(refs))
    writer.leave(value)
    entry = "{}:{}" if is_object else "[{},{}]"
    run.texts = [entry.format(key, element) for key, element in zip(keys, run.texts, strict=True)]
    # The order of an OrderedDict is part of its value.
    if writer.sorts_mappings and type(value) is not OrderedDict:
        run = _sorted_run(writer, run)
    if is_object:
        chunks = writer.chunks(run, "{}")
        return f'{{"~":"object","chunks":[{chunks}]}}' if chunks else "{" + ",".join(run.texts) + "}"
    return tagged_sequence(writer, head, run)


def _defaultdict_head(writer: Writer, value: defaultdict[Any, Any]) -> str:
    factory = value.default_factory
    if factory is None:
        return '{"~":"defaultdict"'
    if not isinstance(factory, type):
        raise Refusal(
            "it is a defaultdict whose default_factory is no class", "use a class such as list or int, or a plain dict"
        )
    return f'{{"~":"defaultdict","factory":{writer.child(factory, attribute_step, "default_factory")}'


def _read_dict(_: Reader, node: Node) -> dict[Any, Any]:
    return _all_kept(dict(_pairs(node)), items(node))


def _read_ordered_dict(_: Reader, node: Node) -> OrderedDict[Any, Any]:
    return _all_kept(OrderedDict(_pairs(node)), items(node))


def _read_counter(_: Reader, node: Node) -> Counter[Any]:
    return _all_kept(Counter(dict(_pairs(node))), items(node))


def _read_defaultdict(_: Reader, node: Node) -> defaultdict[Any, Any]:
    factory = node.get("factory")
    if factory is not None and not isinstance(factory, type):
        raise TypeError(f"{factory!r} is no class")
    return _all_kept(defaultdict(factory, _pairs(node)), items(node))


def _pairs(node: Node) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in (require(pair, list, "items") for pair in items(node))]


def _all_kept(collection: Any, elements: Collection[Any]) -> Any:
    if len(collection) != len(elements):
        raise Damage("an element is there twice, or too many are there")
    return collection


_SETS = frozenset({set, frozenset})
_IMMUTABLE = frozenset({tuple, frozenset})

_LAYOUTS: Mapping[type, Callable[[Writer, Any, Run], str]] = {
    list: _list_text,
    tuple: _tuple_text,
    deque: _deque_text,
    set: _set_text,
    frozenset: _frozenset_text,
}

_MAPPING_HEADS: Mapping[type, Callable[[Writer, Any], str]] = {
    dict: lambda _, __: '{"~":"dict"',
    OrderedDict: lambda _, __: '{"~":"OrderedDict"',
    Counter: lambda _, __: '{"~":"Counter"',
    defaultdict: _defaultdict_head,
}

CONTAINER_KINDS: Mapping[type, Write] = {
    **dict.fromkeys(_LAYOUTS, _write_sequence),
    **dict.fromkeys(_MAPPING_HEADS, _write_mapping),
}

CONTAINER_TAGS: Mapping[str, Tag] = {
    "list": Tag.of(_read_list, "items"),
    "tuple": Tag.of(_read_tuple, "items"),
    "deque": Tag.of(_read_deque, "items", "maxlen"),
    "set": Tag.of(_read_set, "items"),
    "frozenset": Tag.of(_read_frozenset, "items"),
    "dict": Tag.of(_read_dict, "items"),
    "OrderedDict": Tag.of(_read_ordered_dict, "items"),
    "Counter": Tag.of(_read_counter, "items"),
    "defaultdict": Tag.of(_read_defaultdict, "items", "factory"),
}
