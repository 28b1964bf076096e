"""`RunContext`: questions, waits and state of a functional workflow."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from perdure.engine import GLOBAL_KWARGS_KEY, RUN_KWARGS_KEY
from perdure.functional.state import FunctionState
from perdure.functional.step_state import recorded_writes
from perdure.graph import ABSENT, Terms, current_activation

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Mapping
    from datetime import datetime, timedelta

    from perdure.events import WorkflowEvent
    from perdure.functional.state import Store
    from perdure.graph import ActivationPort, WorkflowContext

_current: ContextVar[RunContext | None] = ContextVar("perdure_run_context", default=None)


class RunContext:
    """The run of a functional workflow, as its function and its steps see it.

    A parameter of this type, or with the name `ctx`, gets it; `get_run_context()` returns it elsewhere.
    """

    def __init__(
        self,
        context: WorkflowContext[Any, Any],
        *,
        workflow_name: str,
        store: Store | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._context = context
        self._workflow_name = workflow_name
        self._kwargs = kwargs or {}
        self.state = FunctionState(context.state if store is None else store, recorded_writes(context.activation))

    @property
    def activation(self) -> ActivationPort:
        """Return the activation that the function runs in."""
        return self._context.activation

    def request_info(
        self,
        request_data: Any,
        response_type: Any,
        *,
        request_id: str | None = None,
        deadline: timedelta | datetime | None = None,
        default: Any = ABSENT,
        approves: Any = ABSENT,
    ) -> Coroutine[Any, Any, Any]:
        """Ask the outside, and return the answer.

        The function is suspended until the answer is there. Then it is re-entered from the top, and its steps return
        what was recorded. A step that asks is started again, too.

        When the `deadline` has passed, `default` is the answer. `approves` is what will be done if the answer says so:
        if it differs when the function comes back here, ApprovalMismatchError is raised.
        """
        terms = Terms(deadline, default, approves)
        return self.activation.ask(request_data, response_type, request_id, terms, is_numbered=True)

    def sleep(self, until: timedelta | datetime | float) -> Coroutine[Any, Any, None]:
        """Wait for a timedelta or seconds, or until a moment with a time zone. The function is suspended meanwhile."""
        return self._context.sleep(until)

    async def add_event(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Emit an event of your own. A `transient` one reaches current observers and is never recorded."""
        self.activation.emit(event, transient=transient)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return a value of the run's state."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Set a value in the run's state. What a step sets is recorded with its result, and lost if it fails.

        Raises ValueError.
        """
        if key.startswith("_"):
            raise ValueError(
                f"state key {key!r} starts with '_', which is reserved for the engine; choose another name"
            )
        self.state.set(key, value)

    def is_streaming(self) -> bool:
        """Return whether the caller reads a stream."""
        return self._context.is_streaming()

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Return the further keywords of `run`."""
        kept = self._context.get_state(RUN_KWARGS_KEY, {}).get("function_invocation_kwargs", {})
        return {**kept.get(GLOBAL_KWARGS_KEY, {}), **kept.get(self._workflow_name, {}), **self._kwargs}

    @property
    def idempotency_key(self) -> str:
        """Return a key for this run of the function: it stays over resumes, and differs in a fork."""
        return self._context.idempotency_key

    def spend(self, **amounts: float) -> None:
        """Count spending, by name, against the budget of the run."""
        self._context.spend(**amounts)


def get_run_context() -> RunContext | None:
    """Return the context of the functional workflow that the calling code runs in; None outside of one."""
    found = _current.get()
    return found if found is not None and current_activation() is found.activation else None


@contextmanager
def running(context: RunContext) -> Generator[None]:
    """Let `get_run_context` return a context."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
