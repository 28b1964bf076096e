"""Words for problems, and notes on values of the wrong kind: what each is to be, and what it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ValueT = TypeVar("ValueT")
_SHOWN_MAX: Final = 60


@dataclass(slots=True)
class Kinds:
    """Looks at values, and notes those that are not of their kind. What comes back in place of one is as usual."""

    problems: list[str] = field(default_factory=list[str])

    def wrong(self, what: str, value: object, wanted: str, usual: ValueT) -> ValueT:
        """Note that a value is to be something else."""
        self.problems.append(f"{what} is {wanted}, not {told(value)}")
        return usual

    def text(self, what: str, value: Any, *, is_empty_fine: bool = True) -> str | None:
        """A text, or nothing."""
        if value is None or (isinstance(value, str) and (value or is_empty_fine)):
            return value
        return self.wrong(what, value, "a text" if is_empty_fine else "a text that is not empty", None)

    def flag(self, what: str, value: bool, usual: bool) -> bool:  # noqa: FBT001 - what is looked at
        """True or False."""
        return value if isinstance(cast("object", value), bool) else self.wrong(what, value, "True or False", usual)

    def choice(self, what: str, value: Any, choices: Sequence[Any], usual: Any) -> Any:
        """One of several words."""
        if (value is None or isinstance(value, str)) and value in choices:
            return value
        return self.wrong(what, value, " or ".join(repr(each) for each in choices if each is not None), usual)

    def duration(self, what: str, value: Any) -> timedelta | None:
        """A duration, or nothing."""
        is_fine = value is None or isinstance(value, timedelta)
        return value if is_fine else self.wrong(what, value, "a timedelta, as timedelta(minutes=5)", None)

    def seconds(self, what: str, value: Any) -> timedelta | float | None:
        """A duration or a number of seconds, or nothing."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_fine = value is None or isinstance(value, timedelta) or is_number
        return value if is_fine else self.wrong(what, value, "a timedelta or a number of seconds", None)

    def instance(self, what: str, value: Any, kind: type[ValueT], wanted: str) -> ValueT | None:
        """An object of a class, or nothing."""
        return value if value is None or isinstance(value, kind) else self.wrong(what, value, wanted, None)


def listed(names: Iterable[object]) -> str:
    """Names one after the other."""
    return ", ".join(map(repr, names))


def told(value: object) -> str:
    """A value as it stands in a problem: what it is, and of an object no more than its kind."""
    if value is None or isinstance(value, bool | int | float | timedelta):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN_MAX else f"{value[: _SHOWN_MAX - 1]}…")
    name: object = getattr(value, "__name__", None)
    if isinstance(name, str):
        return f"the {'class' if isinstance(value, type) else 'function'} {name}"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in {*'aeiou'} else 'a'} {kind}"
