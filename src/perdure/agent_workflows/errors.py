"""Errors of agent workflows, beside those of every workflow; and the texts of problems with definitions.

AgentWorkflowError             (a WorkflowException)
├── AgentWorkflowBuildError    the definition is wrong; it lists all problems
├── MissingInputError          a node reads a value that no node has written
├── IterationLimitError        a loop reached its limit
└── ExecutionNotFoundError     the store of the workflow has no such execution
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from perdure import WorkflowException

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


class AgentWorkflowError(WorkflowException):
    """An agent workflow, or a call of it, is wrong."""


class AgentWorkflowBuildError(AgentWorkflowError, ValueError):
    """A definition is wrong. `problems` has all problems, and the message lists them."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        """Take one or several problem texts."""
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        if len(self.problems) == 1:
            super().__init__(f"this agent workflow can't be built: {self.problems[0]}")
        else:
            lines = "".join(f"\n- {problem}" for problem in self.problems)
            super().__init__(
                f"this agent workflow can't be built, {len(self.problems)} things are wrong with it:{lines}"
            )


class MissingInputError(AgentWorkflowError):
    """A node reads a value that no node has written in this execution."""


class IterationLimitError(AgentWorkflowError):
    """A loop reached its limit. Resume the execution with a larger limit to continue it."""


class ExecutionNotFoundError(AgentWorkflowError):
    """The store has no such execution of this workflow."""

    def __init__(self, workflow_name: str, execution_id: str | None, *, reason: str) -> None:
        """Name the workflow and the execution, and give the message as `reason`."""
        self.workflow_name = workflow_name
        self.execution_id = execution_id
        super().__init__(reason)


Place: TypeAlias = tuple[str | int, ...]
"""Keys, indexes and field names that lead to a value."""

_SHOWN_MAX: Final = 60
_SHOULD_BE: Final = "input should be "
_NOWHERE: Final = object()


def quoted(names: Iterable[object]) -> str:
    """Join names, each in quotes."""
    return ", ".join(map(repr, names))


def describe(value: object) -> str:
    """Describe a value for an error text: short, and of an object only its kind."""
    if value is None or isinstance(value, bool | int | float | timedelta):
        text = repr(value)
        return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN_MAX else f"{value[: _SHOWN_MAX - 1]}…")
    name: object = getattr(value, "__name__", None)
    if isinstance(name, str):
        return f"the {'class' if isinstance(value, type) else 'function'} {name}"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in {*'aeiou'} else 'a'} {kind}"


def path_of(place: Place, path: str = "") -> str:
    """Write a place inside `path` as a path, such as `edges[0].when`."""
    for part in place:
        name = f".{part}" if path else part
        path += f"[{part}]" if isinstance(part, int) else str(name)
    return path


def problems_in(error: ValidationError, data: object, name_place: Callable[[Place], str] = path_of) -> dict[Place, str]:
    """Return one problem text per place of `data` that pydantic refused.

    A union reports one error per member; they share a place and become one problem.
    """
    found: dict[Place, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        found.setdefault(_place_in(data, details), []).append(details)
    texts = {place: (name_place(place), _join_texts(several)) for place, several in found.items()}
    return {place: f"{path}: {text}" if path else text for place, (path, text) in texts.items()}


def _join_texts(several: list[ErrorDetails]) -> str:
    texts = list(dict.fromkeys(map(_text_of, several)))
    first, *others = texts
    text = " or ".join([first, *(each.removeprefix(_SHOULD_BE) for each in others)])
    return f"{text}, not {describe(several[0]['input'])}" if first.startswith(_SHOULD_BE) else text


def _place_in(data: object, details: ErrorDetails) -> Place:
    """Return the place of an error without the names of union members, which pydantic puts between."""
    found: list[str | int] = []
    parts = details["loc"]
    for number, part in enumerate(parts):
        inner = _step(data, part)
        if inner is not _NOWHERE:
            found.append(part)
            data = inner
        elif number == len(parts) - 1 and details["type"] == "missing":
            found.append(part)
    return tuple(found)


def _step(data: object, part: str | int) -> object:
    if isinstance(data, Mapping):
        return cast("Mapping[Any, object]", data).get(part, _NOWHERE)
    if isinstance(part, int):
        elements = cast("list[object]", data) if isinstance(data, list | tuple) else []
        return elements[part] if part < len(elements) else _NOWHERE
    return getattr(data, part, _NOWHERE) if is_dataclass(data) else _NOWHERE


def _text_of(details: ErrorDetails) -> str:
    kind, message = details["type"], details["msg"]
    context: Mapping[str, Any] = details.get("ctx", {})
    match kind:
        case "missing":
            return "it is missing; give it"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return "this key is unknown; check its spelling, or remove it"
        case "union_tag_not_found":
            return "it is not an object with a type; give it one"
        case "union_tag_invalid" if context.get("tag") == "function":
            return "a function must be the whole condition, or stand in the outermost `and` of an edge"
        case "union_tag_invalid":
            return f"there is no type {context['tag']!r}; use one of {context['expected_tags']}"
        case "value_error":
            return message.removeprefix("Value error, ")
        case _:
            return f"{message[:1].lower()}{message[1:]}"
