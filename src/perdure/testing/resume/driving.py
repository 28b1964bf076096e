"""One life of the subject: start the run or go on with it, answer what it asks, take its turns to the end."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from perdure.testing.resume import effects

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from perdure.events import WorkflowEvent
    from perdure.storage import PendingRequest, StoreStorage
    from perdure.testing.resume.subject import Subject
    from perdure.workflows import Workflow

_LEFT_OPEN = frozenset({"executor_suspended", "executor_failed"})


class Drive:
    """Drives a run of the subject."""

    def __init__(self, subject: Subject, storage: StoreStorage, run_id: str) -> None:
        self._subject = subject
        self._storage = storage
        self._run_id = run_id
        self._workflow: Workflow = subject.build()

    async def to_the_end(self) -> None:
        """Begin the run, or go on with it, until all turns are over and nothing is asked."""
        await self.to_a_request()
        while await self._given():
            await self.go_on()

    async def fork_to_the_end(self) -> None:
        """Go on with a fork until it rests and nothing is asked."""
        await self.go_on()
        while await self._answered():
            await self.go_on()

    async def to_a_request(self) -> None:
        """Begin the run, or go on with it, until it rests."""
        await _read(self._call(message=self._subject.message))

    async def go_on(self, responses: dict[str, Any] | None = None) -> None:
        """Go on until the run rests."""
        await _read(self._call(responses=responses))

    def _call(self, **given: Any) -> AsyncIterable[WorkflowEvent[Any]]:
        return self._workflow.run(run_id=self._run_id, stream=True, checkpoint_storage=self._storage, **given)

    async def _given(self) -> bool:
        """Give the run what it waits for; False if it has had everything."""
        if await self._answered():
            return True
        begun = [event async for event in self._storage.events(self._run_id) if event.type == "started"]
        left = self._subject.turns[len(begun) - 1 :]
        if not left:
            return False
        await self._storage.send(self._run_id, left[0], message_id=f"turn-{len(begun)}")
        return True

    async def _answered(self) -> bool:
        requests = await self._storage.requests(self._run_id)
        for request in requests:
            answers = {request.request_id: self._subject.answer_to(request)}
            if _is_answered_by_running(request):
                await self.go_on(answers)
            else:
                await self._storage.respond(self._run_id, answers)
        return bool(requests)


def _is_answered_by_running(request: PendingRequest) -> bool:
    """Half of the requests are answered by the call that goes on, half through the store: the same in each life."""
    return zlib.crc32(repr(request.data).encode()) % 2 == 0


async def _read(events: AsyncIterable[WorkflowEvent[Any]]) -> None:
    async for event in events:
        if event.type == "superstep_started":
            effects.begin_superstep()
        fact = event.data if event.type == "sub_workflow" else event
        if fact.type in _LEFT_OPEN:
            effects.leave_open(event.path, fact.executor_id or "")
