"""Why a value is refused when it is saved, and what to do about it."""

from __future__ import annotations

import asyncio
import inspect
import io
import types
from typing import TYPE_CHECKING

from perdure.codec.faults import Refusal
from perdure.codec.trust import stored_name
from perdure.codec.trust_reach import is_data_type
from perdure.typenames import type_name

if TYPE_CHECKING:
    from perdure.codec.trust import Trust

_REGISTER = "register its type with perdure.register_type(..., encode=..., decode=...)"

# What a base of the standard types can be turned into without losing what the base holds.
_PLAIN_BASES: tuple[type, ...] = (str, bytes, bool, int, float, list, tuple, dict, set, frozenset)

_ARRAY_LIBRARIES = frozenset({"numpy", "pandas", "torch", "jax", "tensorflow", "polars", "pyarrow"})


def refused(value: object, trust: Trust) -> Refusal:
    """Why a value of a kind that the codec does not know is refused."""
    cls = type(value)
    if is_data_type(cls) and not trust.trusts(cls):
        return untrusted(cls, trust)
    return _by_nature(value) or _by_origin(cls) or _by_base(cls) or _no_data(cls)


def unfit(cls: type, why: str) -> Refusal:
    """A data type whose fields are not all of it."""
    return Refusal(f"instances of {type_name(cls)!r} can't be stored by their fields: {why}", _REGISTER)


def untrusted(cls: type, trust: Trust) -> Refusal:
    """A type that this program could not find again by its name."""
    name = stored_name(cls)
    if trust.lookup(name) is not None:
        return Refusal(
            f"its type is called {name!r}, and so is another class that this workflow trusts",
            "define the class once, or register one of them under another name with perdure.register_type",
        )
    return Refusal(
        f"this workflow does not trust the type {name!r} and could not read it back",
        "use the type in a handler's annotations, register it with perdure.register_type, "
        "or list it in allowed_checkpoint_types",
    )


def not_picklable(cls: type, error: Exception) -> Refusal:
    """A value that even pickle does not take."""
    return Refusal(f"it is a {type_name(cls)!r}, and pickling it raised {error!r}", _REGISTER)


def _by_nature(value: object) -> Refusal | None:
    match value:
        case types.FunctionType() | types.BuiltinFunctionType() | types.MethodType():
            return Refusal(f"it is the function {value.__qualname__!r}", "keep a name and look the function up by it")
        case types.ModuleType():
            return Refusal(f"it is the module {value.__name__!r}", "import it where it is used")
        case types.CoroutineType() | types.GeneratorType() | types.AsyncGeneratorType() | asyncio.Future():
            return Refusal("it is work in progress", "await it, or collect what it yields, and keep the result")
        case io.IOBase():
            return Refusal("it is an open file", "keep its path and open it where it is used")
        case BaseException():
            return Refusal(f"it is an exception, {type_name(type(value))!r}", f"keep its message, or {_REGISTER}")
        case _ if inspect.isawaitable(value):
            return Refusal("it is work in progress", "await it and keep the result")
        case _:
            return None


def _by_origin(cls: type) -> Refusal | None:
    library = cls.__module__.partition(".")[0]
    if library in _ARRAY_LIBRARIES:
        return Refusal(
            f"it is a {type_name(cls)!r} of {library}", f"convert it to plain values (tolist(), item()), or {_REGISTER}"
        )
    if library == "typing":
        return Refusal("it is a type expression of a kind that is not stored", "keep its name instead")
    return None


def _by_base(cls: type) -> Refusal | None:
    base = next((base for base in _PLAIN_BASES if base in cls.__mro__), None)
    if base is None:
        return None
    return Refusal(
        f"it is a {type_name(cls)!r}, and would come back as a plain {base.__name__}",
        f"convert it with {base.__name__}(...), or {_REGISTER}",
    )


def _no_data(cls: type) -> Refusal:
    return Refusal(
        f"it is a {type_name(cls)!r}, which is no data type (dataclass, named tuple, enum or pydantic model)",
        f"make its class a dataclass, or {_REGISTER}",
    )
