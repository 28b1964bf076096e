"""Whose outputs are outputs of an orchestration: `output_from` and `intermediate_output_from`, by participants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from perdure import DEFAULT_MAX_ITERATIONS
from perdure.orchestrations.participants import Named, one_of
from perdure.orchestrations.termination import turns_max

if TYPE_CHECKING:
    from perdure import Executor
    from perdure.orchestrations.termination import TerminationCondition


class Unset:
    """Stands for a choice that was not made."""

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = Unset()

OutputFrom: TypeAlias = Sequence[Named] | Literal["all"] | Unset | None
IntermediateOutputFrom: TypeAlias = Sequence[Named] | Literal["all", "all_other"] | None


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a program has said about outputs. Make it with `of`, and `resolve` it when the executors are there."""

    output_from: Sequence[Named] | Literal["all"] | None
    intermediate_output_from: Sequence[Named] | Literal["all", "all_other"] | None

    @classmethod
    def of(cls, output_from: OutputFrom, intermediate_output_from: IntermediateOutputFrom) -> Outputs:
        """What was said. Raises ValueError for a word that means nothing."""
        outputs = None if isinstance(output_from, Unset) else output_from
        return cls(
            _checked("output_from", outputs, ("all",)),
            _checked("intermediate_output_from", intermediate_output_from, ("all", "all_other")),
        )

    def resolve(
        self, participants: Sequence[Executor], *, default: Sequence[Executor] = (), always: Sequence[Executor] = ()
    ) -> tuple[list[Executor], list[Executor]]:
        """The executors whose outputs are outputs, and those whose outputs are intermediate. Raises ValueError.

        `default` are the outputs if the program has named none; `always` are outputs beside those that it names.
        """
        nodes = {node.id: node for node in participants}
        outputs, intermediates = self.names(list(nodes), default=[node.id for node in default])
        return [*always, *[nodes[name] for name in outputs]], [nodes[name] for name in intermediates]

    def names(self, participants: Sequence[str], *, default: Sequence[str] = ()) -> tuple[list[str], list[str]]:
        """The same by names, where there are no executors yet."""
        if not self._says_something():
            raise ValueError("output_from and intermediate_output_from are both empty: nobody's outputs would be told")
        intermediates = self._intermediates(participants)
        outputs = self._outputs(participants, [name for name in default if name not in intermediates])
        if self.intermediate_output_from == "all_other":
            intermediates = [name for name in participants if name not in outputs]
        both = [name for name in outputs if name in intermediates]
        if both:
            named = ", ".join(map(repr, both))
            raise ValueError(f"output_from and intermediate_output_from both name {named}: name each in one of them")
        return outputs, intermediates

    def _says_something(self) -> bool:
        is_silent = self.output_from is None and self.intermediate_output_from is None
        return is_silent or bool(self.output_from or self.intermediate_output_from)

    def _intermediates(self, participants: Sequence[str]) -> list[str]:
        """Without those that `all_other` means, since they depend on the outputs."""
        chosen = self.intermediate_output_from
        if chosen == "all":
            return list(participants)
        return _named("intermediate_output_from", () if isinstance(chosen, str) else chosen or (), participants)

    def _outputs(self, participants: Sequence[str], default: list[str]) -> list[str]:
        if self.output_from == "all":
            return list(participants)
        if self.output_from is not None:
            return _named("output_from", self.output_from, participants)
        return [] if isinstance(self.intermediate_output_from, str) else default


def _checked(name: str, given: Any, words: tuple[str, ...]) -> Any:
    if given is None:
        return None
    if not isinstance(given, str):
        return list(cast("Sequence[Named]", given))
    if given in words:
        return given
    known = " or ".join(map(repr, words))
    other = "; 'all_other' is for intermediate_output_from" if given == "all_other" else ""
    raise ValueError(f"{name} is a list of participants or {known}, not {given!r}{other}")


def _named(what: str, named: Sequence[Named], participants: Sequence[str]) -> list[str]:
    names = [one_of(each, participants, what=what) for each in named]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} names {name!r} twice")
    return names


_A_TURN = 2
"""A turn is a superstep of who leads, and one of who speaks."""
_BEGIN_AND_END = 2


def checked_iterations(max_iterations: int | None) -> int | None:
    """The same number. Raises ValueError if nothing could run."""
    if max_iterations is not None and max_iterations < 1:
        raise ValueError(f"max_iterations is 1 or more, not {max_iterations!r}")
    return max_iterations


def iterations(
    given: int | None,
    *,
    turns: int | None = None,
    condition: TerminationCondition | None = None,
    speakers: int = 1,
) -> int:
    """What a program has said with `max_iterations`; else enough for so many turns, and for its termination condition.

    Of a condition that is a function nobody knows when it ends a conversation: there the default is the limit.
    """
    if given is not None:
        return given
    limits = [limit for limit in (turns, turns_max(condition, speakers)) if limit is not None]
    return max(DEFAULT_MAX_ITERATIONS, _A_TURN * min(limits, default=0) + _BEGIN_AND_END)
