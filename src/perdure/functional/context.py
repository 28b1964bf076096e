"""`RunContext`: what the function of a workflow can do beside calling steps."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from perdure.engine import GLOBAL_KWARGS_KEY, RUN_KWARGS_KEY
from perdure.functional.board import Board
from perdure.functional.branches import branch_place
from perdure.functional.past import recorded_by
from perdure.graph import ABSENT, Place, Terms, current_activation

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Mapping
    from datetime import datetime, timedelta

    from perdure.events import WorkflowEvent
    from perdure.functional.board import Store
    from perdure.graph import ActivationPort, WorkflowContext

_current: ContextVar[RunContext | None] = ContextVar("perdure_run_context", default=None)


class RunContext:
    """The run of a functional workflow, as its function and its steps see it.

    It is given to a parameter of this type, or called `ctx`; `get_run_context()` finds it elsewhere.
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
        self.board = Board(context.state if store is None else store, recorded_by(context.activation))

    @property
    def activation(self) -> ActivationPort:
        """What stands behind it."""
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
        """Ask the outside, and go on with the answer.

        Until it is given the function is left and the run may rest; then the function is entered again from the top,
        and steps that were done return what was recorded. An answer is given once; later lives have it. A step that
        asks is begun again, too.

        When the `deadline` has passed, `default` is the answer. `approves` is what will be done if the answer says so:
        ApprovalMismatchError is raised if that is another thing when the function comes back here.
        """
        place = Place(branch_place("ask"), counted=True)
        terms = Terms(deadline, default, approves)
        return self.activation.ask(request_data, response_type, request_id, terms, place=place)

    def sleep(self, until: timedelta | datetime | float) -> Coroutine[Any, Any, None]:
        """Wait so long (a timedelta, or seconds), or until a moment with a time zone. The run may rest meanwhile."""
        return self._context.sleep(until)

    async def add_event(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Tell an event of your own. A `transient` one is told to who listens now, and never recorded."""
        self.activation.tell(event, transient=transient)

    def get_state(self, key: str, default: Any = None) -> Any:
        """A value of the run's state."""
        return self.board.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Keep a value in the run's state. What a step sets is kept with its record, and lost if it fails.

        Raises ValueError.
        """
        if key.startswith("_"):
            raise ValueError(f"state key {key!r} begins with '_', which is for the engine; choose another name")
        self.board.set(key, value)

    def is_streaming(self) -> bool:
        """Whether the caller reads a stream."""
        return self._context.is_streaming()

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The further keywords that the run was given."""
        kept = self._context.get_state(RUN_KWARGS_KEY, {}).get("function_invocation_kwargs", {})
        return {**kept.get(GLOBAL_KWARGS_KEY, {}), **kept.get(self._workflow_name, {}), **self._kwargs}

    @property
    def idempotency_key(self) -> str:
        """What names this run of the function to others: the same over resumes, another in a fork."""
        return self._context.idempotency_key

    def spend(self, **amounts: float) -> None:
        """Count what was spent, by name, against the budget of the run."""
        self._context.spend(**amounts)


def get_run_context() -> RunContext | None:
    """The context of the functional workflow whose function or step is running here; None outside of one."""
    found = _current.get()
    return found if found is not None and current_activation() is found.activation else None


@contextmanager
def running(context: RunContext) -> Generator[None]:
    """Let `get_run_context` find a context."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
