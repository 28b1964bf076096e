"""One handler call: it collects what the handler does through its context, and tells it live."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.graph.context import SHARED_SCOPE, private_scope
from perdure.graph.executor import wiring
from perdure.kernel.effects import Done, Effects, Unrouted, Write
from perdure.kernel.snapshot import Output, Request
from perdure.typenames import describe, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perdure.checkpoint.values import Values
    from perdure.graph.definition import Graph, Reducer
    from perdure.graph.executor import Executor
    from perdure.kernel.effects import Activation
    from perdure.kernel.snapshot import Snapshot, StateKey
    from perdure.runtime.journal import Journal

FRAMEWORK = WorkflowEventSource.FRAMEWORK
RUN_KWARGS_KEY = "_workflow_run_kwargs"
_ENGINE_ONLY = frozenset({"output", "intermediate", "started", "status", "failed"})


@dataclass(slots=True)
class Surroundings:
    """What all activations of a superstep share."""

    graph: Graph
    snapshot: Snapshot
    values: Values
    tell: Callable[[WorkflowEvent[Any]], None]
    scope_id: str
    """Names run, branch and superstep, so that ids derived from it are the same in every life."""
    run_kwargs: dict[str, Any]
    """The kwargs of the run as they were given, those that are not stored included."""
    journal: Journal
    """Of this superstep."""
    streaming: bool = False
    is_checkpointed: bool = False
    overlays: dict[str, dict[StateKey, Write]] = field(default_factory=dict[str, "dict[StateKey, Write]"])
    """By executor: the writes of its earlier activations in this superstep."""
    children: dict[str, Snapshot] = field(default_factory=dict[str, "Snapshot"])
    """By executor: the sub-workflow as its earlier activations in this superstep left it."""
    opened: set[str] = field(default_factory=set[str])
    """The ids of the requests that this superstep has opened so far."""

    def take_in(self, done: Done) -> None:
        """Let later activations of the same executor see what one has done."""
        executor_id = done.effects.activation.executor_id
        self.overlays.setdefault(executor_id, {}).update((write.key, write) for write in done.effects.writes)
        self.opened.update(request.id for request in done.effects.requests)
        if done.effects.child is not None:
            self.children[executor_id] = done.effects.child


class ActivationRecorder:
    """The context's port for one activation, and the maker of its effects."""

    def __init__(self, activation: Activation, executor: Executor, around: Surroundings) -> None:
        self.activation = activation
        self.executor = executor
        self.around = around
        self.child: Snapshot | None = None
        self._sent: list[tuple[Any, str | None]] = []
        self._outputs: list[tuple[Any, Any]] = []
        self._yielded: list[Any] = []
        self._requests: list[tuple[str, object, Any]] = []
        self._own: dict[StateKey, Any] = {}
        self._erased: set[StateKey] = set()
        self._updates: dict[StateKey, list[object | None]] = {}
        self._is_over = False
        self.message: Any = self._message()

    def _require_running(self) -> None:
        if self._is_over:
            raise RuntimeError(
                f"the handler of executor {self.executor.id!r} has returned: what it does through its context now "
                "would be lost; await every task that uses the context inside of the handler"
            )

    def _message(self) -> Any:
        delivery, give = self.activation.delivery, self.around.values.give
        if delivery.is_gathered:
            return [give(value) for value in delivery.values]
        return give(delivery.values[0])

    @property
    def request_data(self) -> Any:
        """The request that the message answers."""
        request = self.activation.delivery.answers
        assert request is not None, "the message is no answer"
        return self.around.values.give(request.data)

    @property
    def source_executor_ids(self) -> Sequence[str]:
        """Where the message came from."""
        return self.activation.delivery.sources

    @property
    def request_id(self) -> str | None:
        """The request that is being answered, if one is."""
        request = self.activation.delivery.answers
        return None if request is None else request.id

    @property
    def streaming(self) -> bool:
        """Whether the caller reads a stream."""
        return self.around.streaming

    @property
    def sent(self) -> Sequence[Any]:
        """The messages sent so far."""
        return [message for message, _ in self._sent]

    @property
    def yielded(self) -> Sequence[Any]:
        """The outputs yielded so far."""
        return self._yielded

    def send(self, message: Any, target_id: str | None) -> None:
        """Queue a message for the next superstep."""
        self._require_running()
        self._sent.append((message, target_id))

    def output(self, value: Any) -> None:
        """Tell an output, as the builder designated this executor."""
        self._require_running()
        self._yielded.append(value)
        kind = self.around.graph.designation.kind_of(self.executor.id)
        if kind is not None:
            self.tell_output(kind, value)

    def tell_output(self, kind: Any, value: Any) -> None:
        """Tell an output of a given kind."""
        self._outputs.append((kind, value))
        self.around.tell(WorkflowEvent(kind, value, executor_id=self.executor.id, origin=FRAMEWORK))

    def tell(self, event: WorkflowEvent[Any]) -> None:
        """Tell an event of the executor's own; the engine's own kinds are not for users to tell."""
        self._require_running()
        if event.type in _ENGINE_ONLY and event.origin is WorkflowEventSource.EXECUTOR:
            event = WorkflowEvent.warning(
                f"executor {self.executor.id!r} tried to tell a {event.type!r} event, which only the engine tells; "
                "use yield_output for outputs, or a type of your own"
            )
        self.around.tell(event)

    def request(self, data: Any, response_type: Any, request_id: str | None) -> None:
        """Open a request."""
        self._require_running()
        chosen = request_id or self._derived_id(len(self._requests))
        if chosen in self.around.snapshot.requests or chosen in self.around.opened:
            raise ValueError(f"request {chosen!r} is open already; choose another request_id, or none")
        if not self.executor.is_request_supported(type(data), response_type):
            self.around.tell(
                WorkflowEvent.warning(
                    f"executor {self.executor.id!r} asks with a {type_of(data)} for a {describe(response_type)} "
                    "but has no @response_handler for the two: an answer would be refused"
                )
            )
        self._requests.append((chosen, data, response_type))
        self.around.opened.add(chosen)
        self.around.tell(WorkflowEvent.request_info(chosen, self.executor.id, data, response_type))

    def _derived_id(self, ordinal: int) -> str:
        name = f"{self.around.scope_id}/{self.activation.key}/request/{ordinal}"
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    def private_scope(self) -> str:
        """The scope that belongs to this executor alone."""
        return private_scope(self.executor.id)

    def read(self, scope: str, key: str) -> Any:
        """A value of the state, a copy if it could be changed. Raises KeyError."""
        place = (scope, key)
        if place in self._own:
            return self._own[place]
        if place in self._erased:
            raise KeyError(key)
        earlier = self._overlay().get(place)
        if earlier is not None:
            if earlier.erase:
                raise KeyError(key)
            return self.around.values.give_state(earlier.value)
        if place == (SHARED_SCOPE, RUN_KWARGS_KEY):
            return {kind: dict(by_target) for kind, by_target in self.around.run_kwargs.items()}
        return self.around.values.give_state(self.around.snapshot.state[place])

    def write(self, scope: str, key: str, value: Any) -> None:
        """Stage a value; of a key with a reducer, an update that is merged when the superstep ends."""
        self._require_running()
        place = (scope, key)
        reducer = self._reducer(place)
        if reducer is not None:
            value = self._updated(reducer, place, value)
        self._own[place] = value
        self._erased.discard(place)

    def _reducer(self, place: StateKey) -> Reducer | None:
        scope, key = place
        return self.around.graph.rules.reducers.get(key) if scope == SHARED_SCOPE else None

    def _updated(self, reducer: Reducer, place: StateKey, update: Any) -> Any:
        """Note an update, and merge it for this activation's own eyes. A reducer may change what it is given."""
        values = self.around.values
        fixed = values.fix(update, _state_path(place))
        self._updates.setdefault(place, []).append(fixed)
        try:
            current = self.read(*place)
        except KeyError:
            return values.give_state(fixed)
        return reducer(current, values.give_state(fixed))

    def erase(self, scope: str, key: str) -> None:
        """Stage the removal of a value. Raises KeyError."""
        self._require_running()
        place = (scope, key)
        self.read(scope, key)
        self._own.pop(place, None)
        if self._reducer(place) is not None:
            self._updates[place] = [None]
        self._erased.add(place)

    def keys(self, scope: str) -> Sequence[str]:
        """The keys of a scope as this activation sees it."""
        found = dict.fromkeys(key for place, key in self.around.snapshot.state if place == scope)
        for (place, key), write in self._overlay().items():
            if place == scope:
                found.pop(key, None) if write.erase else found.setdefault(key)
        found.update(dict.fromkeys(key for place, key in self._own if place == scope))
        return [key for key in found if (scope, key) not in self._erased]

    def _overlay(self) -> Mapping[StateKey, Write]:
        """Of an executor that handles several messages at once none is earlier: what each sees must not be a race."""
        return {} if wiring(self.executor).max_concurrency > 1 else self.around.overlays.get(self.executor.id, {})

    def invoked(self) -> WorkflowEvent[Any]:
        """The event before the call."""
        return WorkflowEvent("executor_invoked", self.message, executor_id=self.executor.id, origin=FRAMEWORK)

    def completed(self) -> WorkflowEvent[Any]:
        """The event after the call: what was sent and yielded."""
        data = [*self.sent, *self._yielded] or None
        return WorkflowEvent("executor_completed", data, executor_id=self.executor.id, origin=FRAMEWORK)

    def failed(self, error: BaseException) -> WorkflowEvent[Any]:
        """The event after a call that raised."""
        self._is_over = True
        details = WorkflowErrorDetails.from_exception(error, executor_id=self.executor.id)
        return WorkflowEvent(
            "executor_failed", details, executor_id=self.executor.id, details=details, origin=FRAMEWORK
        )

    def finish(self) -> Done:
        """Fix all values as they are now. The messages are still to be routed."""
        self._is_over = True
        fix, name = self.around.values.fix, self.executor.id
        writes = tuple(self._writes())
        effects = Effects(
            self.activation,
            writes=writes,
            requests=tuple(
                Request(request_id, name, fix(data, f"request of executor {name!r}"), type(data), response_type)
                for request_id, data, response_type in self._requests
            ),
            outputs=tuple(
                Output(name, kind, fix(value, f"output of executor {name!r}")) for kind, value in self._outputs
            ),
            child=self.child,
        )
        unrouted = tuple(
            Unrouted(fix(message, f"message of executor {name!r}"), target, message) for message, target in self._sent
        )
        return Done(effects, unrouted, {place: tuple(updates) for place, updates in self._updates.items()})

    def _writes(self) -> list[Write]:
        fix = self.around.values.fix
        writes = [Write(place, None, erase=True) for place in sorted(self._erased)]
        writes.extend(Write(place, fix(value, _state_path(place))) for place, value in self._own.items())
        return writes


def _state_path(place: StateKey) -> str:
    scope, key = place
    return f"state[{key!r}]" if scope == SHARED_SCOPE else f"state[{key!r}] of scope {scope!r}"
