"""What `when` says in JSON: a condition, a function that is given anew, or for an edge both of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from perdure.agent_workflows.conditions import And, Condition
from perdure.agent_workflows.conditions_reading import read_condition
from perdure.agent_workflows.config_entries import entry_of
from perdure.agent_workflows.config_given import is_function_mark
from perdure.agent_workflows.predicates import all_of

if TYPE_CHECKING:
    from perdure.agent_workflows.config_entries import Entry
    from perdure.agent_workflows.config_given import Given
    from perdure.agent_workflows.definition import Predicate


def read_when(entry: Entry, given: Given) -> Condition | Any:
    """A condition, or a function that was given anew."""
    return _part(entry["when"], entry.at("when"), given) if "when" in entry else None


def read_edge_when(entry: Entry, given: Given) -> tuple[Condition | None, Predicate | None]:
    """What has to hold for an edge: the condition, and the function."""
    mixed = entry.entry("when") if _is_mixed(entry["when"]) else None
    asked = [read_when(entry, given)] if mixed is None else _conjuncts(mixed, given)
    conditions = [each for each in asked if isinstance(each, Condition)]
    functions = [each for each in asked if each is not None and not isinstance(each, Condition)]
    condition = And(*conditions) if len(conditions) > 1 else next(iter(conditions), None)
    return condition, all_of(*functions)


def _is_mixed(value: object) -> bool:
    """Whether it is an `and` with functions beside conditions."""
    if not isinstance(value, Mapping):
        return False
    written = cast("Mapping[str, Any]", value)
    inner: object = written.get("conditions")
    if written.get("type") != And.type or not isinstance(inner, list):
        return False
    return any(map(is_function_mark, cast("list[object]", inner)))


def _conjuncts(entry: Entry, given: Given) -> list[Condition | Any]:
    entry.only("type", "conditions")
    return [_part(each, path, given, depth=1) for path, each in entry.elements("conditions")]


def _part(value: object, path: str, given: Given, *, depth: int = 0) -> Condition | Any:
    if is_function_mark(value):
        mark = entry_of(value, path, given.problems)
        return None if mark is None else given.function(mark)
    return read_condition(value, path, given.problems, depth)
