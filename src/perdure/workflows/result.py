"""What a call of `Workflow.run` gives: its events as a list, and what is usually wanted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.events import WorkflowEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.events import WorkflowRunState


class WorkflowRunResult(list[WorkflowEvent[Any]]):
    """The events of a call, without `started` and, unless asked for, `status`."""

    def __init__(
        self, events: Iterable[WorkflowEvent[Any]] = (), status_events: Iterable[WorkflowEvent[Any]] | None = None
    ) -> None:
        super().__init__(events)
        self._status_events = list(status_events or ())

    @classmethod
    def of(cls, events: Iterable[WorkflowEvent[Any]], *, include_status_events: bool = False) -> WorkflowRunResult:
        """The result of a call that told these events."""
        told = list(events)
        hidden = {"started"} if include_status_events else {"started", "status"}
        return cls(
            [event for event in told if event.type not in hidden], [event for event in told if event.type == "status"]
        )

    def get_outputs(self) -> list[Any]:
        """The outputs, in order."""
        return [event.data for event in self if event.type == "output"]

    def get_intermediate_outputs(self) -> list[Any]:
        """The intermediate outputs, in order."""
        return [event.data for event in self if event.type == "intermediate"]

    def get_request_info_events(self) -> list[WorkflowEvent[Any]]:
        """The requests that were told."""
        return [event for event in self if event.type == "request_info"]

    def get_spent(self) -> dict[str, float]:
        """What the run has spent in all, by name, tokens of models among it; empty if this call has spent nothing."""
        for event in reversed(self):
            if event.type == "superstep_completed" and event.data:
                return dict(event.data)
        return {}

    def get_final_state(self) -> WorkflowRunState:
        """Where the run stood at the end. Raises RuntimeError if no status was told."""
        if not self._status_events or self._status_events[-1].state is None:
            raise RuntimeError("no status was told: the run has not begun")
        return self._status_events[-1].state

    def status_timeline(self) -> list[WorkflowEvent[Any]]:
        """All status events, in order."""
        return list(self._status_events)
