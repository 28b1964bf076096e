"""The handler call that is in progress where somebody asks: for code that was not given its context."""

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
"""Begins a step, and does what is to be done around it."""

_current: ContextVar[ActivationPort | None] = ContextVar("perdure_activation", default=None)

_function: ContextVar[ActivationPort | None] = ContextVar("perdure_function", default=None)
"""The handler call of the function that a task was begun by."""

_hear: ContextVar[Hear | None] = ContextVar("perdure_hear", default=None)

enter = _current.set
"""Say what is in progress in this task and in all that it begins. The next call in the task takes its place."""


def current_activation() -> ActivationPort | None:
    """The handler call that is in progress here; None outside of a workflow, and when it has ended."""
    found = _current.get()
    return found if found is not None and found.is_running else None


@contextmanager
def of_function(activation: ActivationPort | None) -> Generator[None]:
    """Say that what is done here, and in all tasks that are begun here, is done by a function that is a workflow."""
    token = _function.set(activation)
    try:
        yield
    finally:
        _function.reset(token)


def activation_at_work() -> ActivationPort | None:
    """The handler call that is in progress here, for what has to be recorded; None outside of a workflow.

    Raises RuntimeError in a task that has outlived the function which began it: nobody would know of what it does.
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
    """Let who runs here, the function of a workflow, hear of the steps that are begun by code which is not its own."""
    token = _hear.set(hear)
    try:
        yield
    finally:
        _hear.reset(token)


def begin_step(activation: ActivationPort, call: StepCall) -> Coroutine[Any, Any, Any]:
    """A step of code that does not know who it runs in: an agent in a handler, or in the function of a workflow."""
    hear = _hear.get()
    return activation.step(call) if hear is None else hear(activation, call)


_is_shared: ContextVar[bool] = ContextVar("perdure_is_shared", default=False)
_PASSING = (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


@contextmanager
def sharing() -> Generator[None]:
    """Here, and in all tasks and threads that are begun here, the process is not the run's own."""
    token = _is_shared.set(True)
    try:
        yield
    finally:
        _is_shared.reset(token)


class _NoExit:
    """One for all: it keeps nothing."""

    def __enter__(self) -> None:
        """Nothing is set up."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            require_no_exit(error)


_NO_EXIT = _NoExit()


def require_no_exit(error: BaseException) -> None:
    """Raise RuntimeError in place of what would end a process that is shared."""
    if isinstance(error, _PASSING) or not _is_shared.get():
        return
    raise RuntimeError(
        f"the run raised {type(error).__name__}({error}), which would have ended the process that it shares with "
        "others; raise an Exception if the run is to fail"
    ) from error


def no_exit() -> AbstractContextManager[None]:
    """Around users' code. What would end a process that is shared is raised as a RuntimeError.

    It has to be as near to that code as can be: a SystemExit that leaves a task ends the event loop, whoever awaits the
    task. An interrupt is the wish of a person, and passes.
    """
    return _NO_EXIT
