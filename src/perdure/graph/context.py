"""What a handler can do: send, yield, ask, wait, keep state. The runtime stands behind it through one port."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVarTuple, cast, overload

from typing_extensions import TypeVar

from perdure.graph.policy import policy_of
from perdure.graph.port import ABSENT, StepCall, Terms
from perdure.streams import pieces_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import datetime, timedelta

    from perdure.events import WorkflowEvent
    from perdure.graph.policy import Retry
    from perdure.graph.port import ActivationPort, IfInterrupted

ResultT = TypeVar("ResultT")
ArgTs = TypeVarTuple("ArgTs")
OutT = TypeVar("OutT", default=Never)
W_OutT = TypeVar("W_OutT", default=Never)


SHARED_SCOPE = ""
_PRIVATE = "private:"


def private_scope(executor_id: str) -> str:
    """The name of the scope that belongs to one executor alone."""
    return f"{_PRIVATE}{executor_id}"


def private_owner(scope: str) -> str | None:
    """The executor that a scope belongs to alone, if it does."""
    return scope.removeprefix(_PRIVATE) if scope.startswith(_PRIVATE) else None


class State:
    """A scope of a run's state, as one activation sees it.

    An activation sees what was committed, the writes of its own executor's earlier activations in this superstep,
    and its own. A mutable value is handed out as the activation's own copy: only `set` keeps a change.
    """

    __slots__ = ("_activation", "_scope")

    def __init__(self, activation: ActivationPort, scope: str = SHARED_SCOPE) -> None:
        self._activation = activation
        self._scope = scope

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        try:
            return self._activation.read(self._scope, key)
        except KeyError:
            return default

    def set(self, key: str, value: Any) -> None:
        """Keep a value; others see it from the next superstep on."""
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
            raise TypeError(f"a state key is a str, not {key!r}")
        self._activation.write(self._scope, key, value)

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self._activation.has(self._scope, key)

    def delete(self, key: str) -> None:
        """Forget a key. Raises KeyError if there is none."""
        self._activation.erase(self._scope, key)

    def keys(self) -> list[str]:
        """All keys of the scope."""
        return list(self._activation.keys(self._scope))

    def clear(self) -> None:
        """Forget every key of the scope."""
        for key in self.keys():
            self.delete(key)

    def export_state(self) -> dict[str, Any]:
        """All of the scope as a dict."""
        return {key: self._activation.read(self._scope, key) for key in self._activation.keys(self._scope)}

    def import_state(self, state: dict[str, Any]) -> None:
        """Set every key of the dict."""
        for key, value in state.items():
            self.set(key, value)


class WorkflowContext(Generic[OutT, W_OutT]):
    """What a handler is given beside its message.

    `WorkflowContext` sends and yields nothing, `WorkflowContext[T]` sends T, `WorkflowContext[T, U]` also yields U;
    `Never` stands for none, `Any` for anything.
    """

    __slots__ = ("activation",)

    def __init__(self, activation: ActivationPort) -> None:
        self.activation = activation

    async def send_message(
        self, message: OutT, target_id: str | None = None, *, delay: timedelta | float | None = None
    ) -> None:
        """Send a message along the outgoing edges, or to one connected executor; it arrives in the next superstep.

        With a `delay` (a timedelta, or seconds) it arrives when that has passed; nothing has to stay in memory for it.
        """
        self.activation.send(message, target_id, delay)

    async def yield_output(self, output: W_OutT, *, in_pieces: bool = False) -> None:
        """Tell an output of the workflow.

        With `in_pieces`, whoever reads a stream is told the updates that a response is made of. What is kept is the
        response, however it was told.
        """
        if in_pieces and self.activation.streaming:
            for piece in pieces_of(output):
                self.activation.show(piece)
        self.activation.output(output, in_pieces=in_pieces)

    async def add_event(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Tell an event of your own. A `transient` one is told to who listens now, and never recorded."""
        self.activation.tell(event, transient=transient)

    async def request_info(
        self,
        request_data: Any,
        response_type: Any,
        *,
        request_id: str | None = None,
        deadline: timedelta | datetime | None = None,
        default: Any = ABSENT,
        approves: Any = ABSENT,
    ) -> None:
        """Ask the outside. The answer comes to the `@response_handler` of this executor, whenever it is given.

        When the `deadline` has passed, `default` is the answer. `approves` is what will be done if the answer says so;
        the response handler proves with `require_approved` that it does just that.
        """
        self.activation.request(request_data, response_type, request_id, Terms(deadline, default, approves))

    def ask(
        self,
        request_data: Any,
        response_type: Any,
        *,
        request_id: str | None = None,
        deadline: timedelta | datetime | None = None,
        default: Any = ABSENT,
        approves: Any = ABSENT,
    ) -> Coroutine[Any, Any, Any]:
        """Ask the outside, and go on here with the answer.

        Until it is given the handler is left and the run may rest; then the handler is entered again from the top:
        steps return what was recorded; what it had sent and written before the question is forgotten. Steps that run
        beside it are finished first; other work that does is cancelled. A step that asks is begun again, too.

        `deadline`, `default` and `approves` are those of `request_info`; ApprovalMismatchError is raised if what is
        to be done has changed since it was approved.
        """
        return self.activation.ask(request_data, response_type, request_id, Terms(deadline, default, approves))

    def approval_digest(self, value: Any) -> str:
        """What a request says of a value that it `approves`: the same for equal values, in every process."""
        return self.activation.digest(value)

    def require_approved(self, value: Any) -> None:
        """In a response handler: raise ApprovalMismatchError unless the request was about just this value."""
        self.activation.require_approved(value)

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*ArgTs], Awaitable[ResultT]],
        *args: *ArgTs,
        key: str | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        if_interrupted: IfInterrupted = "rerun",
    ) -> Coroutine[Any, Any, ResultT]: ...
    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*ArgTs], ResultT],
        *args: *ArgTs,
        key: str | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        if_interrupted: IfInterrupted = "rerun",
    ) -> Coroutine[Any, Any, ResultT]: ...
    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        if_interrupted: IfInterrupted = "rerun",
    ) -> Coroutine[Any, Any, Any]:
        """Work that is done once: its result is on disk before it is returned, and whoever comes here again gets that.

        `fn` may be async, or a plain function, which runs in a thread; give its keywords with `functools.partial`. A
        step is known by its `name` and how many of that name were called before it, or by `key`: give one where the
        order of the calls may differ. A step that raised is not finished. `retry` and `timeout` (for each attempt;
        a plain function that is late is left to itself in its thread) are the step's own.

        `if_interrupted` says what becomes of work that a crash cut off: `"rerun"` does it again; `"ask"` asks the
        outside with an `InterruptedStep` and goes on with the `StepDecision`; a function is called with the step's
        idempotency key, and returns the result if the work was done, or `NOT_DONE`. Inside of `fn`, `step_key()` is
        that key: hand it to a payment provider, and the payment is made once, however often it is asked for.
        """
        policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        call = StepCall(name, fn, args, key, policy.retry, policy.timeout, if_interrupted)
        return self.activation.step(_sensible(call))

    def sleep(self, until: timedelta | datetime | float) -> Coroutine[Any, Any, None]:
        """Wait so long (a timedelta, or seconds), or until a moment that has a time zone.

        In a checkpointed run the handler is left, the run may rest, and when it is time the handler is entered again
        from the top: steps return what was recorded; what it had sent and written before the wait is forgotten. Steps
        that run beside the wait are finished first; other work that does is cancelled.
        """
        return self.activation.sleep(until)

    def spend(self, **amounts: float) -> None:
        """Count what this activation has spent, by name, against the budget of the run."""
        self.activation.spend(amounts)

    @property
    def run_id(self) -> str:
        """The run that this call of the handler is part of.

        In a sub-workflow the names of the executors that it is inside of are added, with slashes.
        """
        return self.activation.run_id

    @property
    def idempotency_key(self) -> str:
        """What names this call of the handler to others: the same over retries and resumes, another in a fork.

        Hand it to a service that does a thing once for each key, such as a payment provider.
        """
        return self.activation.idempotency_key

    def get_state(self, key: str, default: Any = None) -> Any:
        """A value of the shared state."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Keep a value in the shared state; other executors see it from the next superstep on."""
        self.state.set(key, value)

    @property
    def state(self) -> State:
        """The shared state."""
        return State(self.activation)

    def scope(self, name: str | None = None) -> State:
        """A named scope of the state; without a name, the one that belongs to this executor alone."""
        if name is None:
            return State(self.activation, self.activation.private_scope())
        if not name:
            raise ValueError("a scope's name is not empty; scope() without a name is the executor's own")
        return State(self.activation, f"named:{name}")

    @property
    def source_executor_ids(self) -> list[str]:
        """The executors that the message came from."""
        return list(self.activation.source_executor_ids)

    def get_source_executor_id(self) -> str:
        """The one executor that the message came from. Raises RuntimeError if there are several."""
        sources = self.activation.source_executor_ids
        if len(sources) != 1:
            raise RuntimeError(
                f"the message came from several executors: {', '.join(sources)}; use source_executor_ids"
            )
        return sources[0]

    @property
    def request_id(self) -> str | None:
        """In a response handler: the request that was answered."""
        return self.activation.request_id

    def is_streaming(self) -> bool:
        """Whether the caller reads a stream."""
        return self.activation.streaming

    def get_sent_messages(self) -> list[Any]:
        """What this call of the handler has sent."""
        return list(self.activation.sent)

    def get_yielded_outputs(self) -> list[Any]:
        """What this call of the handler has yielded."""
        return list(self.activation.yielded)


def _sensible(call: StepCall) -> StepCall:
    """The same call. Raises TypeError, ValueError: users' code is not always checked."""
    name, fn, key, choice = (cast("object", given) for given in (call.name, call.fn, call.key, call.if_interrupted))
    if not isinstance(name, str) or not name:
        raise ValueError(f"a step has a name that is not empty, not {name!r}")
    if key is not None and (not isinstance(key, str) or not key):
        raise ValueError(f"step {name!r}: a key is a str that is not empty, not {key!r}")
    if inspect.iscoroutine(fn):
        fn.close()
        raise TypeError(f"step {name!r} was given a call in place of a function: write step({name!r}, fn, *args)")
    if not callable(fn):
        raise TypeError(f"step {name!r}: {fn!r} is no function")
    if choice not in ("rerun", "ask") and not callable(choice):
        raise ValueError(f"step {name!r}: if_interrupted is 'rerun', 'ask' or a function, not {choice!r}")
    return call
