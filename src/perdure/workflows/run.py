"""`Run`: a live handle on one run. Read its events, answer it, send to it, cancel it, rewind it, fork it."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import CancelledError
from collections import deque
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure.checkpoint import request_event
from perdure.data import frozen
from perdure.engine import ABSENT, Call, accepted, accepts, final_state, fork, output_events, rewind
from perdure.errors import RunBusyError, RunError, WorkflowException
from perdure.events import WorkflowEvent, WorkflowEventSource, WorkflowRunState
from perdure.graph import INTERNAL_SOURCE_ID, SHARED_SCOPE
from perdure.kernel import Delivery
from perdure.storage import RequestQueue, committed_events
from perdure.streams import ResponseStream
from perdure.typenames import type_of
from perdure.workflows.workflow import Workflow, WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping, Sequence

    from perdure.checkpoint import WorkflowCheckpoint
    from perdure.codec import Values
    from perdure.engine import LoadedRun
    from perdure.graph import Graph
    from perdure.kernel import Output, Snapshot, Trail
    from perdure.storage import Binding

T = TypeVar("T")


@overload
def run_sync(work: Workflow, message: Any = ABSENT, **options: Any) -> WorkflowRunResult: ...
@overload
def run_sync(work: Awaitable[T]) -> T: ...
def run_sync(work: Workflow | Awaitable[Any], message: Any = ABSENT, **options: Any) -> Any:
    """Run a workflow, or await anything else, and wait for its end here.

    `run_sync(workflow, message, ...)` takes what `workflow.run` takes; `run_sync(storage.requests())` gives what the
    awaitable gives. Each call has an event loop of its own, and storages may be used by one after the other.

    Raises RuntimeError if an event loop runs in this thread already: there, `await` instead.
    """
    _require_no_loop(work)
    if not isinstance(work, Workflow):
        if message is not ABSENT or options:
            raise _refused(work, TypeError("a message and options go with a workflow; what is awaited has its own"))
        return asyncio.run(_awaited(work))
    if options.pop("stream", False):
        raise TypeError("a stream is read as it is told, so nobody can wait for it here; leave stream=True out")
    return asyncio.run(_run(work, message, options))


async def _run(workflow: Workflow, message: Any, options: dict[str, Any]) -> WorkflowRunResult:
    return await workflow.run(message, stream=False, **options)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _require_no_loop(work: object) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    instead = "await workflow.run(...)" if isinstance(work, Workflow) else "await ..."
    raise _refused(
        work,
        RuntimeError(
            f"an event loop is running here, and run_sync would hold it up; write `{instead}` instead, as notebooks "
            "and async functions can"
        ),
    )


def _refused(work: object, error: Exception) -> Exception:
    """The error, with nothing left that would complain of not having been awaited."""
    if inspect.iscoroutine(work):
        work.close()
    return error


@frozen
class Edit:
    """A change to a checkpoint.

    `state` sets keys of the shared state, `delete` removes keys. `executors` replaces the saved states of executors.
    `messages`, by executor, replaces everything that waits for the next superstep. A value takes the place of one of
    the same type, a message must be one that its executor handles; `retype` names keys whose type is meant to change.
    What a superstep that was stopped half-way has finished is done anew with the change, but for activations that wait.
    """

    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    delete: Sequence[str] = ()
    executors: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, "dict[str, Any]"])
    messages: Mapping[str, Sequence[Any]] | None = None
    retype: Sequence[str] = ()


def edited(snapshot: Snapshot, edit: Edit, graph: Graph, values: Values) -> Snapshot:
    """The snapshot with the change. Raises ValueError or TypeError that says what does not fit."""
    if edit == Edit():
        return snapshot
    state = dict(snapshot.state)
    for key in edit.delete:
        if state.pop((SHARED_SCOPE, key), None) is None:
            raise ValueError(f"there is no state key {key!r} to delete")
    for key, value in edit.state.items():
        _require_same_type(key, value, snapshot, edit, values)
        state[SHARED_SCOPE, key] = values.fix(value, f"state[{key!r}]")
    executors = dict(snapshot.executors)
    for executor_id, saved in edit.executors.items():
        if executor_id not in executors:
            raise ValueError(f"executor {executor_id!r} has no saved state to replace")
        executors[executor_id] = values.fix(saved, f"state of executor {executor_id!r}")
    deliveries = snapshot.deliveries if edit.messages is None else _deliveries(edit.messages, graph, values)
    return replace(
        snapshot, state=state, executors=executors, deliveries=deliveries, carried=_carried(snapshot, deliveries)
    )


def _carried(snapshot: Snapshot, deliveries: Sequence[Delivery]) -> Mapping[str, object]:
    """The records that hold after a change: those inside of activations that wait, or go on after they did.

    All others are run anew, whatever a superstep that was stopped had finished of them.
    """
    homes = {each.activation_id for each in (*deliveries, *(waiting.delivery for waiting in snapshot.suspended))}
    inside = tuple(f"{home}/" for home in homes if home is not None)
    return {key: value for key, value in snapshot.carried.items() if key.startswith(inside)}


def _require_same_type(key: str, value: Any, snapshot: Snapshot, edit: Edit, values: Values) -> None:
    present = snapshot.state.get((SHARED_SCOPE, key))
    if present is None or key in edit.retype:
        return
    before = values.give(present)
    if before is not None and value is not None and type(value) is not type(before):
        raise TypeError(
            f"state[{key!r}] is a {type_of(before)}, the edit makes it a {type_of(value)}; "
            f"if that is meant, say retype=[{key!r}]"
        )


def _deliveries(messages: Mapping[str, Sequence[Any]], graph: Graph, values: Values) -> tuple[Delivery, ...]:
    found: list[Delivery] = []
    for executor_id, given in messages.items():
        executor = graph.executors.get(executor_id)
        if executor is None:
            raise ValueError(f"there is no executor {executor_id!r} to give a message to")
        for ordinal, message in enumerate(given):
            if not accepts(executor, message):
                raise TypeError(f"executor {executor_id!r} has no handler for a {type_of(message)}")
            found.append(
                Delivery(
                    executor_id,
                    (INTERNAL_SOURCE_ID(executor_id),),
                    (values.fix(message, f"message for executor {executor_id!r}"),),
                    send=f"edit:{executor_id}/{ordinal}",
                    asked_for=executor_id,
                )
            )
    return tuple(found)


_OUTPUTS = frozenset({"output", "intermediate"})
_TOLD_BEFORE_OPENING = 2


class _Reading:
    """A pull in progress, which another task may interrupt."""

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()
        self._task = asyncio.current_task()
        self._is_interrupted = False
        self._error: Exception | None = None

    async def interrupt(self, error: Exception | None) -> None:
        """End the pull and wait for that. A task that interrupts itself is not pulling."""
        assert self._task is not None, "a pull is made by a task"
        self._is_interrupted, self._error = True, error
        self._task.cancel()
        await self.has_ended.wait()

    def interrupted(self, ahead: deque[WorkflowEvent[Any]]) -> bool:
        """In the task that was interrupted: what it learns of it. If it was cancelled by others, that stands."""
        if not self._is_interrupted or self._task is None or self._task.uncancel() > 0:
            raise CancelledError
        if self._error is not None:
            raise self._error
        ahead.append(WorkflowEvent("status", state=WorkflowRunState.CANCELLED, origin=WorkflowEventSource.FRAMEWORK))
        return False


class Run:
    """One run of a workflow. It advances when its events are read, or its result is awaited.

    `await` on the handle itself returns it once the run is durable: claimed, and its input committed.
    """

    def __init__(self, workflow: Workflow, call: Call) -> None:
        self._workflow = workflow
        self._storage = call.storage
        self._calls: deque[Call] = deque([call])
        self._stream: ResponseStream[WorkflowEvent[Any], WorkflowRunResult] | None = None
        self._ahead: deque[WorkflowEvent[Any]] = deque()
        self._told: list[WorkflowEvent[Any]] = []
        self._outputs: dict[int, Trail[Output]] = {}
        """By turn what is committed. A message that comes while the run is read begins its next turn."""
        self._mine: LoadedRun | None = None
        self._reading: _Reading | None = None
        self._pulled = 0
        self._failure: Exception | None = None
        self._is_cancelled = False

    @property
    def run_id(self) -> str:
        """The id of the run, known once it has begun."""
        return self._tenure().run_id

    @property
    def status(self) -> WorkflowRunState:
        """Where the run stands."""
        if self._is_cancelled:
            return WorkflowRunState.CANCELLED
        return self._workflow.status if self._is_current else final_state(self._tenure().snapshot)

    @property
    def spent(self) -> dict[str, float]:
        """What the run has spent so far, by name, tokens of models among it."""
        return dict(self._tenure().snapshot.limits.spent)

    @property
    def requests(self) -> dict[str, WorkflowEvent[Any]]:
        """The requests that wait for an answer, by id."""
        tenure = self._tenure()
        return {key: request_event(value, tenure.values) for key, value in tenure.snapshot.requests.items()}

    def __await__(self) -> Generator[Any, None, Run]:
        return self._begun().__await__()

    async def _begun(self) -> Run:
        if self._stream is None and self._calls:
            await self._until_durable()
        return self

    def events(self, from_seq: int | None = None) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The events from here on, until the run is idle and nothing was sent to it. Reading them advances it.

        With `from_seq` they are the committed ones from that number on, each with its `seq`: first those that are
        there, then those that come, until nobody advances the run any more. Reading these advances nothing, and any
        process can do it; so does `storage.events(run_id, from_seq=..., follow=True)`.
        """
        if from_seq is None:
            return ResponseStream(self._events(), finalizer=WorkflowRunResult.of)
        binding = self._binding()
        committed = committed_events(
            binding.store, lambda: binding.codec, self.run_id, from_seq=from_seq, follow=True, until_rest=True
        )
        return ResponseStream(committed, finalizer=WorkflowRunResult.of)

    async def result(self) -> WorkflowRunResult:
        """Advance the run until it is idle. What this handle was told, and the outputs that are committed.

        If the run has failed, its error is raised, each time.
        """
        async for _ in self.events():
            pass
        if self._failure is not None:
            raise self._failure
        told = [event for event in self._told if event.type not in _OUTPUTS]
        outputs = [event for turn in self._outputs.values() for event in self._told_again(turn)]
        return WorkflowRunResult.of([*told, *outputs])

    def _told_again(self, outputs: Trail[Output]) -> list[WorkflowEvent[Any]]:
        return list(output_events(outputs, self._tenure().values, in_pieces=False))

    async def _events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        while True:
            while self._ahead:
                event = self._ahead.popleft()
                self._told.append(event)
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
        """Take one event of the stream; False at its end. One task does it at a time, and others may interrupt it."""
        stream = self._stream
        assert stream is not None, "there is a stream to pull"
        if self._reading is not None:
            raise RunError("the run is being read by another task: let one task read it")
        self._reading = reading = _Reading()
        try:
            event = await anext(stream)
            self._pulled += 1
        except StopAsyncIteration:
            self._end()
            return False
        except CancelledError:
            self._end()
            return reading.interrupted(self._ahead)
        except Exception as error:
            self._end()
            self._failure = error
            raise
        finally:
            self._follow()
            self._reading = None
            reading.has_ended.set()
        self._ahead.append(event)
        return True

    def _follow(self) -> None:
        """Keep what the instance holds of this run, once the stream has found it: before, it may hold another."""
        if self._pulled > _TOLD_BEFORE_OPENING:
            self._mine = self._workflow.tenure
        if self._mine is not None:
            self._outputs[self._mine.snapshot.turn] = self._mine.snapshot.outputs

    def _end(self) -> None:
        """The stream has ended."""
        self._stream = None
        self._follow()

    async def _until_durable(self) -> None:
        """Read ahead until what came from outside is committed; without a storage, until it is taken in."""
        if not self._next():
            return
        marks = {"checkpoint", "superstep_started", "request_info", "output"}
        while await self._pull():
            if self._ahead[-1].type in marks:
                return

    async def respond(self, responses: Mapping[str, Any]) -> None:
        """Answer requests by id. A wrong answer is refused here, and nothing is changed.

        They are durable when this returns, if there is a storage: committed if the run is idle, else in its inbox, from
        which it takes them between two supersteps.
        """
        tenure = self._tenure()
        accepted(
            responses,
            graph=self._workflow.graph,
            snapshot=tenure.snapshot,
            values=tenure.values,
            run_id=tenure.run_id,
        )
        if self._stream is not None and self._desk is not None:
            self._require_live()
            self._require_current()
            await self._desk.respond(tenure.run_id, responses)
            self._go_on()
        else:
            await self._give(Call(responses=dict(responses), storage=self._storage))

    async def send(self, message: Any, target: str | None = None) -> None:
        """Give the run its next turn, at once if it is idle, else when it is.

        With a `target` the message goes to that executor in the present turn, between two supersteps. With a storage it
        is durable when this returns.
        """
        is_under_way = self._mine is not None and (self._stream is not None or bool(self._calls))
        if target is None and not (is_under_way and self._desk is not None):
            await self._give(Call(message=message, storage=self._storage))
            return
        self._require_live()
        self._require_current()
        self._require_target(message, target or self._workflow.start_executor_id)
        if self._desk is None:
            raise WorkflowException("a message to an executor needs a checkpoint_storage that ships with perdure")
        await self._desk.send(self.run_id, message, target=target)
        self._go_on()

    def _go_on(self) -> None:
        """See to it that what was left in the inbox is taken in: by the stream under way, or by one after it."""
        if not any(call.only_goes_on for call in self._calls):
            self._calls.append(Call(run_id=self.run_id, storage=self._storage, only_goes_on=True))

    def _require_target(self, message: Any, target: str) -> None:
        executor = self._workflow.executors.get(target)
        if executor is None:
            known = ", ".join(self._workflow.executors)
            raise ValueError(f"there is no executor {target!r} to send to; there are {known}")
        if not accepts(executor, message):
            raise TypeError(f"executor {target!r} has no handler for a {type_of(message)}")

    @property
    def _desk(self) -> RequestQueue | None:
        """Where commands to the run are left, if its storage has room for them."""
        if self._storage is None:
            return None
        binding = self._binding()
        return (
            RequestQueue(binding.store, lambda: binding.codec, self._workflow.blueprint.clock)
            if binding.has_inbox
            else None
        )

    async def _give(self, call: Call) -> None:
        self._require_live()
        self._require_current()
        if self._stream is None and self._tenure().snapshot.is_idle:
            # Put back to where it was idle, and given something before anybody read on: there is nothing to go on with.
            self._calls = deque(waiting for waiting in self._calls if waiting.brings_something)
        self._calls.append(call)
        if self._stream is None and len(self._calls) == 1:
            await self._until_durable()

    async def cancel(self, reason: str | None = None) -> None:
        """Stop the run, durably: it ends in a CANCELLED checkpoint. `workflow.run(run_id=...)` goes on from there.

        What had finished inside the superstep under way is not done again then. A task that is reading is told a
        `status` event with CANCELLED, and its reading ends. If another process drives the run, that one stops it.
        """
        is_durable = self._mine is not None and self._desk is not None and self._is_current
        if is_durable and self._desk is not None:
            await self._desk.cancel(self.run_id, reason=reason)
        self._is_cancelled = True
        self._calls.clear()
        await self._close(None)
        if is_durable:
            await self._take_in_cancel()
        if self._mine is not None:
            self._workflow.note_cancelled(self._mine.run_id)

    async def _take_in_cancel(self) -> None:
        """Commit the wish to stop, unless somebody else drives the run, who does it then."""
        stream = self._workflow.stream(Call(storage=self._storage, run_id=self.run_id, only_cancels=True))
        try:
            async for _ in stream:
                pass
        except RunBusyError:
            return
        self._mine = self._workflow.tenure

    async def _close(self, error: Exception | None) -> None:
        """End the stream. A task that is just pulling it gets the error, or learns that the run was cancelled."""
        if self._reading is not None:
            await self._reading.interrupt(error)
        self._ahead = deque(event for event in self._ahead if error is None and event.state is not None)
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def restore(self, checkpoint_id: str) -> None:
        """Put this very run back to one of its checkpoints. Later ones stay readable; the next follows this one."""
        binding = self._binding()
        self._require_current()
        await self._close(RunError(f"run {self.run_id!r} was put back to {checkpoint_id!r} while it was being read"))
        tenure = await rewind(self._workflow.blueprint, binding, run_id=self.run_id, checkpoint_id=checkpoint_id)
        self._workflow.tenure = self._mine = tenure
        self._told.clear()
        self._outputs.clear()
        self._is_cancelled, self._failure = False, None
        self._calls.clear()
        self._calls.append(Call(run_id=tenure.run_id, storage=self._storage))

    async def fork(self, checkpoint_id: str | None = None, *, edit: Edit | None = None) -> Run:
        """A new run that begins at a checkpoint, the newest if none is named. This run is not touched."""
        binding = self._binding()
        chosen = checkpoint_id or self._tenure().head_id
        if chosen is None:
            raise WorkflowException("the run has no checkpoint yet to fork from")
        workflow = self._workflow.twin()

        def change(snapshot: Snapshot) -> Snapshot:
            return snapshot if edit is None else edited(snapshot, edit, workflow.graph, binding.values)

        tenure = await fork(workflow.blueprint, binding, checkpoint_id=chosen, change=change if edit else None)
        return Run(workflow, Call(run_id=tenure.run_id, storage=self._storage))

    async def checkpoints(self) -> list[WorkflowCheckpoint]:
        """The checkpoints of this run, in commit order."""
        return await self._binding().checkpoints(self.run_id)

    def _tenure(self) -> LoadedRun:
        if self._mine is None:
            raise RunError("the run has not begun: await the handle, or read its events first")
        return self._mine

    @property
    def _is_current(self) -> bool:
        """Whether the workflow instance stands for this run."""
        return self._mine is None or self._workflow.run_id == self._mine.run_id

    def _require_current(self) -> None:
        if not self._is_current:
            raise RunError(
                f"the workflow stands for run {self._workflow.run_id!r} now, and this is a handle of run "
                f"{self.run_id!r}: take a new one with workflow.start(run_id={self.run_id!r})"
            )

    def _binding(self) -> Binding:
        if self._storage is None:
            raise WorkflowException("this needs checkpoints: give checkpoint_storage here or to WorkflowBuilder")
        return self._workflow.blueprint.bound(self._storage)

    def _require_live(self) -> None:
        if self._is_cancelled:
            raise RunError(f"run {self.run_id!r} was cancelled; go on with workflow.run(run_id={self.run_id!r})")
