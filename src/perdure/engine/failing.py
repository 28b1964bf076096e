"""Whether an error means that the run has failed, and what is kept of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from perdure.clock import now
from perdure.codec import dumps
from perdure.errors import (
    CheckpointWriteError,
    CommandWaitsError,
    IncompatibleGraphError,
    IncompatibleTypeError,
    MissingRunKwargsError,
    RunError,
    StaleHeadError,
    UntrustedTypeError,
    WorkflowCheckpointException,
)
from perdure.events import WorkflowErrorDetails
from perdure.records import Halt

if TYPE_CHECKING:
    from perdure.clock import Clock

_REASON_LENGTH_MAX = 500
_NOT_OF_THE_RUN = (RunError, StaleHeadError, CommandWaitsError, CheckpointWriteError)
_DOES_NOT_FIT = (IncompatibleGraphError, IncompatibleTypeError, UntrustedTypeError)


def failure_of(error: BaseException | None, clock: Clock, *, read_from: str | None = None) -> Halt | None:
    """The halt of a run that ended with this error; None if the run is not at fault and can simply go on.

    `read_from` is the checkpoint at which this program has taken the run over.
    """
    if not isinstance(error, Exception) or not _is_of_the_run(error) or is_of_another_program(error, read_from):
        return None
    details = WorkflowErrorDetails.from_exception(error)
    text = " ".join(f"{details.error_type}: {details.message}".split())
    reason = text if len(text) <= _REASON_LENGTH_MAX else f"{text[:_REASON_LENGTH_MAX]}..."
    return Halt("failed", now(clock), reason, dumps({**dataclasses.asdict(details), "extra": None}))


def is_of_another_program(error: Exception, read_from: str | None) -> bool:
    """Whether this program can't read what the run's checkpoint holds: another version of it has written that.

    What a handler can't read of anything else is its own failure.
    """
    return isinstance(error, _DOES_NOT_FIT) and error.checkpoint_id is not None and error.checkpoint_id == read_from


def _is_of_the_run(error: Exception) -> bool:
    if isinstance(error, MissingRunKwargsError):
        return True
    # A store that can't be reached says so with the plain class.
    return not isinstance(error, _NOT_OF_THE_RUN) and type(error) is not WorkflowCheckpointException
