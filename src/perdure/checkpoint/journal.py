"""Encode and decode journal records: finished activations, steps inside them, and sub-workflows between supersteps."""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from perdure.checkpoint.documents import (
    EVENT,
    OUTPUT,
    REQUEST,
    DocumentReader,
    Entry,
    Tree,
    event_tree,
    inline,
    request_tree,
    tree_of,
)
from perdure.checkpoint.writer import PIECE_LENGTH_MAX, PIECES_LENGTH_MAX, Changes
from perdure.codec import (
    MALFORMED,
    Codec,
    CodedValues,
    DataclassKind,
    Encoded,
    Kept,
    Trust,
    Values,
    as_kept,
    document,
    dumps,
    loads,
    read_document,
    register_type,
    stored_name,
)
from perdure.data_classes import new_dict, value_class
from perdure.errors import CheckpointDamagedError, EncodeError
from perdure.kernel import Activation, ActivationResult, Effects, Moment, PendingEvent, Snapshot, UnroutedMessage, Write
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    ReadT = TypeVar("ReadT")
    from collections.abc import Iterable, Iterator


_CHILD = "child/-/"
_SHORT_LENGTH_MAX = 256


def activation_record(done: ActivationResult, codec: Codec) -> Encoded:
    """Encode a finished activation. Raises EncodeError."""
    effects = done.effects
    tree: Tree = {
        "sends": [{"value": inline(sent.data), "asked_for": sent.asked_for, "due": sent.due} for sent in done.unrouted],
        "writes": [_write_tree(write) for write in effects.writes],
        "requests": [request_tree(request, codec) for request in effects.requests],
        "outputs": [OUTPUT.write(output, codec) for output in effects.outputs],
        "updates": [
            {"scope": scope, "key": key, "values": [None if each is None else [inline(each)] for each in updates]}
            for (scope, key), updates in done.updates.items()
        ],
    }
    if effects.events:
        tree["told"] = [event_tree(event, codec) for event in effects.events]
    if effects.spent:
        tree["spent"] = dict(effects.spent)
    if effects.executor_state is not None:
        tree["state"] = inline(effects.executor_state)
    if effects.child is not None:
        tree["child"] = snapshot_record(effects.child, codec)
    return document(tree)


def _write_tree(write: Write) -> Tree:
    scope, key = write.key
    return {"scope": scope, "key": key} | ({} if write.erase else {"value": inline(write.value)})


def events_record(events: Sequence[PendingEvent], codec: Codec) -> Encoded:
    """Encode the events of a sub-workflow's superstep."""
    return document([event_tree(event, codec) for event in events])


def snapshot_record(snapshot: Snapshot, codec: Codec) -> Encoded:
    """Encode a sub-workflow. Short entries are inline, the rest are blobs."""
    room = PIECES_LENGTH_MAX
    entries: Tree = {}
    for path, fresh in Changes(codec).compare(None, snapshot, _CHILD).fresh.items():
        encoded = fresh.encoded
        if not encoded.refs and len(encoded.text) <= min(room, PIECE_LENGTH_MAX):
            room -= len(encoded.text)
            entries[path] = [encoded]
        else:
            # Written like a value, so that the references of the record are found.
            entries[path] = encoded.inline(0)
    return document(entries)


def stored_of(done: ActivationResult, before: Snapshot) -> set[str]:
    """Return the blobs that the checkpoint already has, so that the record of an activation need not bring them."""
    effects = done.effects
    values = [before.state.get(write.key) for write in effects.writes if not write.erase]
    if effects.executor_state is not None:
        values.append(before.executors.get(effects.activation.executor_id))
    delivery = effects.activation.delivery
    if any(as_kept(sent.data).require_encoded().refs for sent in done.unrouted):
        # A message is often passed on with something added.
        values += next((each.values for each in before.deliveries if each is delivery), ())
    addresses: set[str] = set()
    for value in values:
        encoded = None if value is None else as_kept(value).encoded
        # Values without references may be inline in the checkpoint, and then they are no blobs.
        if encoded is not None and encoded.refs:
            addresses.update(encoded.refs, encoded.made, encoded.branches)
    return addresses


