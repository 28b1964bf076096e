"""`Run`: a live handle on one run. Read its events, answer it, send to it, cancel it, rewind it, fork it."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import CancelledError
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure.checkpoint import WorkflowCheckpoint, request_event
from perdure.engine import ABSENT, Call, LoadedRun, accepted, accepts, final_state, fork, output_events, rewind
from perdure.errors import RunBusyError, RunError, WorkflowException
from perdure.events import WorkflowEvent, WorkflowEventSource, WorkflowRunState
from perdure.graph import INTERNAL_SOURCE_ID, SHARED_SCOPE, Executor, Graph
from perdure.kernel import Delivery, Output, Snapshot, Trail
from perdure.storage import Binding, RequestQueue, committed_events
from perdure.streams import ResponseStream
from perdure.typenames import type_of
from perdure.workflows.workflow import Workflow, WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping, Sequence

    from perdure.codec import Values

T = TypeVar("T")


@overload
def run_sync(work: Workflow, message: Any = ABSENT, **options: Any) -> WorkflowRunResult: ...
@overload
def run_sync(work: Awaitable[T]) -> T: ...
def run_sync(work: Workflow | Awaitable[Any], message: Any = ABSENT, **options: Any) -> Any:
    """Run a workflow, or await any awaitable, and block until it has ended.

    `run_sync(workflow, message, ...)` takes the arguments of `workflow.run`; `run_sync(storage.requests())` returns the
    result of the awaitable. Each call has its own event loop. A storage may be used by one call after the other.

    Raises RuntimeError if an event loop already runs in this thread: use `await` there.
    """
    error: Exception | None = None
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        instead = "await workflow.run(...)" if isinstance(work, Workflow) else "await ..."
        error = RuntimeError(
            f"run_sync would block the event loop that is running here; write `{instead}` instead, as in notebooks "
            "and async functions"
        )
    if not isinstance(work, Workflow) and (message is not ABSENT or options):
        error = error or TypeError("a message and options belong to a workflow, not to an awaitable")
    elif options.pop("stream", False):
        error = error or TypeError("run_sync can't stream; leave stream=True out")
    if error is not None:
        if inspect.iscoroutine(work):
            work.close()  # it would warn of not being awaited
        raise error

    async def run() -> Any:
        return await (work.run(message, stream=False, **options) if isinstance(work, Workflow) else work)

    return asyncio.run(run())


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to a checkpoint for a fork.

    `state` sets keys of the shared state and `delete` removes keys. `executors` replaces saved states of executors.
    `messages`, by executor, replaces everything that waits for the next superstep. A value must have the type of the
    one it replaces, and a message must fit its executor; `retype` lists keys whose type may change. Work that an
    interrupted superstep had finished is done again with the change, except in suspended activations.
    """

    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    delete: Sequence[str] = ()
    executors: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, "dict[str, Any]"])
    messages: Mapping[str, Sequence[Any]] | None = None
    retype: Sequence[str] = ()


def apply_edit(snapshot: Snapshot, edit: Edit, graph: Graph, values: Values) -> Snapshot:
    """Apply an edit to a snapshot. Raises ValueError or TypeError that says what doesn't fit."""
    if edit == Edit():
        return snapshot
    state = dict(snapshot.state)
    for key in edit.delete:
        if state.pop((SHARED_SCOPE, key), None) is None:
            raise ValueError(f"there is no state key {key!r} to delete")
    for key, value in edit.state.items():
        present = snapshot.state.get((SHARED_SCOPE, key))
        before = None if present is None or key in edit.retype else values.give(present)
        if before is not None and value is not None and type(value) is not type(before):
            raise TypeError(
                f"state[{key!r}] is a {type_of(before)}, the edit makes it a {type_of(value)}; "
                f"if that is intended, add retype=[{key!r}]"
            )
        state[SHARED_SCOPE, key] = values.fix(value, f"state[{key!r}]")
    executors = dict(snapshot.executors)
    for executor_id, saved in edit.executors.items():
        if executor_id not in executors:
            raise ValueError(f"executor {executor_id!r} has no saved state to replace")
        executors[executor_id] = values.fix(saved, f"state of executor {executor_id!r}")
    deliveries = snapshot.deliveries
    if edit.messages is not None:
        deliveries = tuple(
            _delivery(executor_id, ordinal, message, graph, values)
            for executor_id, messages in edit.messages.items()
            for ordinal, message in enumerate(messages)
        )
    # Only records inside activations that are suspended or about to continue stay valid.
    ongoing = {each.activation_id for each in (*deliveries, *(waiting.delivery for waiting in snapshot.suspended))}
    inside = tuple(f"{activation_id}/" for activation_id in ongoing if activation_id is not None)
    carried = {key: value for key, value in snapshot.carried.items() if key.startswith(inside)}
    return replace(snapshot, state=state, executors=executors, deliveries=deliveries, carried=carried)


