"""`Run`: a live handle on one run. Read its events, answer it, send to it, cancel it, rewind it, fork it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.record import request_event
from perdure.errors import RunError, WorkflowException
from perdure.runtime import rewinding
from perdure.runtime.answers import accepted
from perdure.runtime.call import Call
from perdure.streams import ResponseStream
from perdure.workflow.edit import Edit, edited
from perdure.workflow.result import WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping

    from perdure.checkpoint.record import WorkflowCheckpoint
    from perdure.events import WorkflowEvent, WorkflowRunState
    from perdure.kernel.snapshot import Snapshot
    from perdure.runtime.opening import Tenure
    from perdure.storages.binding import Binding
    from perdure.workflow.workflow import Workflow


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
        self._is_cancelled = False

    @property
    def run_id(self) -> str:
        """The id of the run, known once it has begun."""
        return self._tenure().run_id

    @property
    def status(self) -> WorkflowRunState:
        """Where the run stands."""
        return self._workflow.status

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

    def events(self) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The events from here on, until the run is idle and nothing was sent to it. Reading them advances it."""
        return ResponseStream(self._events(), finalizer=WorkflowRunResult.of)

    async def result(self) -> WorkflowRunResult:
        """Advance the run until it is idle. All events that this handle was told, earlier ones included."""
        async for _ in self.events():
            pass
        return WorkflowRunResult.of(self._told)

    async def _events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        while not self._is_cancelled:
            while self._ahead:
                event = self._ahead.popleft()
                self._told.append(event)
                yield event
            if self._stream is None and not self._next():
                return
            await self._pull()

    def _next(self) -> bool:
        if not self._calls:
            return False
        self._stream = self._workflow.stream(self._calls.popleft())
        return True

    async def _pull(self) -> bool:
        """Take one event of the stream; False at its end."""
        assert self._stream is not None, "there is a stream to pull"
        try:
            event = await anext(self._stream)
        except StopAsyncIteration:
            self._stream = None
            return False
        except BaseException:
            self._stream = None
            raise
        self._ahead.append(event)
        return True

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

        An idle run has the answers committed when this returns; one that is under way gets them when it is idle.
        """
        tenure = self._tenure()
        accepted(
            responses,
            graph=self._workflow.graph,
            snapshot=tenure.snapshot,
            values=tenure.values,
            run_id=tenure.run_id,
        )
        await self._give(Call(responses=dict(responses), storage=self._storage))

    async def send(self, message: Any) -> None:
        """Give the run its next turn, at once if it is idle, else when it is."""
        await self._give(Call(message=message, storage=self._storage))

    async def _give(self, call: Call) -> None:
        self._require_live()
        if self._stream is None and self._tenure().snapshot.is_idle:
            # Put back to where it was idle, and given something before anybody read on: there is nothing to go on with.
            self._calls = deque(waiting for waiting in self._calls if waiting.brings_something)
        self._calls.append(call)
        if self._stream is None and len(self._calls) == 1:
            await self._until_durable()

    async def cancel(self) -> None:
        """Stop the run where it was last committed. `workflow.run(run_id=...)` goes on from there."""
        self._is_cancelled = True
        self._calls.clear()
        await self._close()
        self._workflow.note_cancelled()

    async def _close(self) -> None:
        stream, self._stream = self._stream, None
        self._ahead.clear()
        if stream is not None:
            await stream.aclose()

    async def restore(self, checkpoint_id: str) -> None:
        """Put this very run back to one of its checkpoints. Later ones stay readable; the next follows this one."""
        binding = self._binding()
        await self._close()
        self._calls.clear()
        self._is_cancelled = False
        tenure = await rewinding.rewind(
            self._workflow.blueprint, binding, run_id=self.run_id, checkpoint_id=checkpoint_id
        )
        self._workflow.tenure = tenure
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

        tenure = await rewinding.fork(
            workflow.blueprint, binding, checkpoint_id=chosen, change=change if edit else None
        )
        return Run(workflow, Call(run_id=tenure.run_id, storage=self._storage))

    async def checkpoints(self) -> list[WorkflowCheckpoint]:
        """The checkpoints of this run, in commit order."""
        return await self._binding().checkpoints(self.run_id)

    def _tenure(self) -> Tenure:
        if self._workflow.tenure is None:
            raise RunError("the run has not begun: await the handle, or read its events first")
        return self._workflow.tenure

    def _binding(self) -> Binding:
        if self._storage is None:
            raise WorkflowException("this needs checkpoints: give checkpoint_storage here or to WorkflowBuilder")
        return self._workflow.blueprint.bound(self._storage)

    def _require_live(self) -> None:
        if self._is_cancelled:
            raise RunError(f"run {self.run_id!r} was cancelled; go on with workflow.run(run_id={self.run_id!r})")
