"""How many supersteps an orchestration may take: as many as the limits need that a program has set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import DEFAULT_MAX_ITERATIONS
from perdure.orchestrations.termination import turns_max

if TYPE_CHECKING:
    from perdure.orchestrations.termination import TerminationCondition

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