@value_class
class JournalReader:
    """Decodes the journal records that follow a checkpoint."""

    codec: Codec
    blobs: Mapping[str, bytes]
    checkpoint_id: str

    def activation(self, data: bytes, activation: Activation) -> ActivationResult:
        """Decode a finished activation. Raises CheckpointDamagedError."""
        return self._read(data, lambda tree, documents: self._activation(tree, documents, activation))

    def snapshot(self, data: bytes) -> Snapshot:
        """Decode a sub-workflow between two supersteps. Raises CheckpointDamagedError."""
        return self._read(data, _snapshot)

    def events(self, data: bytes) -> tuple[PendingEvent, ...]:
        """Decode the events of a sub-workflow's superstep. Raises CheckpointDamagedError."""
        return self._read(data, lambda trees, documents: tuple(EVENT.read(each, documents) for each in trees))

    def _read(self, data: bytes, read: Callable[[Any, DocumentReader], ReadT]) -> ReadT:
        try:
            return read(loads(data), DocumentReader(self.codec, self.blobs, self.checkpoint_id, brings_blobs=True))
        except MALFORMED as error:
            reason = f"its journal can't be read: {error or repr(error)}"
            raise CheckpointDamagedError(self.checkpoint_id, reason) from error

    def _activation(self, tree: Tree, documents: DocumentReader, activation: Activation) -> ActivationResult:
        name = activation.executor_id
        values = CodedValues(self.codec)
        effects = Effects(
            activation,
            writes=tuple(_read_write(each, documents) for each in tree["writes"]),
            requests=tuple(REQUEST.read(each, documents) for each in tree["requests"]),
            outputs=tuple(OUTPUT.read(each, documents) for each in tree["outputs"]),
            executor_state=documents.inline(tree["state"], f"state of executor {name!r}") if "state" in tree else None,
            child=_snapshot(tree["child"], documents) if "child" in tree else None,
            events=tuple(EVENT.read(each, documents) for each in tree.get("told", ())),
            spent=tree.get("spent", {}),
        )
        sent = [(documents.inline(each["value"], f"message of executor {name!r}"), each) for each in tree["sends"]]
        updates = {
            (each["scope"], each["key"]): tuple(
                None if value is None else documents.inline(value[0], f"state[{each['key']!r}]")
                for value in each["values"]
            )
            for each in tree["updates"]
        }
        unrouted = [UnroutedMessage(kept, each["asked_for"], values.give(kept), each.get("due")) for kept, each in sent]
        return ActivationResult(effects, tuple(unrouted), updates)


def _read_write(tree: Tree, documents: DocumentReader) -> Write:
    place = (tree["scope"], tree["key"])
    if "value" not in tree:
        return Write(place, None, erase=True)
    return Write(place, documents.inline(tree["value"], f"state[{tree['key']!r}]"))


def _snapshot(contents: Tree, documents: DocumentReader) -> Snapshot:
    return documents.snapshot(tree_of({path: _entry(entry) for path, entry in contents.items()})["child"]["-"])


def _entry(found: Any) -> Entry:
    match found:
        case [tree]:
            return dumps(tree)
        case {"part": address}:
            return cast("str", address)
        case _:
            # Records of format 1 only have hashes.
            return found


PlainT = TypeVar("PlainT")


@register_type
@dataclass(frozen=True, slots=True)
class InterruptedStep:
    """A request about a step that had started when the process died: was its work done?

    `key` is the idempotency key of the step, under which another service may know it.
    """

    name: str
    key: str
    executor_id: str
    started_at: str


