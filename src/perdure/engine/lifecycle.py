"""Logs and counters about the life of a run, for operators.

The loggers are children of `perdure`, and nothing configures them. Every record has the fields `run_id`, `workflow`,
`executor` and `superstep`. Values of messages, state and answers are never logged.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from perdure.engine.commit import status_of
from perdure.failures import Failure
from perdure.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.engine.recovery import LoadedRun
    from perdure.events import WorkflowEvent
    from perdure.records import Halt

logger = logging.getLogger("perdure.runs")
# Without this, Python prints warnings to stderr in programs that have not set up logging.
logger.addHandler(logging.NullHandler())


def log_run(level: int, text: str, *args: object, run_id: str, workflow: str | None = None, **fields: object) -> None:
    """Log a line about a run. Line breaks and other control characters in `args` are removed: they are data."""
    if logger.isEnabledFor(level):
        extra = {"run_id": run_id, "workflow": workflow, "executor": None, "superstep": None, **fields}
        shown = [_on_one_line(each) if isinstance(each, str) else each for each in args]
        logger.log(level, "run %r " + text, run_id, *shown, extra=extra)  # noqa: G003 - `text` is a constant


def _on_one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _is_observed() -> bool:
    """Return whether anybody may get lines about the normal course of a run, or metrics."""
    return logger.isEnabledFor(logging.INFO) or "opentelemetry.metrics" in sys.modules


def run_opened(run: LoadedRun) -> None:
    """Log that a call has the lease of a run, and count new runs."""
    if not _is_observed():
        return
    workflow = run.origin.workflow_name
    fields: dict[str, Any] = {"run_id": run.run_id, "workflow": workflow, "superstep": run.snapshot.iteration}
    previous = None if run.lease is None else run.lease.previous
    if previous is not None:
        measure("perdure.run.takeover", workflow=workflow)
        log_run(logging.INFO, "was taken over from %s", str(previous), **fields)
    if run.snapshot.turn == 0:
        measure("perdure.run.started", workflow=workflow)
        log_run(logging.INFO, "started: workflow %r", workflow, **fields)
    else:
        log_run(logging.DEBUG, "continues after superstep %d", run.snapshot.iteration, **fields)


def warnings_emitted(run: LoadedRun | None, events: Iterable[WorkflowEvent[Any]]) -> None:
    """Log the warnings among the events of a run."""
    for event in events:
        if event.type in {"warning", "sub_workflow"} and run is not None and event.innermost.type == "warning":
            found = event.innermost
            log_run(
                logging.WARNING,
                "warns: %s",
                found.data if isinstance(found.data, str) else type(found.data).__name__,
                run_id=run.run_id,
                workflow=run.origin.workflow_name,
                executor=found.executor_id or event.executor_id,
                superstep=run.snapshot.iteration,
            )


def run_closed(run: LoadedRun, error: BaseException | None, halt: Halt | None, *, has_changed: bool) -> None:
    """Log in which state a call leaves a run, if it has changed it, and count that."""
    workflow, snapshot = run.origin.workflow_name, run.snapshot
    status = status_of(snapshot)
    if error is not None:
        if isinstance(error, Exception) and (halt is not None or run.binding is None):
            run_failed(run.run_id, workflow, error, halt, superstep=snapshot.iteration + 1)
        return
    if not has_changed or status == "running" or not _is_observed():
        return
    measure("perdure.run.ended", workflow=workflow, status=status)
    fields: dict[str, Any] = {"run_id": run.run_id, "workflow": workflow, "superstep": snapshot.iteration}
    if status == "waiting":
        executors = sorted({request.executor_id for request in snapshot.requests.values()})
        fields["executor"] = ", ".join(executors)
        log_run(logging.INFO, "waits for %d requests of %s", len(snapshot.requests), fields["executor"], **fields)
    elif status == "sleeping":
        log_run(logging.INFO, "sleeps until %s", snapshot.next_timer, **fields)
    else:
        end = "was cancelled" if status == "cancelled" else "finished"
        log_run(logging.INFO, "%s after superstep %d", end, snapshot.iteration, **fields)


def run_failed(
    run_id: str, workflow: str | None, error: Exception, halt: Halt | None, *, superstep: int | None = None
) -> None:
    """Log in one line why a run has failed, and count that. The store has the traceback."""
    measure("perdure.run.ended", workflow=workflow, status="failed")
    found = Failure.from_json(halt.data, at=halt.at) if halt is not None else Failure.of(error, at="")
    reason = halt.reason if halt is not None else f"{type(error).__name__}: {found.message if found else ''}"
    executor = found.executor_id if found is not None else None
    text, args = ("failed: %s", (reason,)) if executor is None else ("failed in executor %r: %s", (executor, reason))
    fields: dict[str, Any] = {"workflow": workflow, "executor": executor, "superstep": superstep}
    log_run(logging.WARNING, text, *args, run_id=run_id, **fields)