def _delivery(executor_id: str, ordinal: int, message: Any, graph: Graph, values: Values) -> Delivery:
    require_handler(graph.executors, executor_id, message)
    value, source_id = values.fix(message, f"message for executor {executor_id!r}"), INTERNAL_SOURCE_ID(executor_id)
    return Delivery(executor_id, (source_id,), (value,), send=f"edit:{executor_id}/{ordinal}", asked_for=executor_id)


def require_handler(executors: Mapping[str, Executor], executor_id: str, message: Any) -> None:
    """Raise ValueError if there is no such executor, TypeError if it has no handler for the message."""
    if executor_id not in executors:
        known = ", ".join(executors)
        raise ValueError(f"there is no executor {executor_id!r} to send to; the executors are {known}")
    if not accepts(executors[executor_id], message):
        raise TypeError(f"executor {executor_id!r} has no handler for a {type_of(message)}")


_OUTPUTS = frozenset({"output", "intermediate"})
_EVENTS_BEFORE_OPENING = 2


class _Pull:
    """A pull in progress, which another task may interrupt."""

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()
        self._task = asyncio.current_task()
        self._is_interrupted = False
        self._error: Exception | None = None

    async def interrupt(self, error: Exception | None) -> None:
        """Cancel the pull and wait until it has ended."""
        assert self._task is not None, "only tasks pull"
        self._is_interrupted, self._error = True, error
        self._task.cancel()
        await self.has_ended.wait()

    def interrupted(self, ahead: deque[WorkflowEvent[Any]]) -> bool:
        """Return False in the interrupted task after queuing a CANCELLED status, or raise its error.

        A cancellation by others is raised.
        """
        if not self._is_interrupted or self._task is None or self._task.uncancel() > 0:
            raise CancelledError
        if self._error is not None:
            raise self._error
        ahead.append(WorkflowEvent("status", state=WorkflowRunState.CANCELLED, origin=WorkflowEventSource.FRAMEWORK))
        return False


