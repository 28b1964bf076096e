"""Looking at requests, answering, sending and cancelling with the store alone: no program, no types, no claim."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint.codec import DamagedPartError, Encoded
from perdure.checkpoint.commands import (
    AnswerCommand,
    answer_command,
    cancel_command,
    message_command,
    read_command,
)
from perdure.checkpoint.documents import dumps, loads, verified
from perdure.checkpoint.manifest import Reader, header_of, naming
from perdure.checkpoint.schema import check_against
from perdure.checkpoint.values import Kept, decode
from perdure.errors import (
    AlreadyAnsweredError,
    AnswerTypeError,
    ApprovalMismatchError,
    CheckpointDamagedError,
    IncompatibleTypeError,
    RunNotFoundError,
    StaleCommandError,
    UnknownRequestError,
    UntrustedTypeError,
)
from perdure.stores.owners import this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from perdure.checkpoint.codec import Codec
    from perdure.clock import Clock
    from perdure.records import Command, Manifest
    from perdure.stores.port import Store

_REQUEST = "request/"


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for its answer, as the store has it."""

    run_id: str
    workflow_name: str
    request_id: str
    executor_id: str
    data: Any
    """What is asked; plain JSON data if this program does not know its type."""
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


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest checkpoint of a run, with the parts of its requests. That of a new fork is of another run."""

    run_id: str
    manifest: Manifest
    parts: Mapping[str, bytes]

    def documents(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Of each request its id, the hash of its part, and what is in it. Raises CheckpointDamagedError."""
        for path, address in self.manifest.toc.items():
            if path.startswith(_REQUEST):
                try:
                    yield path.removeprefix(_REQUEST), address, loads(verified(self.parts, address))
                except DamagedPartError as error:
                    raise CheckpointDamagedError(self.manifest.checkpoint_id, str(error)) from error


class Desk:
    """Where the outside meets the runs of a store."""

    def __init__(self, store: Store, codec: Callable[[], Codec], clock: Clock) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock

    async def requests(self, run_id: str | None = None, workflow_name: str | None = None) -> list[PendingRequest]:
        """The requests that wait, of one run or of all, in the order in which the runs began."""
        if run_id is not None:
            return await self._requests_of(run_id)
        records = await self._store.runs(workflow_name=workflow_name)
        return [request for record in records for request in await self._requests_of(record.run_id)]

    async def _requests_of(self, run_id: str) -> list[PendingRequest]:
        head = await self._head(run_id)
        documents = list(head.documents())
        if not documents:
            return []
        waiting = {command.request_id: command for command in await self._answers(run_id)}
        told = header_of(head.manifest)["pending_request_info_events"]
        return [
            self._pending(head, document, told[request_id], waiting.get(request_id))
            for request_id, _, document in documents
        ]

    def _pending(
        self, head: _Head, document: dict[str, Any], told: dict[str, Any], answer: AnswerCommand | None
    ) -> PendingRequest:
        return PendingRequest(
            run_id=head.run_id,
            workflow_name=head.manifest.workflow_name,
            request_id=document["id"],
            executor_id=document["executor"],
            data=self._data(head, document),
            request_type=told["request_type"],
            response_type=told["response_type"],
            schema=document.get("schema"),
            opened_at=document.get("opened_at"),
            deadline=document.get("deadline"),
            approves=document.get("approves"),
            refusals=tuple(document.get("refusals", ())),
            answered_by=None if answer is None else answer.by,
        )

    def _data(self, head: _Head, document: dict[str, Any]) -> Any:
        tree = document["data"]
        kept = Kept(
            path=f"request {document['id']!r}",
            encoded=Encoded(dumps(tree), (), (), immutable=False),
            stored=head.parts,
            checkpoint_id=head.manifest.checkpoint_id,
        )
        try:
            return decode(self._codec(), kept)
        except (UntrustedTypeError, IncompatibleTypeError):
            return tree

    async def _head(self, run_id: str, *, with_all: bool = False) -> _Head:
        record = await self._store.run(run_id)
        if record is None or record.head is None:
            raise RunNotFoundError(run_id)
        manifest = await self._store.manifest(record.head)
        toc = manifest.toc.items()
        with naming(manifest):
            parts = await self._store.parts(address for path, address in toc if with_all or path.startswith(_REQUEST))
        return _Head(run_id, manifest, parts)

    async def _answers(self, run_id: str) -> Sequence[AnswerCommand]:
        found = [command for command in await self._store.inbox(run_id) if command.kind == "answer"]
        return [await self._read(run_id, command) for command in found]

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
        has seen and approves; another digest than the request's is refused.

        Raises UnknownRequestError, AlreadyAnsweredError, AnswerTypeError, ApprovalMismatchError, RunNotFoundError.
        """
        seen = approves or {}
        for request_id, answer in responses.items():
            _, document = await self._require_open(run_id, request_id)
            _require_fitting(request_id, document, answer, seen.get(request_id))
        for request_id, answer in responses.items():
            await self._respond(run_id, request_id, answer, by or str(this_process()))

    async def _respond(self, run_id: str, request_id: str, answer: object, by: str) -> None:
        while True:
            address, _ = await self._require_open(run_id, request_id)
            command = answer_command(
                self._codec(),
                request_id,
                answer,
                at=self._now(),
                by=by,
                expects=(f"{_REQUEST}{request_id}", address),
            )
            try:
                standing = await self._store.post(run_id, command)
            except StaleCommandError:
                # The run has gone on between our look and our answer: look again.
                continue
            break
        if loads(standing.data)["value"] == loads(command.data)["value"]:
            return
        earlier = await self._read(run_id, standing)
        raise AlreadyAnsweredError(
            earlier.request_id, run_id=run_id, answered_at=earlier.at, by=earlier.by, what=earlier.shown
        )

    async def _require_open(self, run_id: str, request_id: str) -> tuple[str, dict[str, Any]]:
        head = await self._head(run_id)
        documents = {found: (address, document) for found, address, document in head.documents()}
        if request_id in documents:
            return documents[request_id]
        whole = await self._head(run_id, with_all=True)
        for answered in reversed(list(Reader(whole.manifest, whole.parts, self._codec()).answered())):
            if answered.request_id == request_id:
                raise AlreadyAnsweredError(
                    request_id, run_id=run_id, answered_at=answered.at, by=answered.by, what=answered.what
                )
        raise UnknownRequestError(request_id, pending=list(documents))

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

        It is durable when this returns. A message of the same `message_id` while the first waits is that one. Raises
        RunNotFoundError, EncodeError.
        """
        chosen = message_id or self._clock.new_id()
        sender = by or str(this_process())
        command = message_command(self._codec(), chosen, message, target_id=target, at=self._now(), by=sender)
        await self._store.post(run_id, command)
        return chosen

    async def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Tell a run to stop. Whoever drives it stops soon and leaves a checkpoint; otherwise the next to drive it."""
        await self._store.post(run_id, cancel_command(reason=reason, at=self._now(), by=by or str(this_process())))

    def _now(self) -> str:
        return self._clock.now().astimezone(UTC).isoformat()


def _require_fitting(request_id: str, document: dict[str, Any], answer: object, seen: str | None) -> None:
    expected = document.get("approves")
    if seen is not None and seen != expected:
        raise ApprovalMismatchError(request_id, approved=seen, now=expected or "something that was not named")
    schema = document.get("schema")
    if schema is None or not is_plain(answer):
        return
    reason = check_against(schema, answer)
    if reason is not None:
        got = f"{answer!r}, which does not fit: {reason}"
        raise AnswerTypeError(request_id, expected="what its schema says", got=got)


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
