"""Looking at requests, answering, sending and cancelling with the store alone: no program, no types, no claim."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint import (
    AnswerCommand,
    Reader,
    answer_command,
    cancel_command,
    check_against,
    header_of,
    is_same_answer,
    message_command,
    naming,
    read_command,
    shown,
)
from perdure.clock import now
from perdure.codec import DamagedPartError, dumps, loads, plain_data, verified
from perdure.data import frozen
from perdure.errors import (
    AlreadyAnsweredError,
    AnswerTypeError,
    ApprovalMismatchError,
    CheckpointDamagedError,
    CheckpointNotFoundError,
    IncompatibleTypeError,
    PartDamagedError,
    RunNotFoundError,
    StaleCommandError,
    UnknownRequestError,
    UntrustedTypeError,
)
from perdure.storage.owners import this_process
from perdure.typenames import with_article

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure.clock import Clock
    from perdure.codec import Codec
    from perdure.records import Command, Manifest
    from perdure.storage.port import Store

logger = logging.getLogger(__name__)

_REQUEST = "request/"
_ANSWERED = "answered/"


@frozen
class PendingRequest:
    """A request that waits for its answer, as the store has it."""

    run_id: str
    workflow_name: str
    request_id: str
    executor_id: str
    data: Any
    """What is asked; plain data if this program does not know its type, where an object is a dict of its fields."""
    request_type: str
    response_type: str
    schema: dict[str, Any] | None
    """The JSON Schema of an answer; None if it can't be described."""
    opened_at: str | None
    deadline: str | None
    approves: str | None
    """The digest of what will be done if the answer approves."""
    refusals: tuple[str, ...]
    """Why earlier answers did not fit."""
    answered_by: str | None
    """Who has given an answer that the run has not taken in yet."""


@frozen
class _Open:
    """A request as the head of a run has it."""

    address: str
    """The hash of its part: an answer is for just this."""
    document: dict[str, Any]
    response_type: str
    request_type: str


@frozen
class _Head:
    """The newest checkpoint of a run as far as it is about requests. That of a new fork is of another run."""

    manifest: Manifest
    parts: Mapping[str, bytes]
    requests: Mapping[str, _Open]

    @classmethod
    def of(cls, manifest: Manifest, parts: Mapping[str, bytes]) -> _Head:
        """Raises CheckpointDamagedError."""
        told = header_of(manifest)["pending_request_info_events"]
        requests: dict[str, _Open] = {}
        for path, address in manifest.toc.items():
            if path.startswith(_REQUEST):
                request_id = path.removeprefix(_REQUEST)
                try:
                    document = loads(verified(parts, address))
                except DamagedPartError as error:
                    raise CheckpointDamagedError(manifest.checkpoint_id, str(error)) from error
                types = told[request_id]
                requests[request_id] = _Open(address, document, types["response_type"], types["request_type"])
        return cls(manifest, parts, requests)


