"""How far the loop of a turn may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents.tools import FunctionTool


class FunctionInvocationConfiguration(TypedDict, total=False):
    """Whether and how a client makes the calls that its model asks for.

    `max_iterations` limits how often the model is asked, `max_function_calls` the calls; when a limit is reached the
    model is asked once more, and may call nothing. So it is after `max_consecutive_errors_per_request` rounds in which
    a call failed. `additional_tools` can be called, though the model is not told of them.
    """

    enabled: bool
    max_iterations: int
    max_function_calls: int | None
    max_consecutive_errors_per_request: int
    terminate_on_unknown_calls: bool
    additional_tools: Sequence[FunctionTool]
    include_detailed_errors: bool


# In the order of the fields of Limits.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "enabled": True,
    "max_iterations": 40,
    "max_function_calls": None,
    "max_consecutive_errors_per_request": 3,
    "terminate_on_unknown_calls": False,
    "additional_tools": (),
    "include_detailed_errors": False,
}
_LEAST: Final = {"max_iterations": 1, "max_function_calls": 1, "max_consecutive_errors_per_request": 0}


def normalize_function_invocation_configuration(
    given: FunctionInvocationConfiguration | None,
) -> FunctionInvocationConfiguration:
    """All settings, those that were not given by their defaults. Raises ValueError."""
    found: dict[str, Any] = {**_DEFAULTS, **cast("Mapping[str, Any]", given or {})}
    unknown = sorted(set(found) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"there is no setting named {', '.join(unknown)}; there are {', '.join(_DEFAULTS)}")
    for name, least in _LEAST.items():
        if found[name] is not None and found[name] < least:
            raise ValueError(f"{name} is {least} or more, not {found[name]!r}")
    return cast("FunctionInvocationConfiguration", found)


@frozen
class Limits:
    """The settings of one turn."""

    is_enabled: bool
    rounds: int
    calls: int | None
    failures_in_a_row: int
    requires_known: bool
    hidden_tools: Sequence[FunctionTool]
    tells_details: bool

    @classmethod
    def of(cls, given: FunctionInvocationConfiguration) -> Limits:
        """As they stand now: a client's configuration may be changed. Raises ValueError."""
        found: Mapping[str, Any] = cast("Mapping[str, Any]", normalize_function_invocation_configuration(given))
        return cls(*(found[name] for name in _DEFAULTS))
