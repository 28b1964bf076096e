"""Failure policy of an executor: attempts, timeout, and the executor that gets failed messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, TypeAlias, cast

from typing_extensions import TypeIs

from perdure.clock import seconds_of
from perdure.events import WorkflowErrorDetails  # noqa: TC001 - the codec follows the fields at run time

Backoff: TypeAlias = float | timedelta | Callable[[int], float]
RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry after a failure: `attempts` in total, for errors that `on` names or accepts.

    The first wait is `backoff`, and each further one is `factor` times as long. A function as `backoff` gets the number
    of the failed attempt, starting at 1, and returns seconds. No wait exceeds `longest`.
    """

    attempts: int = 3
    backoff: Backoff = 1.0
    on: RetryOn = Exception
    _: KW_ONLY
    factor: float = 2.0
    longest: float | timedelta = 60.0

    def __post_init__(self) -> None:
        attempts, on = cast("object", self.attempts), cast("object", self.on)
        if isinstance(attempts, bool) or not isinstance(attempts, int):
            raise TypeError(f"Retry: attempts must be a whole number, not {attempts!r}")
        if attempts < 1:
            raise ValueError(f"Retry: attempts must be 1 or more, including the first attempt, not {attempts}")
        if isinstance(self.backoff, (int, float, timedelta)) or not callable(self.backoff):
            seconds_of("Retry: backoff", self.backoff)
        seconds_of("Retry: factor", self.factor)
        seconds_of("Retry: longest", self.longest)
        if not _is_errors(on) and (isinstance(on, (type, tuple)) or not callable(on)):
            raise TypeError(
                f"Retry: on must be an Exception class, a tuple of them, or a function of an error, not {on!r}"
            )

    def covers(self, error: Exception) -> bool:
        """Return True if this error allows another attempt."""
        if _is_errors(self.on):
            return isinstance(error, self.on)
        return bool(self.on(error))

    def wait_after(self, attempt: int) -> float:
        """Return the seconds to wait after the failed attempt of this number, starting at 1."""
        longest = seconds_of("Retry: longest", self.longest)
        if not isinstance(self.backoff, (int, float, timedelta)):
            return min(seconds_of("Retry: what backoff returns", self.backoff(attempt)), longest)
        first = seconds_of("Retry: backoff", self.backoff)
        try:
            return min(first * float(self.factor) ** (attempt - 1), longest)
        except OverflowError:
            return longest if first else 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Attempts, seconds per attempt, and the id of the executor that gets failed messages."""

    retry: Retry | None = None
    timeout: float | None = None
    on_error: str | None = None


# The default: one attempt without a timeout, and a failure stops the run.
NO_POLICY = Policy()


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that an executor failed to handle, with the error. The `on_error` executor gets it."""

    message: Any
    executor_id: str
    error: WorkflowErrorDetails
    attempts: int


def policy_of(*, retry: object, timeout: object, on_error: str | None) -> Policy:
    """Create a policy from user input. Raises TypeError or ValueError."""
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"retry must be a Retry, as in retry=Retry(attempts=3), not {retry!r}")
    seconds = None if timeout is None else seconds_of("timeout", timeout)
    if seconds == 0:
        raise ValueError("timeout must be more than 0 seconds; leave it out for no limit")
    policy = Policy(retry, seconds, on_error)
    return NO_POLICY if policy == NO_POLICY else policy


def _is_errors(on: object) -> TypeIs[type[Exception] | tuple[type[Exception], ...]]:
    kinds = cast("tuple[object, ...]", on) if isinstance(on, tuple) else (on,)
    return all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds)