class Run:
    """One run of a workflow. It advances while its events are read or its result is awaited.

    `await` on the handle returns it once the run is durable: leased, with its input committed.
    """

    def __init__(self, workflow: Workflow, call: Call) -> None:
        self._workflow = workflow
        self._storage = call.storage
        self._calls: deque[Call] = deque([call])
        self._stream: ResponseStream[WorkflowEvent[Any], WorkflowRunResult] | None = None
        self._ahead: deque[WorkflowEvent[Any]] = deque()
        self._events_read: list[WorkflowEvent[Any]] = []
        self._outputs: dict[int, Trail[Output]] = {}
        """Committed outputs by turn. A message that arrives during reading starts the next turn."""
        self._loaded_run: LoadedRun | None = None
        self._reading: _Pull | None = None
        self._pulled = 0
        self._failure: Exception | None = None
        self._is_cancelled = False

    @property
    def run_id(self) -> str:
        """Return the run's id. Raises RunError before the run has begun."""
        return self._require_loaded_run().run_id

    @property
    def status(self) -> WorkflowRunState:
        """Return the run's status."""
        if self._is_cancelled:
            return WorkflowRunState.CANCELLED
        return self._workflow.status if self._is_current else final_state(self._require_loaded_run().snapshot)

    @property
    def spent(self) -> dict[str, float]:
        """Return the run's spending so far by name, including tokens."""
        return dict(self._require_loaded_run().snapshot.limits.spent)

    @property
    def requests(self) -> dict[str, WorkflowEvent[Any]]:
        """Return the open requests by id."""
        loaded_run = self._require_loaded_run()
        return {key: request_event(value, loaded_run.values) for key, value in loaded_run.snapshot.requests.items()}

    def __await__(self) -> Generator[Any, None, Run]:
        if self._stream is None and self._calls:
            yield from self._read_until_durable().__await__()
        return self

    def events(self, from_seq: int | None = None) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Return the events from now until the run is idle and nothing was sent to it. Reading them advances the run.

        With `from_seq`, return the committed events from that number on, each with its `seq`: first the stored ones,
        then new ones, until nobody advances the run. Reading these advances nothing, and any process can do it; so does
        `storage.events(run_id, from_seq=..., follow=True)`.
        """
        if from_seq is None:
            return ResponseStream(self._events(), finalizer=WorkflowRunResult.of)
        binding = self._binding()
        committed = committed_events(
            binding.store, lambda: binding.codec, self.run_id, from_seq=from_seq, follow=True, until_rest=True
        )
        return ResponseStream(committed, finalizer=WorkflowRunResult.of)

    async def result(self) -> WorkflowRunResult:
        """Advance the run until it is idle. Return this handle's events and the committed outputs.

        If the run has failed, its error is raised on every call.
        """
        async for _ in self.events():
            pass
        if self._failure is not None:
            raise self._failure
        others = [event for event in self._events_read if event.type not in _OUTPUTS]
        outputs = [
            event
            for turn in self._outputs.values()
            for event in output_events(turn, self._require_loaded_run().values, in_pieces=False)
        ]
        return WorkflowRunResult.of([*others, *outputs])

    async def _events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        while True:
            while self._ahead:
                event = self._ahead.popleft()
                self._events_read.append(event)
                yield event
            if self._is_cancelled or (self._stream is None and not self._next()):
                return
            await self._pull()

    def _next(self) -> bool:
        if not self._calls:
            return False
        self._require_current()
        self._failure = None
        self._pulled = 0
        self._stream = self._workflow.stream(self._calls.popleft())
        return True

    async def _pull(self) -> bool:
        """Take one event from the stream; False at its end. One task pulls at a time, and others may interrupt it."""
        stream = self._stream
        assert stream is not None, "a stream is open"
        if self._reading is not None:
            raise RunError("another task is reading the run; let one task read it")
        self._reading = reading = _Pull()
        try:
            self._ahead.append(await anext(stream))
            self._pulled += 1
        except StopAsyncIteration:
            self._stream = None
            return False
        except CancelledError:
            self._stream = None
            return reading.interrupted(self._ahead)
        except Exception as error:
            self._stream, self._failure = None, error
            raise
        finally:
            # Before the stream has found this run, the instance may hold another one.
            if self._pulled > _EVENTS_BEFORE_OPENING:
                self._loaded_run = self._workflow.loaded_run
            if self._loaded_run is not None:
                self._outputs[self._loaded_run.snapshot.turn] = self._loaded_run.snapshot.outputs
            self._reading = None
            reading.has_ended.set()
        return True

    async def _read_until_durable(self) -> None:
        """Read ahead until the input is committed; without a storage, until it is taken in."""
        if not self._next():
            return
        marks = {"checkpoint", "superstep_started", "request_info", "output"}
        while await self._pull():
            if self._ahead[-1].type in marks:
                return

    async def respond(self, responses: Mapping[str, Any]) -> None:
        """Answer requests by id. A wrong answer is refused here and changes nothing.

        With a storage the answers are durable when this returns: committed if the run is idle, else in its inbox, from
        which the run takes them between two supersteps.
        """
        loaded_run = self._require_loaded_run()
        accepted(
            responses,
            graph=self._workflow.graph,
            snapshot=loaded_run.snapshot,
            values=loaded_run.values,
            run_id=loaded_run.run_id,
        )
        if self._stream is not None and self._queue is not None:
            self._require_live()
            await self._queue.respond(loaded_run.run_id, responses)
            self._schedule_continuation()
        else:
            await self._enqueue(Call(responses=dict(responses), storage=self._storage))

    async def send(self, message: Any, target: str | None = None) -> None:
        """Give the run its next turn: at once if it is idle, else when it becomes idle.

        With a `target` the message goes to that executor in the current turn, between two supersteps. With a storage it
        is durable when this returns.
        """
        is_under_way = self._loaded_run is not None and (self._stream is not None or bool(self._calls))
        if target is None and not (is_under_way and self._queue is not None):
            await self._enqueue(Call(message=message, storage=self._storage))
            return
        self._require_live()
        require_handler(self._workflow.executors, target or self._workflow.start_executor_id, message)
        if self._queue is None:
            raise WorkflowException("a message to an executor needs a checkpoint_storage of perdure")
        await self._queue.send(self.run_id, message, target=target)
        self._schedule_continuation()

    def _schedule_continuation(self) -> None:
        """Make sure that the inbox is read: by the active stream, or by one after it."""
        if not any(call.skip_past_events for call in self._calls):
            self._calls.append(Call(run_id=self.run_id, storage=self._storage, skip_past_events=True))

    @property
    def _queue(self) -> RequestQueue | None:
        """Return the queue for commands to the run; None if the storage has no inbox."""
        binding = None if self._storage is None else self._binding()
        if binding is None or binding.foreign is not None:
            return None
        return RequestQueue(binding.store, lambda: binding.codec, self._workflow.blueprint.clock)

    async def _enqueue(self, call: Call) -> None:
        self._require_live()
        if self._stream is None and self._require_loaded_run().snapshot.is_idle:
            # The run was restored to an idle checkpoint, so there is nothing to continue before this call.
            self._calls = deque(waiting for waiting in self._calls if waiting.brings_something)
        self._calls.append(call)
        if self._stream is None and len(self._calls) == 1:
            await self._read_until_durable()

    async def cancel(self, reason: str | None = None) -> None:
        """Stop the run durably: it ends in a CANCELLED checkpoint. `workflow.run(run_id=...)` continues from there.

        Work that the interrupted superstep had finished is not repeated then. A task that is reading gets a `status`
        event with CANCELLED, and its stream ends. If another process drives the run, that process stops it.
        """
        queue = self._queue if self._loaded_run is not None and self._is_current else None
        if queue is not None:
            await queue.cancel(self.run_id, reason=reason)
        self._is_cancelled = True
        self._calls.clear()
        await self._close(None)
        if queue is not None:
            # If another process drives the run, it commits the cancellation.
            with suppress(RunBusyError):
                await self._workflow.stream(
                    Call(storage=self._storage, run_id=self.run_id, only_cancels=True)
                ).get_final_response()
                self._loaded_run = self._workflow.loaded_run
        if self._loaded_run is not None:
            self._workflow.note_cancelled(self._loaded_run.run_id)

    async def _close(self, error: Exception | None) -> None:
        """End the stream. A task that is pulling it gets the error, or learns that the run was cancelled."""
        if self._reading is not None:
            await self._reading.interrupt(error)
        self._ahead = deque(event for event in self._ahead if error is None and event.state is not None)
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def restore(self, checkpoint_id: str) -> None:
        """Move this run back to one of its checkpoints. Later ones stay readable; the next one follows this one."""
        binding = self._binding()
        self._require_current()
        await self._close(RunError(f"run {self.run_id!r} was restored to {checkpoint_id!r} while it was being read"))
        loaded_run = await rewind(self._workflow.blueprint, binding, run_id=self.run_id, checkpoint_id=checkpoint_id)
        self._workflow.loaded_run = self._loaded_run = loaded_run
        self._events_read.clear()
        self._outputs.clear()
        self._is_cancelled, self._failure = False, None
        self._calls.clear()
        self._calls.append(Call(run_id=loaded_run.run_id, storage=self._storage))

    async def fork(self, checkpoint_id: str | None = None, *, edit: Edit | None = None) -> Run:
        """Start a new run at a checkpoint, by default the newest. This run does not change."""
        binding = self._binding()
        chosen = checkpoint_id or self._require_loaded_run().head_id
        if chosen is None:
            raise WorkflowException("the run has no checkpoint to fork from yet")
        workflow = self._workflow.copy()

        def change(snapshot: Snapshot) -> Snapshot:
            return apply_edit(snapshot, edit or Edit(), workflow.graph, binding.values)

        loaded_run = await fork(workflow.blueprint, binding, checkpoint_id=chosen, change=change if edit else None)
        return Run(workflow, Call(run_id=loaded_run.run_id, storage=self._storage))

    async def checkpoints(self) -> list[WorkflowCheckpoint]:
        """Return the run's checkpoints in commit order."""
        return await self._binding().checkpoints(self.run_id)

    def _require_loaded_run(self) -> LoadedRun:
        if self._loaded_run is None:
            raise RunError("the run has not begun; await the handle or read its events first")
        return self._loaded_run

    @property
    def _is_current(self) -> bool:
        """Return True if the workflow instance holds this run."""
        return self._loaded_run is None or self._workflow.run_id == self._loaded_run.run_id

    def _require_current(self) -> None:
        if not self._is_current:
            raise RunError(
                f"the workflow instance has switched to run {self._workflow.run_id!r}, and this handle belongs to run "
                f"{self.run_id!r}; get a new one with workflow.start(run_id={self.run_id!r})"
            )

    def _binding(self) -> Binding:
        if self._storage is None:
            raise WorkflowException("this needs checkpoints; give checkpoint_storage here or to WorkflowBuilder")
        return self._workflow.blueprint_on(self._storage).bound(self._storage)

    def _require_live(self) -> None:
        """Raise RunError if this handle's run was cancelled, or the workflow instance holds another run."""
        if self._is_cancelled:
            raise RunError(f"run {self.run_id!r} was cancelled; continue with workflow.run(run_id={self.run_id!r})")
        self._require_current()
