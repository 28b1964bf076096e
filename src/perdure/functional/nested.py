"""A functional workflow that is run inside of another run: it is part of that one, which keeps all that it does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.engine import ActivationRecorder
from perdure.events import WorkflowEvent, WorkflowEventSource, WorkflowRunState
from perdure.graph import activation_at_work
from perdure.streams import ResponseStream
from perdure.workflows import WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping

_OF_A_RUN = ("deadline", "budget", "takeover", "client_kwargs")


def names_a_run(options: Mapping[str, Any]) -> bool:
    """Whether a call says which run it means: such a run is its own, wherever it is made."""
    return options.get("run_id") is not None or options.get("checkpoint_id") is not None


def durable_activation() -> ActivationRecorder | None:
    """The handler call that is in progress here, if it is entered again after a crash or a wait.

    A thread has none: what a plain function runs in a loop of its own is part of the step that it is called in.
    """
    found = activation_at_work()
    if not isinstance(found, ActivationRecorder) or not found.around.is_checkpointed:
        return None
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return found


def require_nestable(options: Mapping[str, Any], *, name: str) -> None:
    """Raise ValueError for what only a run of its own can be given."""
    if options.get("responses") is not None:
        raise ValueError(
            f"what workflow {name!r} asks here are requests of the run around it: answer them there, or name a run of "
            "its own with run_id=..."
        )
    given = [option for option in _OF_A_RUN if options.get(option)]
    if options.get("wait_for_timers") is False:
        given.append("wait_for_timers")
    if given:
        raise ValueError(
            f"{', '.join(given)}: workflow {name!r} has no run of its own here, it is part of the run around it; give "
            "them to that run, or name one of its own with run_id=..."
        )


async def result_of(returned: Awaitable[Any], *, name: str, include_status_events: bool = False) -> WorkflowRunResult:
    """What a call of `run` gives, of what the function returns."""
    events = [event async for event in _events(returned, name)]
    return WorkflowRunResult.of(events, include_status_events=include_status_events)


def stream_of(
    returned: Awaitable[Any], *, name: str, include_status_events: bool = False
) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
    """The same as a stream. What its steps tell is told by the run around it."""

    def finish(events: Any) -> WorkflowRunResult:
        return WorkflowRunResult.of(events, include_status_events=include_status_events)

    return ResponseStream(_events(returned, name), finalizer=finish)


async def _events(returned: Awaitable[Any], name: str) -> AsyncGenerator[WorkflowEvent[Any]]:
    origin = WorkflowEventSource.FRAMEWORK
    yield WorkflowEvent("started", origin=origin)
    yield WorkflowEvent("status", state=WorkflowRunState.IN_PROGRESS, origin=origin)
    result = await returned
    if result is not None:
        yield WorkflowEvent("output", result, executor_id=name)
    yield WorkflowEvent("status", state=WorkflowRunState.IDLE, origin=origin)
