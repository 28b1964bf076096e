"""What a handler can do: send, yield, ask, keep state. The runtime stands behind it through one port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Never, Protocol

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.events import WorkflowEvent

OutT = TypeVar("OutT", default=Never)
W_OutT = TypeVar("W_OutT", default=Never)


class ActivationPort(Protocol):
    """One handler call in progress, as its context sees it."""

    @property
    def source_executor_ids(self) -> Sequence[str]:
        """Where the message came from."""
        ...

    @property
    def request_id(self) -> str | None:
        """The request that is being answered, if one is."""
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

    def send(self, message: Any, target_id: str | None) -> None:
        """Queue a message for the next superstep."""
        ...

    def output(self, value: Any) -> None:
        """Tell an output."""
        ...

    def tell(self, event: WorkflowEvent[Any]) -> None:
        """Tell an event of the executor's own."""
        ...

    def request(self, data: Any, response_type: Any, request_id: str | None) -> None:
        """Open a request."""
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

    def keys(self, scope: str) -> Sequence[str]:
        """The keys of a scope as this activation sees it."""
        ...

    def private_scope(self) -> str:
        """The name of the scope that belongs to this executor alone."""
        ...


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
        return key in self._activation.keys(self._scope)

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

    async def send_message(self, message: OutT, target_id: str | None = None) -> None:
        """Send a message along the outgoing edges, or to one connected executor; it arrives in the next superstep."""
        self.activation.send(message, target_id)

    async def yield_output(self, output: W_OutT) -> None:
        """Tell an output of the workflow."""
        self.activation.output(output)

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Tell an event of your own."""
        self.activation.tell(event)

    async def request_info(self, request_data: Any, response_type: Any, *, request_id: str | None = None) -> None:
        """Ask the outside. The answer comes to the `@response_handler` of this executor, whenever it is given."""
        self.activation.request(request_data, response_type, request_id)

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
