"""List and answer requests, send messages and cancel runs, with the store alone: no program, no types, no lease."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint import (
    AnswerCommand,
    Reader,
    answer_command,
    budget_command,
    cancel_command,
    check_against,
    header_of,
    is_same_answer,
    message_command,
    naming,
    read_command,
    read_request,
    shown,
)
from perdure.clock import Clock, now
from perdure.codec import MALFORMED, Codec, DamagedPartError, dumps, plain_data, verified
from perdure.errors import (
    AlreadyAnsweredError,
    AnswerTypeError,
    ApprovalMismatchError,
    CheckpointDamagedError,
    CheckpointNotFoundError,
    IncompatibleTypeError,
    RunNotFoundError,
    StaleCommandError,
    UnknownRequestError,
    UntrustedTypeError,
    WorkflowCheckpointException,
)
from perdure.records import Command, Manifest, RunQuery, RunRecord
from perdure.storage.owners import this_process
from perdure.storage.port import Store, lists_runs
from perdure.storage.runs import list_runs
from perdure.typenames import with_article

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


logger = logging.getLogger(__name__)

_REQUEST = "request/"
_ANSWERED = "answered/"
_RUNS_PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A stored request that waits for its answer."""

    run_id: str
    workflow_name: str
    request_id: str
    executor_id: str
    data: Any
    """The question. If this program does not know its type, it is plain data: an object is a dict of its fields."""
    request_type: str
    response_type: str
    schema: dict[str, Any] | None
    """The JSON schema of an answer, or None if there is none."""
    opened_at: str | None
    deadline: str | None
    approves: str | None
    """The digest of what is done if the answer approves."""
    refusals: tuple[str, ...]
    """Why earlier answers were refused."""
    answered_by: str | None
    """The sender of an answer that the run has not applied yet."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A request in the head of a run."""

    address: str
    """The hash of its blob. An answer is for exactly this one."""
    document: dict[str, Any]
    response_type: str
    request_type: str


@dataclass(frozen=True, slots=True)
class _Head:
    """The requests in the newest checkpoint of a run. The head of a new fork is a checkpoint of another run."""

    manifest: Manifest
    blobs: Mapping[str, bytes]
    requests: Mapping[str, _Open]

    @classmethod
    def of(cls, manifest: Manifest, blobs: Mapping[str, bytes]) -> _Head:
        """Read the requests of a checkpoint. Raises CheckpointDamagedError."""
        infos = header_of(manifest)["pending_request_info_events"]
        requests: dict[str, _Open] = {}
        for path, address in manifest.toc.items():
            if path.startswith(_REQUEST):
                request_id = path.removeprefix(_REQUEST)
                try:
                    document = read_request(verified(blobs, address), blobs, request_id)
                    types = [infos[request_id][name] or "" for name in ("response_type", "request_type")]
                except MALFORMED as error:
                    reason = f"its request {request_id!r} can't be read: {error or repr(error)}"
                    raise CheckpointDamagedError(manifest.checkpoint_id, reason) from error
                requests[request_id] = _Open(address, document, *types)
        return cls(manifest, blobs, requests)


