"""Failures as data: what was raised, where in the run, and when.

Code that an exception passes through notes the place on it. What is noted first, nearest to the cause, holds.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from perdure.events import WorkflowErrorDetails

_PLACE = "__perdure_place__"
_TRACEBACK_LENGTH_MAX = 16_000


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run or an attempt has failed.

    Attributes:
        traceback: The formatted traceback without values of variables; the end of it if it is long. None for an attempt
            that was followed by another.
        executor_id: The executor whose handler, condition or hook raised.
        path: The enclosing executors if that was in a sub-workflow, outermost first.
        step: The step that raised. The call of a tool or model is a step too.
        attempt: The number of the last attempt, if the executor or the step was tried several times.
        at: The time, in UTC as ISO 8601.
    """

    error_type: str
    message: str
    traceback: str | None = None
    executor_id: str | None = None
    path: tuple[str, ...] = ()
    step: str | None = None
    attempt: int = 1
    at: str = ""

    @classmethod
    def of(cls, error: BaseException, *, at: str) -> Failure:
        """Describe an exception that has ended a run."""
        details, place = WorkflowErrorDetails.from_exception(error), _place_of(error)
        forget_place(error)
        traceback = details.traceback
        if traceback is not None and len(traceback) > _TRACEBACK_LENGTH_MAX:
            traceback = f"...\n{traceback[-_TRACEBACK_LENGTH_MAX:]}"
        return cls(
            details.error_type,
            details.message,
            traceback,
            place.get("executor_id"),
            tuple(place.get("path", ())),
            place.get("step"),
            place.get("attempt", 1),
            at,
        )

    @classmethod
    def of_attempt(cls, error: BaseException, executor_id: str, step: str | None, *, attempt: int, at: str) -> Failure:
        """Describe an exception that has ended one attempt at an activation or step."""
        details = WorkflowErrorDetails.from_exception(error)
        step = step or _place_of(error).get("step")
        return cls(details.error_type, details.message, None, executor_id, (), step, attempt, at)

    def to_json(self) -> bytes:
        """Encode it for the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes, *, at: str) -> Failure | None:
        """Read what `to_json` has written, also by earlier versions; None for anything else."""
        try:
            found: dict[str, Any] = json.loads(data)
            return cls(
                str(found["error_type"]),
                str(found["message"]),
                found.get("traceback"),
                found.get("executor_id"),
                tuple(found.get("path") or ()),
                found.get("step"),
                int(found.get("attempt") or 1),
                at,
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def note_executor(error: BaseException, executor_id: str, *, attempt: int = 1) -> None:
    """Note the executor that an exception passes through."""
    place = error.__dict__.setdefault(_PLACE, {})
    if "executor_id" in place:
        place.setdefault("path", []).insert(0, executor_id)
    else:
        place["executor_id"] = executor_id
        place.setdefault("attempt", attempt)


def note_step(error: BaseException, step: str, *, attempt: int = 1) -> None:
    """Note the step that an exception passes through. The innermost of nested steps holds."""
    place = error.__dict__.setdefault(_PLACE, {})
    if "executor_id" not in place and "step" not in place:
        place |= {"step": step, "attempt": attempt}


def forget_place(error: BaseException) -> None:
    """Forget the noted place of an exception: a program may raise the same object again elsewhere."""
    error.__dict__.pop(_PLACE, None)


def _place_of(error: BaseException | None) -> dict[str, Any]:
    """Return the place that is noted on an exception, or on what caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if _PLACE in error.__dict__:
            return error.__dict__[_PLACE]
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return {}
