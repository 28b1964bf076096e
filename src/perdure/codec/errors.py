"""Errors inside the codec, the path to the value they concern, and the reasons why values are refused.

A `Fault` collects its path while it propagates. The codec converts it into a public error.
"""

from __future__ import annotations

import inspect
import io
import types
from typing import TYPE_CHECKING, Any

from perdure.codec.trust import Trust, is_data_type, stored_name
from perdure.errors import CheckpointDamagedError, IncompatibleTypeError, UntrustedTypeError
from perdure.typenames import type_name

if TYPE_CHECKING:
    from collections.abc import Sequence


_STEPS_AT_EACH_END = 10


class Fault(Exception):
    """An error at one place in a value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []
        """The steps that lead here from the outermost value, in reverse order."""

    def path(self, root: str) -> str:
        """Return the path from the outermost value to this place. The middle of a long path is left out."""
        steps = self.steps[::-1]
        if len(steps) > 2 * _STEPS_AT_EACH_END:
            steps[_STEPS_AT_EACH_END:-_STEPS_AT_EACH_END] = ["…"]
        return root + "".join(steps)


class Refusal(Fault):
    """A value can't be stored."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class DamagedPartError(Fault):
    """Stored text is damaged. Callers that know the checkpoint raise CheckpointDamagedError instead."""


MALFORMED = (DamagedPartError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors of readers of stored data that has another form than what we write."""


class Untrusted(Fault):
    """Stored text names a type that is not trusted."""


class Misfit(Fault):
    """A stored object does not fit the present definition of its class."""

    def __init__(self, type_name: str, reason: str) -> None:
        super().__init__(reason)
        self.type_name = type_name


def explained(fault: Fault | RecursionError, *, path: str, checkpoint_id: str | None) -> Exception:
    """Return the public error for a fault in the value at `path`."""
    if isinstance(fault, RecursionError):
        fault = DamagedPartError("it is nested too deeply to be read")
    path = fault.path(path)
    if isinstance(fault, Untrusted | Misfit):
        error = (
            UntrustedTypeError(type_name=fault.reason, path=path)
            if isinstance(fault, Untrusted)
            else IncompatibleTypeError(type_name=fault.type_name, path=path, reason=fault.reason)
        )
        error.checkpoint_id = checkpoint_id or None
        return error
    reason = f"{path}: {fault.reason}"
    return DamagedPartError(reason) if checkpoint_id is None else CheckpointDamagedError(checkpoint_id, reason)


_SHOWN_KEYS = frozenset({str, int, float, bool, bytes, type(None)})

# Keys of tagged objects that only belong to the format.
_SILENT_KEYS = frozenset({"items", "fields", "value"})

_PAIR_TAGS = frozenset({"dict", "OrderedDict", "Counter", "defaultdict"})

# Functions that format one step of a path. Sets have no positions.
attribute_step = ".{}".format
index_step = "[{}]".format
keys_step = ".keys()[{}]".format
argument_step = ".__args__[{}]".format
element_step = "{{*}}".format
no_step = "".format


def key_step(key: object) -> str:
    """Format a mapping key. Only plain keys are shown, because `repr` of others could run any code."""
    return f"[{key!r}]" if type(key) in _SHOWN_KEYS else f"[<{type(key).__name__}>]"


def spelled(holders: Sequence[Any], places: Sequence[Any]) -> str:
    """Format the path through nested JSON. Each place is a key or an index in the holder at the same position."""
    return "".join([_step(holders, places, depth) for depth in range(len(places))])


def _step(holders: Sequence[Any], places: Sequence[Any], depth: int) -> str:
    holder, place = holders[depth], places[depth]
    if _is_tagged(holder):
        return "" if place in _SILENT_KEYS else attribute_step(place)
    parent, under = (holders[depth - 1], places[depth - 1]) if depth else (None, None)
    if isinstance(holder, dict):
        return attribute_step(place) if _is_tagged(parent) and under == "fields" else key_step(place)
    if _is_pairs(parent, under):
        return ""
    if depth > 1 and _is_pairs(holders[depth - 2], places[depth - 2]):
        return key_step(holder[0]) if place else keys_step(under)
    return index_step(place)


def _is_tagged(holder: object) -> bool:
    return isinstance(holder, dict) and "~" in holder


def _is_pairs(holder: Any, place: object) -> bool:
    return _is_tagged(holder) and holder["~"] in _PAIR_TAGS and place == "items"


_REGISTER = "register its type with perdure.register_type(..., encode=..., decode=...)"

# Standard types that a subclass can be converted to without losing what the base holds.
_PLAIN_BASES: tuple[type, ...] = (str, bytes, bool, int, float, list, tuple, dict, set, frozenset)

_ARRAY_LIBRARIES = frozenset({"numpy", "pandas", "torch", "jax", "tensorflow", "polars", "pyarrow"})


def refused(value: object, trust: Trust) -> Refusal:  # noqa: C901 - one list of reasons
    """Return the reason why a value of an unknown kind is refused."""
    cls = type(value)
    if is_data_type(cls) and not trust.trusts(cls):
        return untrusted(cls, trust)
    name, library = type_name(cls), cls.__module__.partition(".")[0]
    base = next((base for base in _PLAIN_BASES if base in cls.__mro__), None)
    match value:
        case types.FunctionType() | types.BuiltinFunctionType() | types.MethodType():
            return Refusal(f"it is the function {value.__qualname__!r}", "store its name and look the function up")
        case types.ModuleType():
            return Refusal(f"it is the module {value.__name__!r}", "import it where it is used")
        case io.IOBase():
            return Refusal("it is an open file", "store its path and open it where it is used")
        case BaseException():
            return Refusal(f"it is an exception, {name!r}", f"store its message, or {_REGISTER}")
        case types.GeneratorType() | types.AsyncGeneratorType():
            return Refusal("it is unfinished work", "collect what it yields, and store the result")
        case _ if inspect.isawaitable(value):
            return Refusal("it is unfinished work", "await it and store the result")
        case _ if library in _ARRAY_LIBRARIES:
            remedy = f"convert it to plain values (tolist(), item()), or {_REGISTER}"
            return Refusal(f"it is a {name!r} of {library}", remedy)
        case _ if library == "typing":
            return Refusal("it is a kind of type expression that can't be stored", "store its name instead")
        case _ if base is not None:
            return Refusal(
                f"it is a {name!r}, and would be read back as a plain {base.__name__}",
                f"convert it with {base.__name__}(...), or {_REGISTER}",
            )
        case _:
            return Refusal(
                f"it is a {name!r}, which is not a data type (dataclass, named tuple, enum or pydantic model)",
                f"make its class a dataclass, or {_REGISTER}",
            )


def unfit(cls: type, why: str) -> Refusal:
    """Return the refusal of a data type that holds more than its fields, or that can't be pickled."""
    return Refusal(f"instances of {type_name(cls)!r} can't be stored: {why}", _REGISTER)


def untrusted(cls: type, trust: Trust) -> Refusal:
    """Return the refusal of a type that this program could not find again by name."""
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
