"""The current activation, for code that has no context; and protection of shared processes against `SystemExit`."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextlib import AbstractContextManager

    from perdure.graph.port import ActivationPort, StepCall

BeginStep: TypeAlias = "Callable[[ActivationPort, StepCall], Coroutine[Any, Any, Any]]"

_current: ContextVar[ActivationPort | None] = ContextVar("perdure_activation", default=None)

_function: ContextVar[ActivationPort | None] = ContextVar("perdure_function", default=None)
"""The activation of the function that started the current task."""

_begin_step: ContextVar[BeginStep | None] = ContextVar("perdure_begin_step", default=None)

enter = _current.set
"""Set the activation of this task, and of all tasks that it starts. The next call in the task replaces it."""


def current_activation() -> ActivationPort | None:
    """Return the activation that runs here; None outside of a workflow, and after its end."""
    found = _current.get()
    return found if found is not None and found.is_running else None


@contextmanager
def in_function(activation: ActivationPort | None) -> Generator[None]:
    """Mark the code that runs here, and all tasks that it starts, as part of a functional workflow."""
    token = _function.set(activation)
    try:
        yield
    finally:
        _function.reset(token)


def activation_at_work() -> ActivationPort | None:
    """Return the activation that runs here, for work that must be recorded; None outside of a workflow.

    Raises RuntimeError in a task that has outlived the function which started it: its work would not be recorded.
    """
    found, function = current_activation(), _function.get()
    if found is None and function is not None and not function.is_running:
        raise RuntimeError(
            "the workflow function that started this task has ended, so its work would not be recorded and would be "
            "repeated; await every task inside the function"
        )
    return found


@contextmanager
def intercept_steps(begin: BeginStep) -> Generator[None]:
    """Let `begin` start the steps of code that does not know which workflow it runs in, such as an agent."""
    token = _begin_step.set(begin)
    try:
        yield
    finally:
        _begin_step.reset(token)


def begin_step(activation: ActivationPort, call: StepCall) -> Coroutine[Any, Any, Any]:
    """Start a step for code that does not know which workflow it runs in: a handler, or a functional workflow."""
    begin = _begin_step.get()
    return activation.step(call) if begin is None else begin(activation, call)


_is_shared: ContextVar[bool] = ContextVar("perdure_is_shared", default=False)
_PASSING = (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


@contextmanager
def sharing() -> Generator[None]:
    """Mark the process as shared with other runs, here and in all tasks and threads that start here."""
    token = _is_shared.set(True)
    try:
        yield
    finally:
        _is_shared.reset(token)


class _NoExit:
    """A context manager without state, so that one instance is enough."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            require_no_exit(error)


_NO_EXIT = _NoExit()


def require_no_exit(error: BaseException) -> None:
    """Raise RuntimeError in place of an error that would end a shared process."""
    if isinstance(error, _PASSING) or not _is_shared.get():
        return
    raise RuntimeError(
        f"the run raised {type(error).__name__}({error}), which would have ended the process that it shares with "
        "other runs; raise an Exception to let the run fail"
    ) from error


def no_exit() -> AbstractContextManager[None]:
    """Return a context manager for users' code: what would end a shared process is raised as a RuntimeError.

    Put it as close to that code as possible: a SystemExit that leaves a task ends the event loop, even if the task is
    awaited. A KeyboardInterrupt comes from a person, and passes.
    """
    return _NO_EXIT