class RequestQueue:
    """The requests and inboxes of all runs in a store, for those outside."""

    def __init__(self, store: Store, codec: Callable[[], Codec], clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._request_codec = codec

    async def requests(
        self,
        run_id: str | None = None,
        *,
        workflow_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        after: PendingRequest | None = None,
    ) -> list[PendingRequest]:
        """Return the requests that wait for an answer: of a run, or of all runs of a workflow and with these tags.

        Requests of older runs come first. `limit` caps their number; `after` is the last one of the previous page.

        This needs the store alone. A damaged run raises CheckpointDamagedError if it is asked for by id. In a list of
        several runs it is left out, and a warning in the log names it, so that the others can be answered.
        """
        if run_id is not None:
            return (await self._requests_of(run_id))[:limit]
        found = [] if after is None else await self._following(after)
        query = RunQuery(
            workflow_name,
            tags=tags or {},
            has_requests=True,
            limit=_RUNS_PER_PAGE,
            after=None if after is None else after.run_id,
        )
        while limit is None or len(found) < limit:
            records = await list_runs(self.store, query)
            # The requests of an exported run are answered where it is now.
            found += await self._requests_of_all([each for each in records if each.run_status != "exported"])
            if len(records) < _RUNS_PER_PAGE:
                break
            query = replace(query, after=records[-1].run_id)
        return found[:limit]

    async def _following(self, last: PendingRequest) -> list[PendingRequest]:
        """Return the requests of a run that follow one of them. If that one was answered, the order is not known."""
        found = await self._requests_of(last.run_id)
        ids = [request.request_id for request in found]
        return found[ids.index(last.request_id) + 1 :] if last.request_id in ids else found

    async def _requests_of_all(self, records: list[RunRecord]) -> list[PendingRequest]:
        """Read the requests of several runs in a few queries."""
        store = self.store
        found: list[PendingRequest] = []
        if lists_runs(store):
            try:
                heads = await store.manifests_of([str(record.head) for record in records])
                wanted = [address for manifest in heads.values() for address in _addresses(manifest)]
                blobs = await store.blobs(wanted)
                for record in records:
                    # A head that is gone has a successor without these requests.
                    if manifest := heads.get(str(record.head)):
                        answers = await self._answers(record.run_id) if record.commands else None
                        found += self._pending_of(record.run_id, _Head.of(manifest, blobs), answers or {})
            except WorkflowCheckpointException:
                found.clear()  # read them one by one, to leave out the damaged one
            else:
                return found
        for record in records:
            try:
                found += await self._requests_of(record.run_id)
            except RunNotFoundError:
                # The run was removed since the list was made.
                continue
            except WorkflowCheckpointException as error:
                logger.warning("the requests of run %r are left out of the list: %s", record.run_id, error)
        return found

    async def _requests_of(self, run_id: str) -> list[PendingRequest]:
        head = await self._head(run_id)
        return self._pending_of(run_id, head, await self._answers(run_id) if head.requests else {})

    def _pending_of(self, run_id: str, head: _Head, answers: Mapping[str, AnswerCommand]) -> list[PendingRequest]:
        return [
            self._pending(run_id, head, request, answers.get(request_id))
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
                return self._request_codec().decode(text, head.blobs, path=path)
            except (UntrustedTypeError, IncompatibleTypeError):
                return plain_data(text, head.blobs, path=path)
        except DamagedPartError as error:
            raise CheckpointDamagedError(head.manifest.checkpoint_id, str(error)) from error

    async def _head(self, run_id: str, *, paths: str = _REQUEST) -> _Head:
        """Return the requests in the head of a run, with the blobs at these paths. Raises RunNotFoundError.

        A head that was replaced while it was read may be gone. Then read the new one.
        """
        while True:
            head = await self._head_id(run_id)
            try:
                manifest = await self.store.manifest(head)
                with naming(head):
                    return _Head.of(manifest, await self.store.blobs(_addresses(manifest, paths)))
            except (CheckpointNotFoundError, CheckpointDamagedError):
                if await self._head_id(run_id) == head:
                    raise

    async def _head_id(self, run_id: str) -> str:
        record = await self.store.run(run_id)
        if record is None or record.head is None:
            raise RunNotFoundError(run_id)
        return record.head

    async def _answers(self, run_id: str) -> Mapping[str, AnswerCommand]:
        """Return the answers that wait in the inbox, by request."""
        found = [command for command in await self.store.inbox(run_id) if command.kind == "answer"]
        read = [await self._read(run_id, command) for command in found]
        return {answer.request_id: answer for answer in read}

    async def _read(self, run_id: str, command: Command) -> AnswerCommand:
        blobs = await self.store.blobs(command.refs)
        read = read_command(command, blobs, checkpoint_id=run_id)
        assert isinstance(read, AnswerCommand), "only answers have the ids of answers"
        return read

    async def respond(
        self,
        run_id: str,
        responses: Mapping[str, Any],
        *,
        by: str | None = None,
        approves: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests of a run, from any process. The answers are durable when this returns.

        Plain data is checked against the stored schema; the run converts it to the type that it asked for. `approves`
        names, by request, the digest of what the answerer has seen and approves; it must be the request's. All answers
        are checked before the first one is posted. Some of them may still be posted if another process answers the
        same requests meanwhile.

        The same answer may be given again until the run has applied it. Another one raises AlreadyAnsweredError, which
        says who answered what and when.

        Raises UnknownRequestError, AlreadyAnsweredError, AnswerTypeError, ApprovalMismatchError, RunNotFoundError.
        """
        seen, who = approves or {}, by or str(this_process())
        waiting = {command.id: command for command in await self.store.inbox(run_id)}
        for request_id, answer in responses.items():
            command = await self._answer(run_id, request_id, answer, by=who, seen=seen.get(request_id))
            await self._require_same(run_id, command, waiting.get(command.id, command))
        for request_id, answer in responses.items():
            await self._respond(run_id, request_id, answer, by=who, seen=seen.get(request_id))

    async def _respond(self, run_id: str, request_id: str, answer: object, *, by: str, seen: str | None) -> None:
        while True:
            command = await self._answer(run_id, request_id, answer, by=by, seen=seen)
            try:
                standing = await self.store.post(run_id, command)
            except StaleCommandError:
                # The run has gone on since we looked: look again.
                continue
            await self._require_same(run_id, command, standing)
            return

    async def _answer(self, run_id: str, request_id: str, answer: object, *, by: str, seen: str | None) -> Command:
        """Make a command of an answer, if the request is open and the answer fits."""
        request = await self._require_open(run_id, request_id)
        # The schema may come from anywhere: a costly check must not block the event loop.
        await asyncio.to_thread(_require_fitting, request_id, request, answer, seen)
        expects = (f"{_REQUEST}{request_id}", request.address)
        return answer_command(self._request_codec(), request_id, answer, at=self._now(), by=by, expects=expects)

    async def _require_same(self, run_id: str, command: Command, standing: Command) -> None:
        """Raise AlreadyAnsweredError if another answer is in the inbox."""
        earlier = await self._read(run_id, standing) if standing is not command else None
        if earlier is not None and not is_same_answer(command, standing):
            raise AlreadyAnsweredError(
                earlier.request_id, run_id=run_id, answered_at=earlier.at, by=earlier.by, what=earlier.shown
            )

    async def _require_open(self, run_id: str, request_id: str) -> _Open:
        head = await self._head(run_id, paths=_ANSWERED)
        if request_id in head.requests:
            return head.requests[request_id]
        for answered in reversed(list(Reader(head.manifest, head.blobs, self._request_codec()).answered())):
            if answered.request_id == request_id:
                raise AlreadyAnsweredError(
                    request_id, run_id=run_id, answered_at=answered.at, by=answered.by, what=answered.what
                )
        raise UnknownRequestError(request_id, pending=list(head.requests))

    async def send(
        self,
        run_id: str,
        message: Any,
        *,
        target: str | None = None,
        by: str | None = None,
        message_id: str | None = None,
    ) -> str:
        """Send a message to a run, from any process: to one of its executors, or as its next turn. Return its id.

        It is durable when this returns. A run applies only one message of each `message_id`. Raises RunNotFoundError,
        EncodeError.
        """
        chosen = message_id or self.clock.new_id()
        sender = by or str(this_process())
        command = message_command(self._request_codec(), chosen, message, target_id=target, at=self._now(), by=sender)
        await self.store.post(run_id, command)
        return chosen

    async def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Cancel a run, from any process. It ends in a checkpoint from which it can be resumed.

        Its owner stops soon and leaves that checkpoint. Without an owner, the next one does. A run that is idle or
        cancelled does not change, so that a later turn is not cancelled by this.
        """
        record = await self.store.run(run_id)
        is_idle = record is not None and record.status in {"idle", "cancelled"}
        if is_idle and not await self.store.inbox(run_id):
            return
        await self.store.post(run_id, cancel_command(reason=reason, at=self._now(), by=by or str(this_process())))

    async def set_budget(self, run_id: str, budget: Mapping[str, float], *, by: str | None = None) -> None:
        """Change the budget of a run, from any process: `{"total_tokens": 5000}`. Other resources keep theirs.

        It is durable when this returns, and applies from the next superstep on. Call `recover` with it for a run that
        has failed. Raises RunNotFoundError, TypeError, ValueError.
        """
        await self.store.post(
            run_id, budget_command(self.clock.new_id(), budget, at=self._now(), by=by or str(this_process()))
        )

    def _now(self) -> str:
        return now(self.clock)


def _addresses(manifest: Manifest, paths: str = _REQUEST) -> list[str]:
    """Return the blobs of a checkpoint's requests, and those at other paths."""
    return [address for path, address in manifest.toc.items() if path.startswith((_REQUEST, paths))]


def _require_fitting(request_id: str, request: _Open, answer: object, seen: str | None) -> None:
    expected = request.document.get("approves")
    if seen is not None and seen != expected:
        raise ApprovalMismatchError(request_id, approved=seen, now=expected or "something that was not named")
    schema = request.document.get("schema")
    reason = check_against(schema, answer) if schema is not None and _is_plain(answer) else None
    if reason is not None:
        got = f"{shown(answer)}, which does not fit: {reason}"
        raise AnswerTypeError(request_id, expected=with_article(request.response_type), got=got)


def _is_plain(value: object) -> bool:
    """Return whether a value is plain JSON data."""
    match value:
        case None | bool() | int() | float() | str():
            return type(value) in {type(None), bool, int, float, str}
        case list():
            return all(map(_is_plain, cast("list[object]", value)))
        case dict():
            items = cast("dict[object, object]", value).items()
            return all(type(key) is str and _is_plain(item) for key, item in items)
        case _:
            return False
