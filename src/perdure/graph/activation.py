"""An activation in progress: the port between a handler's context and the engine, and the current activation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

from perdure.data_classes import new_set

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Generator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime, timedelta

    from perdure.events import WorkflowEvent
    from perdure.graph.policy import Retry


T = TypeVar("T")


class Absent:
    """Stands for an argument that was not given, because None may be given."""

    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final = Absent()

IfInterrupted: TypeAlias = Literal["rerun", "ask"] | Callable[[str], Any]
"""The policy for a step that a crash interrupted: rerun it, ask, or call a function that finds out."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a request: its deadline, the default answer, and the value that an answer approves."""

    deadline: datetime | timedelta | None = None
    default: Any = ABSENT
    approves: Any = ABSENT
    approved_digest: str | None = None
    """The digest of `approves`, if only that is known, as for a request that is passed on."""


@dataclass(frozen=True, slots=True)
class StepCall:
    """A step as a handler requested it. `timeout` is in seconds."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    key: str | None = None
    retry: Retry | None = None
    timeout: float | None = None
    if_interrupted: IfInterrupted = "rerun"
    is_stable: bool = False
    """True if the name and the arguments identify the work, though the function is a closure."""
    is_function: bool = False
    """True if `fn` is a functional workflow, which may be suspended and is re-entered as a handler is."""
    found: Callable[[Any, str], Any] | None = None
    """Converts a result that was found out after an interruption, given its place, for recording."""
    has_failed: Callable[[Any], bool] | None = None
    """Returns True for a result that reports a failure without raising."""


class ActivationPort(Protocol):
    """An activation in progress, as its context sees it."""

    @property
    def is_running(self) -> bool:
        """True until the handler has ended."""
        ...

    @property
    def is_suspending(self) -> bool:
        """True while the activation is being suspended, so that cancellations come from the engine."""
        ...

    @property
    def source_executor_ids(self) -> Sequence[str]:
        """The executors that sent the message."""
        ...

    @property
    def request_id(self) -> str | None:
        """The request that is being answered, if any."""
        ...

    @property
    def run_id(self) -> str:
        """The run id; in a sub-workflow, followed by the ids of the enclosing executors."""
        ...

    @property
    def idempotency_key(self) -> str:
        """A key for this activation, the same for every attempt."""
        ...

    @property
    def streaming(self) -> bool:
        """True if the caller reads a stream."""
        ...

    @property
    def sent(self) -> Sequence[Any]:
        """The messages sent so far."""
        ...

    @property
    def yielded(self) -> Sequence[Any]:
        """The outputs yielded so far."""
        ...

    def send(self, message: Any, target_id: str | None, delay: timedelta | float | None = None) -> None:
        """Queue a message for the next superstep or for later."""
        ...

    def output(self, value: Any, *, in_pieces: bool = False) -> None:
        """Emit an output. If `in_pieces`, stream readers have seen its pieces, so it is only recorded."""
        ...

    def show(self, value: Any) -> None:
        """Emit a piece of an output to stream readers. It is not recorded."""
        ...

    def take_back(self, pieces: Sequence[Any]) -> None:
        """Emit that these pieces of an output don't count."""
        ...

    def emit(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Emit a custom event."""
        ...

    def request(self, data: Any, response_type: Any, request_id: str | None, terms: Terms = ...) -> None:
        """Open a request."""
        ...

    def ask(
        self, data: Any, response_type: Any, request_id: str | None, terms: Terms = ..., *, is_numbered: bool = ...
    ) -> Coroutine[Any, Any, Any]:
        """Ask a question, to be awaited: the handler is suspended until the answer is there.

        `is_numbered` lets the request have the id `auto::<n>`.
        """
        ...

    def is_open(self, request_id: str) -> bool:
        """Return True if a request with this id is open."""
        ...

    def digest(self, value: Any) -> str:
        """Return the digest of a value to approve."""
        ...

    def require_approved(self, value: Any) -> None:
        """Raise ApprovalMismatchError unless the answered request approved this value."""
        ...

    def step(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """Return an awaitable step. Its identity is fixed by this call."""
        ...

    def number(self, name: str) -> int:
        """Return how often this name was used before, in this attempt or in the running step."""
        ...

    def numbering(self, name: str) -> Numbering:
        """Return the numbering for a name, in this attempt or in the running step."""
        ...

    def turn_key(self, make_key: Callable[[str], str]) -> str:
        """Return the key of an agent's turn: `make_key("")`, unless an earlier version has recorded another one.

        That one was made of the path of a task.
        """
        ...

    def sleep(self, until: datetime | timedelta | float) -> Coroutine[Any, Any, None]:
        """Return an awaitable wait."""
        ...

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Report spending."""
        ...

    @property
    def left(self) -> Mapping[str, float]:
        """Return what is left of the budget, by resource."""
        ...

    def reserve(self, resources: Collection[str]) -> AbstractAsyncContextManager[None]:
        """Make a call inside a step while what it may spend of these resources is reserved.

        Raises BudgetExceededError if a budget is used up.
        """
        ...

    def warn_once_per_run(self, text: str) -> None:
        """Emit a warning event, once for parallel activations and sub-workflows."""
        ...

    def read(self, scope: str, key: str) -> Any:
        """Return a value of the state. Raises KeyError."""
        ...

    def write(self, scope: str, key: str, value: Any) -> None:
        """Stage a value."""
        ...

    def erase(self, scope: str, key: str) -> None:
        """Stage the removal of a value. Raises KeyError."""
        ...

    def has(self, scope: str, key: str) -> bool:
        """Return True if a key has a value, as this activation sees it."""
        ...

    def keys(self, scope: str) -> Sequence[str]:
        """Return the keys of a scope, as this activation sees it."""
        ...

    def private_scope(self) -> str:
        """Return the name of the executor's private scope."""
        ...

    def common_scope(self) -> str | None:
        """Return the scope of the object that this executor shares with others; None if there is none."""
        ...


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
def use_value(variable: ContextVar[T], value: T) -> Generator[None]:
    """Set a context variable inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def in_function(activation: ActivationPort | None) -> AbstractContextManager[None]:
    """Mark the code that runs here, and all tasks that it starts, as part of a functional workflow."""
    return use_value(_function, activation)


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


def intercept_steps(begin: BeginStep) -> AbstractContextManager[None]:
    """Let `begin` start the steps of code that does not know which workflow it runs in, such as an agent."""
    return use_value(_begin_step, begin)


def begin_step(activation: ActivationPort, call: StepCall) -> Coroutine[Any, Any, Any]:
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
