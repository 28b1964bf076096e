"""How a place in a value is spelled: `.lines[3].price`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_KEYS = frozenset({str, int, float, bool, bytes, type(None)})

# Keys of tagged objects that are part of the format alone.
_SILENT_KEYS = frozenset({"items", "fields", "value"})

_PAIR_TAGS = frozenset({"dict", "OrderedDict", "Counter", "defaultdict"})


def key_step(key: object) -> str:
    """The step to a value in a mapping. Only plain keys are shown: `repr` of another could run anything."""
    return f"[{key!r}]" if type(key) in _SHOWN_KEYS else f"[<{type(key).__name__}>]"


def attribute_step(name: str) -> str:
    """The step to an attribute."""
    return f".{name}"


def index_step(index: int) -> str:
    """The step to an element of a sequence."""
    return f"[{index}]"


def keys_step(index: int) -> str:
    """The step to a key of a mapping."""
    return f".keys()[{index}]"


def element_step(_: int) -> str:
    """The step to an element of a set, which has no place."""
    return "{*}"


def no_step(_: object) -> str:
    """The step to what stands for the value itself."""
    return ""


def spelled(holders: Sequence[Any], places: Sequence[Any]) -> str:
    """The path through nested JSON: each place is a key or an index in the holder beside it."""
    steps = [_step(holders, places, depth) for depth in range(len(places))]
    return "".join(steps)


def _step(holders: Sequence[Any], places: Sequence[Any], depth: int) -> str:
    holder, place = holders[depth], places[depth]
    if isinstance(holder, dict) and "~" in holder:
        return "" if place in _SILENT_KEYS else attribute_step(place)
    parent = holders[depth - 1] if depth else None
    under = places[depth - 1] if depth else None
    if isinstance(holder, dict):
        return attribute_step(place) if _is_tagged(parent) and under == "fields" else key_step(place)
    if _is_pairs(parent, under):
        return ""
    if depth > 1 and _is_pairs(holders[depth - 2], places[depth - 2]):
        return key_step(holder[0]) if place else keys_step(places[depth - 1])
    return index_step(place)


def _is_tagged(holder: object) -> bool:
    return isinstance(holder, dict) and "~" in holder


def _is_pairs(holder: Any, place: object) -> bool:
    return _is_tagged(holder) and holder["~"] in _PAIR_TAGS and place == "items"
