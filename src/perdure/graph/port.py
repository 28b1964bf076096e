"""What stands behind a handler's context: the port that the runtime fills, and the values that pass through it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from perdure.data import frozen, mutable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.events import WorkflowEvent
    from perdure.graph.policy import Retry


class Absent:
    """Stands for an argument that was not given, since None may be one."""

    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final = Absent()

IfInterrupted: TypeAlias = "Literal['rerun', 'ask'] | Callable[[str], Any]"
"""What becomes of a step that a crash interrupted: it is run again, somebody is asked, or a function finds out."""


@frozen
class Terms:
    """What a request comes with: until when it waits, the answer that stands then, and what is approved by it."""

    deadline: datetime | timedelta | None = None
    default: Any = ABSENT
    approves: Any = ABSENT
    approved_digest: str | None = None
    """What `approves` comes to, where only that is known: of a request that is passed on."""


@frozen
class Place:
    """Where a handler asks, if counting its questions does not say it: `key` names the place.

    `counted` lets the request have the id `auto::<n>` in place of one that is derived.
    """

    key: str | None = None
    counted: bool = False


@frozen
class Scope:
    """That a step is the function of a workflow: what that calls is named after it, and it can be left to wait.

    `reads` tells the text of the function from others; None if it is not known.
    """

    reads: str | None


@frozen
class StepCall:
    """A step as a handler asked for it. `timeout` is in seconds."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    key: str | None = None
    retry: Retry | None = None
    timeout: float | None = None
    if_interrupted: IfInterrupted = "rerun"
    moves: bool = False
    """Whether its record is looked for elsewhere, by its arguments, if the program was changed since it was made."""
    scope: Scope | None = None
    found: Callable[[Any, str], Any] | None = None
    """What is recorded of a result that was found out after an interruption, if not that alone: with where it is."""
    has_failed: Callable[[Any], bool] | None = None
    """Whether a result tells of a failure, though nothing is raised."""


class ActivationPort(Protocol):
    """One handler call in progress, as its context sees it."""

    @property
    def is_running(self) -> bool:
        """Whether the handler has not ended."""
        ...

    @property
    def is_left(self) -> bool:
        """Whether the handler is being left, to be entered again: what is cancelled now was cancelled by nobody."""
        ...

    @property
    def source_executor_ids(self) -> Sequence[str]:
        """Where the message came from."""
        ...

    @property
    def request_id(self) -> str | None:
        """The request that is being answered, if one is."""
        ...

    @property
    def run_id(self) -> str:
        """The run that it is part of; of a sub-workflow with the names of the executors that it is inside of."""
        ...

    @property
    def idempotency_key(self) -> str:
        """What names this activation to others: the same however often it is entered."""
        ...

    @property
    def streaming(self) -> bool:
        """Whether the caller reads a stream."""
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
        """Queue a message for the next superstep, or for later."""
        ...

    def output(self, value: Any, *, in_pieces: bool = False) -> None:
        """Tell an output. Of one in pieces these are shown to who reads a stream, and it is only recorded then."""
        ...

    def show(self, value: Any) -> None:
        """Tell a piece of an output to who reads a stream now. It is never recorded."""
        ...

    def tell(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Tell an event of the executor's own."""
        ...

    def request(self, data: Any, response_type: Any, request_id: str | None, terms: Terms = ...) -> None:
        """Open a request."""
        ...

    def ask(
        self, data: Any, response_type: Any, request_id: str | None, terms: Terms = ..., *, place: Place = ...
    ) -> Coroutine[Any, Any, Any]:
        """A question, to be awaited: until it is answered the handler is left."""
        ...

    def is_open(self, request_id: str) -> bool:
        """Whether a request of this id waits for its answer."""
        ...

    def digest(self, value: Any) -> str:
        """What tells a value that is approved from any other."""
        ...

    def require_approved(self, value: Any) -> None:
        """Raise ApprovalMismatchError unless the request that is being answered was about this value."""
        ...

    def step(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """A step, to be awaited; which one it is, is settled by the call."""
        ...

    def number(self, name: str) -> int:
        """How often something of this name was begun before: by this attempt, or by the step that is running here."""
        ...

    @property
    def memo(self) -> dict[str, object]:
        """What attempts at this handler call leave for those after them, in this life. It is never recorded."""
        ...

    def numbering(self, name: str) -> Numbering:
        """Numbers for things of this name: those of this attempt, or of the step that is running here."""
        ...

    @property
    def branch(self) -> str:
        """Which of the tasks of a function this is called in; nothing in its own, and where there is no function."""
        ...

    def sleep(self, until: datetime | timedelta | float) -> Coroutine[Any, Any, None]:
        """A wait, to be awaited."""
        ...

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Count what was spent."""
        ...

    def require_budget(self) -> None:
        """Raise BudgetExceededError if the run has nothing left to spend of something."""
        ...

    def read(self, scope: str, key: str) -> Any:
        """A value of the state. Raises KeyError."""
        ...

    def write(self, scope: str, key: str, value: Any) -> None:
        """Stage a value."""
        ...

    def erase(self, scope: str, key: str) -> None:
        """Stage the removal of a value. Raises KeyError."""
        ...

    def has(self, scope: str, key: str) -> bool:
        """Whether a key has a value, as this activation sees it."""
        ...

    def keys(self, scope: str) -> Sequence[str]:
        """The keys of a scope as this activation sees it."""
        ...

    def private_scope(self) -> str:
        """The name of the scope that belongs to this executor alone."""
        ...

    def common_scope(self) -> str | None:
        """The scope of what this executor has in common with others; None if it has nothing."""
        ...


@mutable
class Numbering:
    """The numbers of one kind of thing."""

    _next: int = 0
    _free: set[int] = field(default_factory=set[int])

    @property
    def used(self) -> int:
        """How many are taken."""
        return self._next - len(self._free)

    def take(self) -> int:
        """The lowest number that is free."""
        if self._free:
            number = min(self._free)
            self._free.remove(number)
            return number
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        """Let another one have a number."""
        self._free.add(number)

    def take_again(self, number: int) -> int:
        """A number that was given back, if nobody has taken it meanwhile; else another one."""
        if number not in self._free:
            return self.take()
        self._free.remove(number)
        return number