@register_type
@dataclass(frozen=True, slots=True)
class StepDecision:
    """The answer to an `InterruptedStep`: run it again, take it as done with this result, or let it fail."""

    action: Literal["rerun", "done", "fail"]
    result: Any = None


@value_class
class RaisedRecord:
    """An error of a step that the handler caught: the name of its type, and its arguments."""

    type: str
    args: tuple[object, ...]


@value_class
class StepRecord:
    """The record of a step: started (`is_open`), raised, or finished (it has a `result`).

    `raised` holds the errors that the handler caught, one for each call that raised. Such a step may have been called
    again, and be finished.

    `events` are the type and data of the events of this step and of steps inside it, until a commit has numbered them.

    `round` counts how often it was started again after an interruption, `spent` is what it reported to have spent.
    One that has started has its idempotency key, and the id of the request that asks about it: a fork derives others,
    but these are the ones that others may know.
    """

    at: Moment
    digest: str | None
    round: int = 0
    is_open: bool = True
    result: Kept | None = None
    spent: Mapping[str, float] = field(default_factory=new_dict)
    key: str | None = None
    request_id: str | None = None
    raised: tuple[RaisedRecord, ...] = ()
    is_sequential: bool = False
    """True if the code's own task called it while no other of its steps was in flight."""
    events: tuple[tuple[str, Kept], ...] = ()

    def encoded(self) -> Encoded:
        """Return the record as bytes."""
        tree: dict[str, object] = {"at": self.at, "digest": self.digest, "round": self.round}
        if self.result is not None:
            tree["result"] = self.result.require_encoded()
            if self.spent:
                tree["spent"] = dict(self.spent)
        elif self.is_open:
            tree |= {"open": True, "key": self.key, "request": self.request_id}
        if self.raised:
            tree["raised"] = [[each.type, *each.args] for each in self.raised]
        if self.is_sequential:
            tree["sequential"] = True
        if self.events:
            tree["told"] = [[type_, data.require_encoded()] for type_, data in self.events]
        return document(tree)

    @classmethod
    def of(cls, kept: Kept, name: str) -> StepRecord:
        """Read the record of a step. Raises CheckpointDamagedError."""
        # A re-entered handler comes to all its records again, each time that it has waited.
        return kept.parse_once(lambda: cls._read(kept, name))

    @classmethod
    def _read(cls, kept: Kept, name: str) -> StepRecord:
        try:
            tree = loads(kept.require_encoded().text)
            result = None
            if "result" in tree:
                result = kept.inside(read_document(tree["result"]), f"result of step {name!r}")
            return cls(
                tree["at"],
                tree["digest"],
                tree["round"],
                "open" in tree,
                result,
                tree.get("spent", {}),
                tree.get("key"),
                tree.get("request"),
                tuple(RaisedRecord(type_, tuple(args)) for type_, *args in tree.get("raised", ())),
                tree.get("sequential", False),
                tuple(
                    (type_, kept.inside(read_document(data), f"data of a {type_!r} event"))
                    for type_, data in tree.get("told", ())
                ),
            )
        except MALFORMED as error:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {error!r}") from error


@value_class
class AttemptsRecord:
    """The failed attempts at something: their count, when the next may start, the last error.

    `failures` are the number, type, message, step and time of each failed attempt, until a commit has numbered their
    events.
    """

    count: int
    due: Moment | None = None
    error: str | None = None
    failures: Sequence[tuple[int, str, str, str | None, Moment]] = ()

    def encoded(self) -> Encoded:
        """Return the record as bytes."""
        return document([self.count, self.due, self.error, *([self.failures] if self.failures else [])])

    @classmethod
    def of(cls, kept: Kept) -> AttemptsRecord:
        """Read the record of attempts. Raises CheckpointDamagedError."""
        return _from_list(cls, kept)


