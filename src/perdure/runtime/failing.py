"""Whether an error means that the run has failed, and what is kept of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from perdure.checkpoint.documents import dumps
from perdure.errors import (
    CheckpointWriteError,
    CommandWaitsError,
    MissingRunKwargsError,
    RunError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.events import WorkflowErrorDetails
from perdure.moments import now
from perdure.records import Halt

if TYPE_CHECKING:
    from perdure.clock import Clock

_REASON_LENGTH_MAX = 500
_NOT_OF_THE_RUN = (RunError, StaleHeadError, CommandWaitsError, CheckpointWriteError)


def failure_of(error: BaseException | None, clock: Clock) -> Halt | None:
    """The halt of a run that ended with this error; None if the run is not at fault and can simply go on."""
    if not isinstance(error, Exception) or not _is_of_the_run(error):
        return None
    details = WorkflowErrorDetails.from_exception(error)
    text = " ".join(f"{details.error_type}: {details.message}".split())
    reason = text if len(text) <= _REASON_LENGTH_MAX else f"{text[:_REASON_LENGTH_MAX]}..."
    return Halt("failed", now(clock), reason, dumps({**dataclasses.asdict(details), "extra": None}))


def _is_of_the_run(error: Exception) -> bool:
    if isinstance(error, MissingRunKwargsError):
        return True
    # A store that can't be reached says so with the plain class.
    return not isinstance(error, _NOT_OF_THE_RUN) and type(error) is not WorkflowCheckpointException