class Desk:
    """Where the outside meets the runs of a store."""

    def __init__(self, store: Store, codec: Callable[[], Codec], clock: Clock) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock

    async def requests(self, run_id: str | None = None, workflow_name: str | None = None) -> list[PendingRequest]:
        """The requests that wait, of one run or of all, in the order in which the runs began.

        In a list of all a run that can't be read is left out, with a warning that names it: the others are not to wait.
        """
        if run_id is not None:
            return await self._requests_of(run_id)
        records = await self._store.runs(workflow_name=workflow_name)
        found: list[PendingRequest] = []
        for record in records:
            # Of one that was exported they are to be answered where it is now.
            if record.standing in {"idle", "exported"}:
                continue
            try:
                found += await self._requests_of(record.run_id)
            except RunNotFoundError:
                # One that was deleted since the list was made asks nothing more.
                continue
            except (CheckpointDamagedError, PartDamagedError, CheckpointNotFoundError) as error:
                logger.warning("the requests of run %r are left out of the list: %s", record.run_id, error)
        return found

    async def _requests_of(self, run_id: str) -> list[PendingRequest]:
        head = await self._head(run_id)
        if not head.requests:
            return []
        waiting = await self._answers(run_id)
        return [
            self._pending(run_id, head, request, waiting.get(request_id))
            for request_id, request in head.requests.items()
        ]

    def _pending(self, run_id: str, head: _Head, request: _Open, answer: AnswerCommand | None) -> PendingRequest:
        document = request.document
        return PendingRequest(
            run_id=run_id,
            workflow_name=head.manifest.workflow_name,
            request_id=document["id"],
            executor_id=document["executor"],
            data=self._data(head, document),
            request_type=request.request_type,
            response_type=request.response_type,
            schema=document.get("schema"),
            opened_at=document.get("opened_at"),
            deadline=document.get("deadline"),
            approves=document.get("approves"),
            refusals=tuple(document.get("refusals", ())),
            answered_by=None if answer is None else answer.by,
        )

    def _data(self, head: _Head, document: dict[str, Any]) -> Any:
        text, path = dumps(document["data"]), f"request {document['id']!r}"
        try:
            try:
                return self._codec().decode(text, head.parts, path=path)
            except (UntrustedTypeError, IncompatibleTypeError):
                return plain_data(text, head.parts, path=path)
        except DamagedPartError as error:
            raise CheckpointDamagedError(head.manifest.checkpoint_id, str(error)) from error

    async def _head(self, run_id: str, *, paths: str = _REQUEST) -> _Head:
        """What the head of a run says of requests, and what it has at further paths. Raises RunNotFoundError.

        A head that was replaced while it was read may be gone, so it is looked for again.
        """
        while True:
            head = await self._head_id(run_id)
            try:
                manifest = await self._store.manifest(head)
                wanted = [address for path, address in manifest.toc.items() if path.startswith((_REQUEST, paths))]
                with naming(head):
                    return _Head.of(manifest, await self._store.parts(wanted))
            except (CheckpointNotFoundError, CheckpointDamagedError):
                if await self._head_id(run_id) == head:
                    raise

    async def _head_id(self, run_id: str) -> str:
        record = await self._store.run(run_id)
        if record is None or record.head is None:
            raise RunNotFoundError(run_id)
        return record.head

    async def _answers(self, run_id: str) -> Mapping[str, AnswerCommand]:
        """The answers that wait in the inbox, by request."""
        found = [command for command in await self._store.inbox(run_id) if command.kind == "answer"]
        read = [await self._read(run_id, command) for command in found]
        return {answer.request_id: answer for answer in read}

    async def _read(self, run_id: str, command: Command) -> AnswerCommand:
        parts = await self._store.parts(command.refs)
        read = read_command(command, parts, checkpoint_id=run_id)
        assert isinstance(read, AnswerCommand), "only answers have ids of answers"
        return read

    async def respond(
        self,
        run_id: str,
        responses: Mapping[str, Any],
        *,
        by: str | None = None,
        approves: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests of a run. Each answer is durable when this returns; the run takes it in when it goes on.

        Plain data is checked against the stored schema. `approves` says, by request, the digest of what the answerer
        has seen and approves; another digest than the request's is refused. What is refused by what is known now
        changes nothing; of several answers some may stand if another process answers the same requests meanwhile.

        Raises UnknownRequestError, AlreadyAnsweredError, AnswerTypeError, ApprovalMismatchError, RunNotFoundError.
        """
        seen, who = approves or {}, by or str(this_process())
        waiting = {command.id: command for command in await self._store.inbox(run_id)}
        for request_id, answer in responses.items():
            command = await self._answer(run_id, request_id, answer, by=who, seen=seen.get(request_id))
            await self._require_same(run_id, command, waiting.get(command.id, command))
        for request_id, answer in responses.items():
            await self._respond(run_id, request_id, answer, by=who, seen=seen.get(request_id))

    async def _respond(self, run_id: str, request_id: str, answer: object, *, by: str, seen: str | None) -> None:
        while True:
            command = await self._answer(run_id, request_id, answer, by=by, seen=seen)
            try:
                standing = await self._store.post(run_id, command)
            except StaleCommandError:
                # The run has gone on between our look and our answer: look again.
                continue
            await self._require_same(run_id, command, standing)
            return

    async def _answer(self, run_id: str, request_id: str, answer: object, *, by: str, seen: str | None) -> Command:
        """The answer as a command, if the request is open and the answer fits."""
        request = await self._require_open(run_id, request_id)
        _require_fitting(request_id, request, answer, seen)
        expects = (f"{_REQUEST}{request_id}", request.address)
        return answer_command(self._codec(), request_id, answer, at=self._now(), by=by, expects=expects)

    async def _require_same(self, run_id: str, command: Command, standing: Command) -> None:
        """Raise AlreadyAnsweredError if what stands in the inbox is another answer."""
        if not is_same_answer(command, standing):
            earlier = await self._read(run_id, standing)
            raise AlreadyAnsweredError(
                earlier.request_id, run_id=run_id, answered_at=earlier.at, by=earlier.by, what=earlier.shown
            )

    async def _require_open(self, run_id: str, request_id: str) -> _Open:
        head = await self._head(run_id, paths=_ANSWERED)
        if request_id in head.requests:
            return head.requests[request_id]
        for answered in reversed(list(Reader(head.manifest, head.parts, self._codec()).answered())):
            if answered.request_id == request_id:
                raise AlreadyAnsweredError(
                    request_id, run_id=run_id, answered_at=answered.at, by=answered.by, what=answered.what
                )
        raise UnknownRequestError(request_id, pending=list(head.requests))

    async def send(
        self,
        run_id: str,
        message: object,
        *,
        target: str | None = None,
        by: str | None = None,
        message_id: str | None = None,
    ) -> str:
        """Send a message to a run: to one of its executors, or as its next turn; its id.

        It is durable when this returns. A message of a `message_id` that the run has had is not taken in again. Raises
        RunNotFoundError, EncodeError.
        """
        chosen = message_id or self._clock.new_id()
        sender = by or str(this_process())
        command = message_command(self._codec(), chosen, message, target_id=target, at=self._now(), by=sender)
        await self._store.post(run_id, command)
        return chosen

    async def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Tell a run to stop. Whoever drives it stops soon and leaves a checkpoint; otherwise the next to drive it.

        A run that has nothing to do, or was stopped before, is left alone: a later turn is not stopped by that.
        """
        record = await self._store.run(run_id)
        rests = record is not None and record.status in {"idle", "cancelled"}
        if rests and not await self._store.inbox(run_id):
            return
        await self._store.post(run_id, cancel_command(reason=reason, at=self._now(), by=by or str(this_process())))

    def _now(self) -> str:
        return now(self._clock)


def _require_fitting(request_id: str, request: _Open, answer: object, seen: str | None) -> None:
    expected = request.document.get("approves")
    if seen is not None and seen != expected:
        raise ApprovalMismatchError(request_id, approved=seen, now=expected or "something that was not named")
    schema = request.document.get("schema")
    reason = check_against(schema, answer) if schema is not None and is_plain(answer) else None
    if reason is not None:
        got = f"{shown(answer)}, which does not fit: {reason}"
        raise AnswerTypeError(request_id, expected=with_article(request.response_type), got=got)


def is_plain(value: object) -> bool:
    """Whether a value is data as JSON has it."""
    match value:
        case None | bool() | int() | float() | str():
            return type(value) in {type(None), bool, int, float, str}
        case list():
            return all(map(is_plain, cast("list[object]", value)))
        case dict():
            items = cast("dict[object, object]", value).items()
            return all(type(key) is str and is_plain(item) for key, item in items)
        case _:
            return False
