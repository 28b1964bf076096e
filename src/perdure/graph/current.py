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

Hear: TypeAlias = "Callable[[ActivationPort, StepCall], Coroutine[Any, Any, Any]]"
"""Starts a step on behalf of the surrounding function."""

_current: ContextVar[ActivationPort | None] = ContextVar("perdure_activation", default=None)

_function: ContextVar[ActivationPort | None] = ContextVar("perdure_function", default=None)
"""The activation of the workflow function that started this task."""

_hear: ContextVar[Hear | None] = ContextVar("perdure_hear", default=None)

enter = _current.set
"""Set the current activation for this task and the tasks it starts. The next call replaces it."""


def current_activation() -> ActivationPort | None:
    """Return the activation in progress; None outside a workflow and after it has ended."""
    found = _current.get()
    return found if found is not None and found.is_running else None


@contextmanager
def of_function(activation: ActivationPort | None) -> Generator[None]:
    """Mark this block, and the tasks started in it, as part of a workflow function."""
    token = _function.set(activation)
    try:
        yield
    finally:
        _function.reset(token)


def activation_at_work() -> ActivationPort | None:
    """Return the activation in progress, for work that must be recorded; None outside a workflow.

    Raises RuntimeError in a task that outlives the function that started it: its work would not be recorded.
    """
    found, function = current_activation(), _function.get()
    if found is None and function is not None and not function.is_running:
        raise RuntimeError(
            "the function of the workflow that has begun this task has ended: what the task does now would not be "
            "recorded, and done again; await every task inside of the function"
        )
    return found


@contextmanager
def hearing(hear: Hear) -> Generator[None]:
    """Let the surrounding workflow function handle the steps that other code starts in this block."""
    token = _hear.set(hear)
    try:
        yield
    finally:
        _hear.reset(token)


def begin_step(activation: ActivationPort, call: StepCall) -> Coroutine[Any, Any, Any]:
    """Start a step from code that does not know its surroundings, such as an agent."""
    hear = _hear.get()
    return activation.step(call) if hear is None else hear(activation, call)


_is_shared: ContextVar[bool] = ContextVar("perdure_is_shared", default=False)
_PASSING = (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


@contextmanager
def sharing() -> Generator[None]:
    """Mark this block, and the tasks and threads started in it, as part of a process that several runs share."""
    token = _is_shared.set(True)
    try:
        yield
    finally:
        _is_shared.reset(token)


class _NoExit:
    """A context manager without state."""

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
        "others; raise an Exception if the run is to fail"
    ) from error


def no_exit() -> AbstractContextManager[None]:
    """Protect a shared process from user code that would end it.

    This must be as close to that code as possible: a SystemExit that leaves a task ends the event loop. A
    KeyboardInterrupt passes, because a person wants it.
    """
    return _NO_EXIT
