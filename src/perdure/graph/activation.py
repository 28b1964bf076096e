"""The current activation: requests and steps as a handler makes them, and the activation that runs here.

The engine's `ActivationRecorder` implements an activation; this package knows only its type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, TypeVar

from perdure.data_classes import new_dict, new_set

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from perdure.engine import ActivationRecorder
    from perdure.graph.policy import Retry


T = TypeVar("T")


class Absent:
    """Stands for an argument that was not given, because None may be given."""

    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final = Absent()

# The policy for a step that a crash interrupted: rerun it, ask, or call a function that finds out.
IfInterrupted: TypeAlias = Literal["rerun", "ask"] | Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a request: its deadline, the default answer, and the value that an answer approves.

    `approved_digest` is the digest of `approves`, if only that is known, as for a request that is passed on.
    """

    deadline: datetime | timedelta | None = None
    default: Any = ABSENT
    approves: Any = ABSENT
    approved_digest: str | None = None


class RequestTerms(TypedDict, total=False):
    """The terms of a request as a program gives them.

    Attributes:
        deadline: The time after which `default` is the answer.
        default: The answer after the deadline.
        approves: The value that an answer approves: what will be done then.
    """

    deadline: timedelta | datetime | None
    default: Any
    approves: Any


@dataclass(frozen=True, slots=True)
class StepCall:
    """A step as a handler requested it. `timeout` is in seconds.

    Attributes:
        is_stable: True if the name and the arguments identify the work, though the function is a closure.
        is_function: True if `fn` is a functional workflow, which may be suspended and is re-entered as a handler is.
        found: Converts a result that was found out after an interruption, given its place, for recording.
        has_failed: Returns True for a result that reports a failure without raising.
        event: The type of the event about its end. None for a part of another step: failures name that one.
        about: Fields of the event's StepInfo.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    key: str | None = None
    retry: Retry | None = None
    timeout: float | None = None
    if_interrupted: IfInterrupted = "rerun"
    is_stable: bool = False
    is_function: bool = False
    found: Callable[[Any, str], Any] | None = None
    has_failed: Callable[[Any], bool] | None = None
    event: str | None = "step_completed"
    about: Mapping[str, Any] = field(default_factory=new_dict)


@dataclass(slots=True)
class Numbering:
    """Numbers for things of one name. Returned numbers are used again."""

    _next: int = 0
    _free: set[int] = field(default_factory=new_set)

    @property
    def used(self) -> int:
        """The number of numbers in use."""
        return self._next - len(self._free)

    def take(self) -> int:
        """Return the lowest free number."""
        if self._free:
            number = min(self._free)
            self._free.remove(number)
            return number
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        """Return a number for reuse."""
        self._free.add(number)

    def take_again(self, number: int) -> int:
        """Take a returned number again if it is still free, else another one."""
        if number not in self._free:
            return self.take()
        self._free.remove(number)
        return number


BeginStep: TypeAlias = "Callable[[ActivationRecorder, StepCall], Coroutine[Any, Any, Any]]"

_current: ContextVar[ActivationRecorder | None] = ContextVar("perdure_activation", default=None)

# The activation of the function that started the current task.
_function: ContextVar[ActivationRecorder | None] = ContextVar("perdure_function", default=None)

_begin_step: ContextVar[BeginStep | None] = ContextVar("perdure_begin_step", default=None)

# Set the activation of this task, and of all tasks that it starts. The next call in the task replaces it.
enter = _current.set


def current_activation() -> ActivationRecorder | None:
    """Return the activation that runs here; None outside of a workflow, and after its end."""
    found = _current.get()
    return found if found is not None and found.is_running else None


@contextmanager
def use_value(variable: ContextVar[T], value: T) -> Generator[None]:
    """Set a context variable inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def in_function(activation: ActivationRecorder | None) -> AbstractContextManager[None]:
    """Mark the code that runs here, and all tasks that it starts, as part of a functional workflow."""
    return use_value(_function, activation)


def activation_at_work() -> ActivationRecorder | None:
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


def intercept_steps(begin: BeginStep) -> AbstractContextManager[None]:
    """Let `begin` start the steps of code that does not know which workflow it runs in, such as an agent."""
    return use_value(_begin_step, begin)


def begin_step(activation: ActivationRecorder, call: StepCall) -> Coroutine[Any, Any, Any]:
    """Start a step for code that does not know which workflow it runs in: a handler, or a functional workflow."""
    begin = _begin_step.get()
    return activation.step(call) if begin is None else begin(activation, call)


_is_shared: ContextVar[bool] = ContextVar("perdure_is_shared", default=False)
_PASSING = (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


def sharing() -> AbstractContextManager[None]:
    """Mark the process as shared with other runs, here and in all tasks and threads that start here."""
    return use_value(_is_shared, value=True)


def require_no_exit(error: BaseException) -> None:
    """Raise RuntimeError in place of an error that would end a shared process."""
    if isinstance(error, _PASSING) or not _is_shared.get():
        return
    raise RuntimeError(
        f"the run raised {type(error).__name__}({error}), which would have ended the process that it shares with "
        "other runs; raise an Exception to let the run fail"
    ) from error


@contextmanager
def no_exit() -> Generator[None]:
    """Run users' code in this block: what would end a shared process is raised as a RuntimeError.

    Put it as close to that code as possible: a SystemExit that leaves a task ends the event loop, even if the task is
    awaited. A KeyboardInterrupt comes from a person, and passes.
    """
    try:
        yield
    except BaseException as error:
        require_no_exit(error)
        raise
