"""Encode the events of a commit as one document, and decode them with their numbers."""

from __future__ import annotations

import functools
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint.documents import EVENT, DocumentReader, Tree, event_tree
from perdure.codec import (
    MALFORMED,
    Codec,
    DamagedPartError,
    DataclassKind,
    Kept,
    as_kept,
    decode,
    document,
    loads,
    stored_name,
    stored_tree,
)
from perdure.data_classes import value_class
from perdure.errors import CheckpointDamagedError, IncompatibleTypeError, UntrustedTypeError
from perdure.events import CheckpointInfo, Undecoded, WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.failures import Failure
from perdure.records import EventBatch, NewEvents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.kernel import PendingEvent, Request

_OF_THE_ENGINE: frozenset[str] = frozenset(
    (
        *("started", "status", "failed", "superstep_started", "superstep_completed", "checkpoint"),
        *("executor_invoked", "executor_completed", "executor_failed", "executor_bypassed", "executor_suspended"),
        *("output", "intermediate", "answered", "received", "woken", "cancelled", "taken_over", "undelivered"),
        *("sub_workflow", "warning", "attempt_failed"),
        *("step_completed", "model_call_completed", "tool_call_completed"),
    )
)


def event_batch(
    events: Sequence[PendingEvent],
    codec: Codec,
    *,
    requests: Mapping[str, Request] | None = None,
    checkpoint: CheckpointInfo | None = None,
) -> NewEvents | None:
    """Encode the events of a commit; None if there are none.

    A `request_info` event gets the types of its request, and a `checkpoint` event the checkpoint of this commit.
    """
    if not events:
        return None
    trees: list[Tree] = []
    for event in events:
        tree = event_tree(event, codec)
        if event.type == "checkpoint" and checkpoint is not None and event.data is None:
            tree["data"] = _plain_tree(checkpoint)
        request = (requests or {}).get(event.request_id or "") if event.type == "request_info" else None
        if request is not None:
            path = f"request {request.id!r}"
            tree["request_type"] = codec.encode(request.request_type, path=path)
            tree["response_type"] = codec.encode(request.response_type, path=path)
        trees.append(tree)
    encoded = document(trees)
    return NewEvents(len(events), encoded.text, encoded.refs, encoded.blobs)


@functools.cache
def _form_of(cls: type) -> tuple[str, tuple[tuple[str, object], ...]]:
    empty: object = {}
    members = ((each.name, each.default if each.default_factory is MISSING else empty) for each in fields(cls))
    return stored_name(cls), tuple(members)


def _plain_tree(data: object) -> Tree:
    """Return the tree of a dataclass of texts and numbers, without defaults. The codec would take 12 us."""
    name, members = _form_of(type(data))
    found = {name: value for name, default in members if (value := getattr(data, name)) != default}
    return {"~": DataclassKind.tag, "type": name, "fields": found}


def plain_data(data: object) -> Kept:
    """Encode the data of an event: a dataclass of texts, numbers and flat mappings."""
    return Kept(path="data of an event", encoded=document(_plain_tree(data)))


@value_class
class EventReader:
    """Decodes the events of a commit with the trust of one program."""

    codec: Codec
    batch: EventBatch
    blobs: Mapping[str, bytes]

    def events(self, *, from_seq: int = 1) -> list[WorkflowEvent[Any]]:
        """Return the events from a number on. Raises CheckpointDamagedError.

        A value that this program can't decode becomes `Undecoded`, so that the rest stays readable.
        """
        batch = self.batch
        documents = DocumentReader(self.codec, self.blobs, batch.checkpoint_id)
        try:
            trees = loads(batch.data)
            if not isinstance(trees, list) or len(cast("list[object]", trees)) != batch.count:
                raise DamagedPartError(f"there are not {batch.count} events")
            numbered = enumerate(cast("list[Tree]", trees), start=batch.first)
            events = [self._read(seq, tree, documents) for seq, tree in numbered]
            self._add_supersteps(events)
            return [event for event in events if event.seq is not None and event.seq >= from_seq]
        except MALFORMED as error:
            reason = f"its events can't be read: {error or repr(error)}"
            raise CheckpointDamagedError(batch.checkpoint_id, reason) from error

    def _read(self, seq: int, tree: Tree, documents: DocumentReader) -> WorkflowEvent[Any]:
        found = [
            self._value(documents.inline(tree[name], name)) if name in tree else None
            for name in ("request_type", "response_type")
        ]
        # A type that the program does not know is left out.
        types = [None if isinstance(each, Undecoded) else each for each in found]
        return self._event(EVENT.read(tree, documents), seq, types[0], types[1])

    @staticmethod
    def _add_supersteps(events: Sequence[WorkflowEvent[Any]]) -> None:
        """Give each event its superstep. If a checkpoint could not be written, a batch has several supersteps."""
        infos = [event.data for event in events if isinstance(event.data, CheckpointInfo)]
        superstep = infos[0].iteration_count if infos else None
        for event in events:
            superstep = superstep if event.iteration is None else event.iteration
            event.superstep = superstep

    @property
    def _at(self) -> str | None:
        moment = self.batch.moment
        return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat()

    def _event(
        self, event: PendingEvent, seq: int | None = None, request_type: Any = None, response_type: Any = None
    ) -> WorkflowEvent[Any]:
        data, details = self._value(event.data), self._value(event.details)
        if event.inner is not None:
            data = self._event(event.inner)
        if data is None and event.lost is not None:
            data = Undecoded(event.lost)
        if data is None and (event.type == "executor_failed" or isinstance(details, Undecoded)):
            data = details
        if isinstance(data, Failure):
            details = WorkflowErrorDetails(data.error_type, data.message, data.traceback, data.executor_id)
        is_of_engine = event.type in _OF_THE_ENGINE
        return WorkflowEvent(
            event.type,
            data,
            origin=WorkflowEventSource.FRAMEWORK if is_of_engine else WorkflowEventSource.EXECUTOR,
            details=details if isinstance(details, WorkflowErrorDetails) else None,
            executor_id=event.executor_id,
            request_id=event.request_id,
            source_executor_id=event.executor_id,
            request_type=request_type,
            response_type=response_type,
            iteration=event.iteration,
            path=event.path,
            seq=seq,
            at=self._at,
        )

    def _value(self, value: object) -> Any:
        if value is None:
            return None
        kept = as_kept(value)
        try:
            return decode(self.codec, kept)
        except (UntrustedTypeError, IncompatibleTypeError) as error:
            return Undecoded(str(error), stored_tree(kept.require_encoded().text, self.blobs, path=kept.path))
