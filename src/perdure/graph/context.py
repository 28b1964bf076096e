"""The context of a handler: send, yield, ask, wait, keep state. The engine implements it in `ActivationRecorder`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, Never, TypedDict, TypeVarTuple, overload

from typing_extensions import TypeVar, Unpack

from perdure.graph.activation import IfInterrupted, RequestTerms, StepCall, Terms
from perdure.graph.policy import Retry, policy_of
from perdure.streams import pieces_of
from perdure.typenames import require_unicode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import datetime, timedelta

    from perdure.engine import ActivationRecorder
    from perdure.events import WorkflowEvent

ResultT = TypeVar("ResultT")
ArgTs = TypeVarTuple("ArgTs")
OutT = TypeVar("OutT", default=Never)
W_OutT = TypeVar("W_OutT", default=Never)


SHARED_SCOPE = ""
_PRIVATE = "private:"


def private_scope(executor_id: str) -> str:
    """Return the name of the scope that belongs to one executor."""
    return f"{_PRIVATE}{executor_id}"


def private_owner(scope: str) -> str | None:
    """Return the executor that a private scope belongs to; None for other scopes."""
    return scope.removeprefix(_PRIVATE) if scope.startswith(_PRIVATE) else None


class State:
    """A scope of a run's state, as one activation sees it.

    An activation sees committed values, earlier writes of the same executor in this superstep, and its own writes.
    A mutable value is a copy: only `set` keeps a change.
    """

    __slots__ = ("_activation", "_copies", "_scope")

    def __init__(self, activation: ActivationRecorder, scope: str = SHARED_SCOPE, *, copies: bool = True) -> None:
        self._activation = activation
        self._scope = scope
        self._copies = copies

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        try:
            return self._activation.read(self._scope, key)
        except KeyError:
            return default

    def set(self, key: str, value: Any) -> None:
        """Set a value, of which a copy is kept. Other executors see it from the next superstep on.

        Raises EncodeError, which is a TypeError, if the value can't be copied or stored.
        """
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - programs may be unchecked
            raise TypeError(f"a state key must be a str, not {key!r}")
        self._activation.write(self._scope, key, value, copies=self._copies)

    def has(self, key: str) -> bool:
        """Return True if the key has a value."""
        return self._activation.has(self._scope, key)

    def delete(self, key: str) -> None:
        """Delete a key. Raises KeyError if it does not exist."""
        self._activation.erase(self._scope, key)

    def keys(self) -> list[str]:
        """Return all keys of the scope."""
        return list(self._activation.keys(self._scope))

    def clear(self) -> None:
        """Delete every key of the scope."""
        for key in self.keys():
            self.delete(key)

    def export_state(self) -> dict[str, Any]:
        """Return the whole scope as a dict."""
        return {key: self._activation.read(self._scope, key) for key in self._activation.keys(self._scope)}

    def import_state(self, state: dict[str, Any]) -> None:
        """Set every key of a dict."""
        for key, value in state.items():
            self.set(key, value)


class StepOptions(TypedDict, total=False):
    """The options of `WorkflowContext.step`."""

    key: str | None
    retry: Retry | None
    timeout: timedelta | float | None
    if_interrupted: IfInterrupted


class WorkflowContext(Generic[OutT, W_OutT]):
    """The context that a handler gets with its message.

    `WorkflowContext` sends and yields nothing, `WorkflowContext[T]` sends T, `WorkflowContext[T, U]` also yields U.
    `Never` stands for nothing, `Any` for anything.
    """

    __slots__ = ("activation",)

    def __init__(self, activation: ActivationRecorder) -> None:
        self.activation = activation

    async def send_message(
        self, message: OutT, target_id: str | None = None, *, delay: timedelta | float | None = None
    ) -> None:
        """Send a message along the outgoing edges, or to one connected executor. It arrives in the next superstep.

        With a `delay` (a timedelta, or seconds) it arrives later. The process need not keep running until then.
        """
        self.activation.send(message, target_id, delay)

    async def yield_output(self, output: W_OutT, *, in_pieces: bool = False) -> None:
        """Emit an output of the workflow.

        With `in_pieces`, a reader of a stream gets the updates that form the response. The response itself is stored.
        """
        if in_pieces and self.activation.streaming:
            for piece in pieces_of(output):
                self.activation.show(piece)
        self.activation.output(output, in_pieces=in_pieces)

    async def add_event(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Emit a custom event. A `transient` event reaches current listeners only and is not stored."""
        self.activation.emit(event, transient=transient)

    async def request_info(
        self, request_data: Any, response_type: Any, *, request_id: str | None = None, **terms: Unpack[RequestTerms]
    ) -> None:
        """Ask a person or another system. The executor's `@response_handler` gets the answer, whenever it is given.

        After the `deadline`, `default` is the answer. `approves` is what will be done if the answer is yes; the
        response handler proves with `require_approved` that it does exactly that.
        """
        self.activation.request(request_data, response_type, request_id, Terms(**terms))

    def ask(
        self, request_data: Any, response_type: Any, *, request_id: str | None = None, **terms: Unpack[RequestTerms]
    ) -> Coroutine[Any, Any, Any]:
        """Ask a person or another system, and continue here with the answer.

        Until then the activation is suspended and the run may become idle. With the answer, the handler is re-entered
        from the top: steps return their recorded results, and what it sent and wrote before the question is discarded.
        Steps that run in parallel finish first; other parallel work is cancelled. A step that asks is started again.

        `deadline`, `default` and `approves` are as in `request_info`. Raises ApprovalMismatchError if what is to be
        done has changed since it was approved.
        """
        return self.activation.ask(request_data, response_type, request_id, Terms(**terms))

    def approval_digest(self, value: Any) -> str:
        """Return the digest that a request stores of the value it `approves`. Equal values have equal digests."""
        return self.activation.digest(value)

    def require_approved(self, value: Any) -> None:
        """Raise ApprovalMismatchError unless the answered request approved exactly this value."""
        self.activation.require_approved(value)

    @overload
    def step(
        self, name: str, fn: Callable[[*ArgTs], Awaitable[ResultT]], *args: *ArgTs, **options: Unpack[StepOptions]
    ) -> Coroutine[Any, Any, ResultT]: ...
    @overload
    def step(
        self, name: str, fn: Callable[[*ArgTs], ResultT], *args: *ArgTs, **options: Unpack[StepOptions]
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
        """Run work once. Its result is durable before it is returned, and a re-entered handler gets it again.

        `fn` may be async, or a plain function, which runs in a thread; pass keywords with `functools.partial`. A step
        is identified by its `name` and the number of earlier calls with that name, or by `key`: give one where the
        order of calls may differ. A step that raised is not finished. `retry` and `timeout` apply to this step; a plain
        function that exceeds its timeout continues in its thread.

        `if_interrupted` decides what happens after a crash in the middle of the step: `"rerun"` runs it again; `"ask"`
        asks with an `InterruptedStep` and follows the `StepDecision`; a function is called with the step's idempotency
        key and returns the result if the work was done, or `NOT_DONE`. Inside `fn`, `step_key()` returns that key: pass
        it to a payment provider, and the payment is made once.
        """
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] - programs may be unchecked
            raise ValueError(f"a step needs a name that is not empty, not {name!r}")
        if key is not None and (not isinstance(key, str) or not key):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"step {name!r}: a key must be a str that is not empty, not {key!r}")
        require_unicode("step name", name)
        require_unicode("step key", key or "")
        if inspect.iscoroutine(fn):
            fn.close()
            raise TypeError(f"step {name!r} got a call instead of a function: write step({name!r}, fn, *args)")
        if not callable(fn):
            raise TypeError(f"step {name!r}: {fn!r} is not a function")
        if if_interrupted not in ("rerun", "ask") and not callable(if_interrupted):
            raise ValueError(
                f"step {name!r}: if_interrupted must be 'rerun', 'ask' or a function, not {if_interrupted!r}"
            )
        policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        return self.activation.step(StepCall(name, fn, args, key, policy.retry, policy.timeout, if_interrupted))

    def sleep(self, until: timedelta | datetime | float) -> Coroutine[Any, Any, None]:
        """Wait for a duration (a timedelta, or seconds), or until a moment with a time zone.

        In a checkpointed run the activation is suspended and the run may become idle. When the time has come, the
        handler is re-entered from the top: steps return their recorded results, and what it sent and wrote before the
        wait is discarded. Steps that run in parallel finish first; other parallel work is cancelled.
        """
        return self.activation.sleep(until)

    def spend(self, **amounts: float) -> None:
        """Report spending of this activation, by resource, against the budget of the run."""
        self.activation.spend(amounts)

    @property
    def run_id(self) -> str:
        """The id of the run.

        In a sub-workflow the ids of the enclosing executors are appended, with slashes.
        """
        return self.activation.run_id

    @property
    def idempotency_key(self) -> str:
        """A key for this activation: the same across retries and resumes, another one in a fork.

        Pass it to a service that does a thing once per key, such as a payment provider.
        """
        return self.activation.idempotency_key

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return a value of the shared state."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Set a value in the shared state, of which a copy is kept. Other executors see it from the next superstep on.

        Raises EncodeError, which is a TypeError, if the value can't be copied or stored.
        """
        self.state.set(key, value)

    @property
    def state(self) -> State:
        """The shared state."""
        return State(self.activation)

    def scope(self, name: str | None = None) -> State:
        """Return a named scope of the state, or the executor's private scope if no name is given."""
        if name is None:
            return State(self.activation, self.activation.private_scope())
        if not name:
            raise ValueError("a scope's name must not be empty; scope() without a name is the executor's own")
        return State(self.activation, f"named:{require_unicode('scope name', name)}")

    @property
    def source_executor_ids(self) -> list[str]:
        """The executors that sent the message."""
        return list(self.activation.source_executor_ids)

    def get_source_executor_id(self) -> str:
        """Return the only executor that sent the message. Raises RuntimeError if there are several."""
        sources = self.activation.source_executor_ids
        if len(sources) != 1:
            raise RuntimeError(
                f"the message came from several executors: {', '.join(sources)}; use source_executor_ids"
            )
        return sources[0]

    @property
    def request_id(self) -> str | None:
        """The answered request, in a response handler."""
        return self.activation.request_id

    def is_streaming(self) -> bool:
        """Return True if the caller reads a stream."""
        return self.activation.streaming

    def get_runtime_tools(self) -> list[Any] | None:
        """Return the tools that were given to `run(tools=...)`; None if there are none."""
        tools = self.activation.tools
        return None if tools is None else list(tools)

    def get_sent_messages(self) -> list[Any]:
        """Return the messages that this activation has sent."""
        return list(self.activation.sent)

    def get_yielded_outputs(self) -> list[Any]:
        """Return the outputs that this activation has yielded."""
        return list(self.activation.yielded)
