"""Write and read sequences, sets and mappings."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

from perdure.codec.errors import Damage, Refusal, attribute_step, element_step, index_step, key_step, keys_step
from perdure.codec.memo import type_of
from perdure.codec.reader import Node, Reader, Tag, items, require
from perdure.codec.writer import Run, Write, Writer, json_text, quote, tagged_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_STRINGS = frozenset({str})


def _write_sequence(writer: Writer, value: Collection[Any]) -> str:
    cls = type(value)
    refs, child = writer.refs, writer.child
    step = element_step if cls in _SETS else index_step
    start = len(refs)
    texts: list[str] = []
    ends: list[int] = []
    was_immutable, writer.immutable = writer.immutable, True
    writer.enter(value)
    is_json = is_roomy = writer.is_roomy
    rest: Any = value
    known = writer.known(rest) if cls in _SLICED else ()
    count = sum([len(chunk.elements) for chunk, _ in known])
    if count:
        rest = rest[count:]
    for element in rest:
        text = None
        if is_json and type_of(element) is dict:
            # Elements of one list are mostly alike, so stop trying at the first that is not plain JSON.
            text = json_text(element)
            writer.immutable, is_json = False, text is not None
        texts.append(child(element, step, count + len(texts)) if text is None else text)
        ends.append(len(refs))
    writer.leave(value)
    run = Run(start, texts, ends)
    run.known, run.is_shared = known, writer.immutable
    run.elements = rest if is_roomy and cls in _SLICED else None
    is_immutable = cls in _IMMUTABLE and writer.immutable and all(chunk.is_shared for chunk, _ in known)
    writer.immutable = was_immutable and is_immutable
    return _LAYOUTS[cls](writer, value, run)


def _list_text(writer: Writer, _: list[Any], run: Run) -> str:
    text = ",".join(run.texts)
    if len(text) <= writer.run_max and not run.known:
        return f"[{text}]"
    return f'{{"~":"list","chunks":[{writer.chunks(run)}]}}'


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
    """Sort the elements by their texts: the order of a set differs between processes."""
    refs = list(writer.refs)
    del writer.refs[run.start :]
    ordered = Run(run.start, [], [])
    for index in sorted(range(len(run.texts)), key=run.texts.__getitem__):
        begin, end = run.bounds(index, index + 1)
        writer.refs.extend(refs[begin:end])
        ordered.ends.append(len(writer.refs))
        ordered.texts.append(run.texts[index])
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
    # A dict becomes a JSON object if all its keys are strings and it does not look tagged.
    if type(value) is dict and "~" not in value and _STRINGS.issuperset(map(type, value)):
        return _object_text(writer, value)
    head = _MAPPING_HEADS[type(value)](writer, value)
    refs, child = writer.refs, writer.child
    run = Run(len(refs), [], [])
    writer.enter(value)
    for key, element in value.items():
        key_text = child(key, keys_step, len(run.texts))
        text = f"[{key_text},{child(element, key_step, key)}]"
        run.ends.append(len(refs))
        run.texts.append(text)
    writer.leave(value)
    # The order of an OrderedDict is part of its value.
    if writer.sorts_mappings and type(value) is not OrderedDict:
        run = _sorted_run(writer, run)
    return tagged_sequence(writer, head, run)


def _object_text(writer: Writer, value: dict[str, Any]) -> str:
    refs, child = writer.refs, writer.child
    start = len(refs)
    texts: list[str] = []
    ends: list[int] = []
    writer.enter(value)
    is_json = writer.is_roomy
    for key, element in value.items():
        text = None
        if is_json and type_of(element) is dict:
            text = json_text(element)
            is_json = text is not None
        texts.append(f"{quote(key)}:{child(element, key_step, key) if text is None else text}")
        ends.append(len(refs))
    writer.leave(value)
    run = Run(start, texts, ends)
    if writer.sorts_mappings:
        run = _sorted_run(writer, run)
    text = ",".join(run.texts)
    if len(text) <= writer.run_max:
        return f"{{{text}}}"
    return f'{{"~":"object","chunks":[{writer.chunks(run, "{}")}]}}'


def _defaultdict_head(writer: Writer, value: defaultdict[Any, Any]) -> str:
    factory = value.default_factory
    if factory is None:
        return '{"~":"defaultdict"'
    if not isinstance(factory, type):
        raise Refusal(
            "it is a defaultdict whose default_factory is not a class",
            "use a class such as list or int, or a plain dict",
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
        raise TypeError(f"{factory!r} is not a class")
    return _all_kept(defaultdict(factory, _pairs(node)), items(node))


def _pairs(node: Node) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in (require(pair, list, "items") for pair in items(node))]


def _all_kept(collection: Any, elements: Collection[Any]) -> Any:
    if len(collection) != len(elements):
        raise Damage("an element is duplicated, or there are too many")
    return collection


_SETS = frozenset({set, frozenset})
_IMMUTABLE = frozenset({tuple, frozenset})
_SLICED = frozenset({list, tuple})

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