@value_class
class AskedRecord:
    """The record of a question: its request, the digests of its data and of what it approves, the type of the answer.

    `reads` was a digest of the function's text in earlier versions.
    """

    request_id: str
    digest: str | None = None
    approves: str | None = None
    wants: str | None = None
    reads: str | None = None
    is_sequential: bool = False
    """True if the code's own task asked it while none of its steps was in flight."""

    def encoded(self) -> Encoded:
        """Return the record as bytes."""
        more = [True] if self.is_sequential else []
        return document([self.request_id, self.digest, self.approves, self.wants, self.reads, *more])

    @classmethod
    def of(cls, kept: Kept) -> AskedRecord:
        """Read the record of a question. Raises CheckpointDamagedError."""
        return _from_list(cls, kept)


def _from_list(cls: type[PlainT], kept: Kept) -> PlainT:
    try:
        return cls(*plain_record(kept, list))
    except MALFORMED as fault:
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {fault}") from fault


def plain_record(kept: Kept, expected: type) -> Any:
    """Read a record that is a plain value, such as a moment. Raises CheckpointDamagedError."""
    value = kept.parse_once(lambda: loads(kept.require_encoded().text))
    if not isinstance(value, expected):
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} is not a {expected.__name__}")
    return value


def call_digest(fn: Callable[..., Any], args: tuple[Any, ...], more: tuple[Any, ...], values: Values) -> str | None:
    """Return a digest of a step's arguments, and of what else tells its function from others.

    None if they can't be encoded, and so can't be compared.
    """
    bound = (args, fn.args, fn.keywords) if isinstance(fn, functools.partial) else (args,)
    value = (bound, more) if more else bound
    for digest_of in (functools.partial(value_digest, values=values), _untrusting_digest):
        with suppress(EncodeError):
            return digest_of(value, path="arguments of a step")
    return None


def value_digest(value: object, values: Values, path: str = "what is approved") -> str:
    """Return a digest of a value, whatever the order of its keys. Raises EncodeError."""
    encoded = values.canonical(value, path)
    return _untrusting_digest(value, path) if encoded is None else _digest(encoded)


def _untrusting_digest(value: object, path: str) -> str:
    """Digest a value that is never read back, so that the types in it need not be trusted. Raises EncodeError."""
    codec = Codec(Trust.of(list(dict.fromkeys(_types_in(value)))))
    return _digest(codec.encode(value, path=path, is_canonical=True))


def _types_in(value: object) -> Iterator[type]:
    yield type(value)
    if isinstance(value, dict):
        for key, each in cast("dict[object, object]", value).items():
            yield from _types_in(key)
            yield from _types_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in cast("Iterable[object]", value):
            yield from _types_in(each)


def _digest(encoded: Encoded) -> str:
    text = encoded.text
    return _digest_of_short(text) if len(text) <= _SHORT_LENGTH_MAX else _digest_of(text)


def _digest_of(text: bytes) -> str:
    return digest(json.dumps(loads(text), sort_keys=True).encode())


# A handler that waits often makes all its earlier calls again, with the same arguments, after each wait.
_digest_of_short = functools.lru_cache(maxsize=4096)(_digest_of)


def fields_of(kept: Kept, cls: Any) -> Mapping[str, Kept]:
    """Return the fields of a kept dataclass, each as a kept value; none if it is of another class."""
    if kept.has_live:
        found = kept.live
        names = [each.name for each in fields(cls)] if type(found) is cls else []
        return {name: Kept(path=f"{kept.path}.{name}", live=getattr(found, name), has_live=True) for name in names}
    trees = _trees(kept.require_encoded().text, stored_name(cls))
    return {name: kept.inside(read_document(tree), f"{kept.path}.{name}") for name, tree in trees.items()}


def _trees(text: bytes, name: str) -> dict[str, Any]:
    tree = loads(text)
    is_found = isinstance(tree, dict) and (tree.get("~"), tree.get("type")) == (DataclassKind.tag, name)  # pyright: ignore[reportUnknownMemberType]
    return cast("dict[str, Any]", tree["fields"]) if is_found else {}
