"""`HostedRun`: a handle on a run, whoever advances it. It holds nothing of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.checkpoint import WorkflowCheckpoint
    from perdure.events import WorkflowEvent
    from perdure.hosting.host import Host
    from perdure.hosting.info import RunInfo
    from perdure.hosting.reading import RunReader
    from perdure.storage import PendingRequest
    from perdure.workflows import Edit, WorkflowRunResult


class HostedRun:
    """One run of a host's store. Everything works from any process, also while another one advances the run."""

    def __init__(self, host: Host, reader: RunReader, run_id: str) -> None:
        self._host = host
        self._reader = reader
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<HostedRun {self.run_id!r}>"

    async def info(self) -> RunInfo:
        """Where the run stands. Raises RunNotFoundError."""
        return await self._host.info(self.run_id)

    async def result(self) -> WorkflowRunResult:
        """Wait until the run rests: it is idle, asks somebody, or was cancelled. A run that sleeps is waited for.

        The result has the outputs of the present turn, the requests that wait, and where the run stands. Some host has
        to serve meanwhile, this one or another.

        Raises RunFailedError, RunParkedError, RunExportedError, RunNotFoundError.
        """
        return await self._reader.result(self.run_id)

    async def outputs(self) -> list[Any]:
        """What the present turn has given so far, as far as it is committed. Nothing is waited for.

        What this program can't decode is `Undecoded`. Raises RunNotFoundError, CheckpointDamagedError.
        """
        return await self._reader.outputs(self.run_id)

    def events(
        self, from_seq: int = 1, *, follow: bool = True, until_rest: bool = False, until_end: bool = False
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """What the run has committed, from the event of a number on, each with its `seq`.

        With `follow` further events are waited for; with `until_rest` as well, until `result` would return or raise;
        with `until_end` until nobody would go on with the run unasked: it is idle, was cancelled, has failed or was
        parked. A run that asks somebody or sleeps has not ended.

        Raises RunNotFoundError, EventsForgottenError, CheckpointDamagedError.
        """
        ends_at = "rest" if until_rest else "end" if until_end else None
        return self._reader.events(self.run_id, from_seq=from_seq, follow=follow, ends_at=ends_at)

    async def requests(self) -> list[PendingRequest]:
        """The requests that wait for an answer."""
        return await self._host.requests(self.run_id)

    async def respond(
        self, responses: Mapping[str, Any], *, by: str | None = None, approves: Mapping[str, str] | None = None
    ) -> None:
        """Answer requests by id. The answers are durable when this returns."""
        await self._host.respond(self.run_id, responses, by=by, approves=approves)

    async def send(
        self, message: Any, target: str | None = None, *, by: str | None = None, message_id: str | None = None
    ) -> str:
        """Send a message: to one of the run's executors, or as its next turn. Returns its id."""
        return await self._host.send(self.run_id, message, target, by=by, message_id=message_id)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Tell the run to stop. It ends in a checkpoint from which `host.recover` goes on."""
        await self._host.cancel(self.run_id, reason, by=by)

    async def fork(self, checkpoint_id: str | None = None, *, edit: Edit | None = None) -> HostedRun:
        """A new run that begins at a checkpoint of this one, the newest if none is named."""
        return await self._host.fork(self.run_id, checkpoint_id, edit=edit)

    async def checkpoints(self) -> list[WorkflowCheckpoint]:
        """The checkpoints of the run, in commit order."""
        return await self._reader.checkpoints(self.run_id)
