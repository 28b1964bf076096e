"""Pickle, for programs that opt in. Reading a pickle can run any code, so the store must be trusted like code."""

from __future__ import annotations

import io
from typing import Any

from perdure.codec.errors import Untrusted, not_picklable
from perdure.codec.leaves import read_bytes, write_bytes
from perdure.codec.memo import never_copy, type_of
from perdure.codec.objects import called
from perdure.codec.reader import Node, Reader, require
from perdure.codec.writer import Writer, quote
from perdure.stored_names import find_pinned
from perdure.typenames import type_name

PICKLE_KEYS = frozenset({"~", "type", "base64", "part"})
"""The keys of a pickled value."""


def write_pickle(writer: Writer, value: object) -> str:
    """Write a value that only pickle can store."""
    import pickle  # noqa: PLC0415  only for programs that opt in

    writer.immutable = False
    cls = type(value)
    never_copy(cls)
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception as error:
        raise not_picklable(cls, error) from error
    return write_bytes(writer, data, f'{{"~":"pickle","type":{quote(type_name(cls))}')


def read_pickle(reader: Reader, node: Node) -> Any:
    """Read a pickled value."""
    data = read_bytes(reader, node)
    value: Any = called(lambda: _load(data), str(node.get("type")), "unpickling it")
    never_copy(type_of(value))
    return value


def _load(data: bytes) -> Any:
    import pickle  # noqa: PLC0415  only for programs that opt in

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            # Classes of perdure may have moved since the pickle was written.
            return find_pinned(f"{module}:{name}") or super().find_class(module, name)

    return Unpickler(io.BytesIO(data)).load()


def refuse_pickle(_: Reader, node: Node) -> Any:
    """Refuse a pickled value, for programs that do not allow pickle."""
    raise Untrusted(f"pickle of {require(node['type'], str, 'type')}")
