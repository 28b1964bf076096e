"""Conditions read back from JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perdure.agent_workflows.conditions_base import DEPTH_MAX, And, Condition, Not, Or
from perdure.agent_workflows.conditions_fields import Empty, Equals, Exists, NotEmpty, NotEquals, NotExists, OfKey
from perdure.agent_workflows.conditions_order import AtLeast, AtMost, GreaterThan, LessThan
from perdure.agent_workflows.conditions_parts import (
    Contains,
    ContainsAll,
    ContainsAny,
    EndsWith,
    Matches,
    StartsWith,
)
from perdure.agent_workflows.config_entries import Entry, Problems, entry_of

if TYPE_CHECKING:
    from collections.abc import Mapping

# By type: the class, and what it is made of beside its key; what has a question mark may be left out.
_OF_KEY: Final[Mapping[str, tuple[type[OfKey], tuple[str, ...]]]] = {
    **{kind.type: (kind, ()) for kind in (Exists, NotExists, Empty, NotEmpty)},
    **{kind.type: (kind, ("value",)) for kind in (Equals, NotEquals, Contains, StartsWith, EndsWith)},
    **{kind.type: (kind, ("value",)) for kind in (GreaterThan, LessThan, AtLeast, AtMost)},
    **{kind.type: (kind, ("values",)) for kind in (ContainsAny, ContainsAll)},
    Matches.type: (Matches, ("pattern", "ignore_case?")),
}
CONDITION_TYPES: Final = (*_OF_KEY, And.type, Or.type, Not.type)
"""What a condition may be called when it is written down."""


def condition_of(data: Any, path: str = "") -> Condition:
    """The condition that `to_dict` has written. `path` says where it stands, for errors.

    Raises AgentWorkflowBuildError with all that is wrong with it.
    """
    problems = Problems()
    condition = read_condition(data, path, problems)
    problems.require_none()
    assert condition is not None, "a condition is read, or a problem is noted"
    return condition


def read_condition(data: Any, path: str, problems: Problems, depth: int = 0) -> Condition | None:
    """The condition, or None if something is wrong with it, which is noted."""
    entry = entry_of(data, path, problems)
    if entry is None or not entry.need("type"):
        return None
    if entry["type"] == "function":
        return problems.note(path, "a function stands by itself, or in the `and` of an edge; it can't stand here")
    kind = entry.choice("type", CONDITION_TYPES)
    if kind is None:
        return None
    if depth >= DEPTH_MAX:
        return problems.note(path, f"conditions stand more than {DEPTH_MAX} deep in each other; make them flatter")
    return _of_key(entry, *_OF_KEY[kind]) if kind in _OF_KEY else _of_others(entry, kind, depth)


def _of_key(entry: Entry, kind: type[OfKey], parts: tuple[str, ...]) -> Condition | None:
    names = [part.rstrip("?") for part in parts]
    entry.only("type", "key", *names)
    if not entry.need("key", *(part for part in parts if not part.endswith("?"))):
        return None
    try:
        return kind(entry["key"], **{name: entry[name] for name in names if name in entry})
    except (TypeError, ValueError, RecursionError) as error:
        return entry.problems.note(entry.path, str(error))


def _of_others(entry: Entry, kind: str, depth: int) -> Condition | None:
    part = "condition" if kind == Not.type else "conditions"
    entry.only("type", part)
    if not entry.need(part):
        return None
    given = [(entry.at(part), entry[part])] if kind == Not.type else entry.elements(part)
    inner = [read_condition(each, path, entry.problems, depth + 1) for path, each in given]
    conditions = [each for each in inner if each is not None]
    if isinstance(entry[part], list) and not inner:
        return entry.wrong(part, "at least one condition")
    if not inner or len(conditions) < len(inner):
        return None
    return Not(conditions[0]) if kind == Not.type else (And if kind == And.type else Or)(*conditions)
