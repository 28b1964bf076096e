"""Records inside an activation as bytes: steps, attempts, questions, moments; and digests of values."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from perdure.codec import (
    Codec,
    DataclassKind,
    Kept,
    Trust,
    document,
    loads,
    read_document,
    register_type,
    stored_name,
)
from perdure.errors import CheckpointDamagedError, EncodeError
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.codec import Encoded, Values
    from perdure.kernel import Moment


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


@dataclass(frozen=True, slots=True)
class RaisedRecord:
    """An error of a step that the handler caught: the name of its type, and its arguments."""

    type: str
    args: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of a step: started (`is_open`), raised, or finished (it has a `result`).

    `raised` holds the errors that the handler caught, one for each call that raised. Such a step may have been called
    again, and be finished.

    `round` counts how often it was started again after an interruption, `spent` is what it reported to have spent.
    One that has started has its idempotency key, and the id of the request that asks about it: a fork derives others,
    but these are the ones that others may know.
    """

    at: Moment
    digest: str | None
    round: int = 0
    is_open: bool = True
    result: Kept | None = None
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    key: str | None = None
    request_id: str | None = None
    raised: tuple[RaisedRecord, ...] = ()
    is_sequential: bool = False
    """True if the code's own task called it while no other of its steps was in flight."""

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
        return document(tree)

    @classmethod
    def of(cls, kept: Kept, name: str) -> StepRecord:
        """Read the record of a step. Raises CheckpointDamagedError."""
        tree = _tree(kept)
        try:
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
            )
        except KeyError as error:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} lacks {error}") from error


@dataclass(frozen=True, slots=True)
class AttemptsRecord:
    """The failed attempts at something: their count, when the next may start, the last error."""

    count: int
    due: Moment | None = None
    error: str | None = None

    def encoded(self) -> Encoded:
        """Return the record as bytes."""
        return document([self.count, self.due, self.error])

    @classmethod
    def of(cls, kept: Kept) -> AttemptsRecord:
        """Read the record of attempts. Raises CheckpointDamagedError."""
        try:
            count, due, error = _tree(kept)
        except (TypeError, ValueError) as fault:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {fault}") from fault
        return cls(count, due, error)


@dataclass(frozen=True, slots=True)
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
        try:
            request_id, digest_, approves, *more = _tree(kept)
            return cls(request_id, digest_, approves, *more)
        except (TypeError, ValueError) as fault:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {fault}") from fault


def moment_in(kept: Kept) -> Moment:
    """Read a moment from a record. Raises CheckpointDamagedError."""
    moment = _tree(kept)
    if not isinstance(moment, str):
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} is not a moment")
    return moment


def counts_record(counts: Mapping[str, int]) -> Encoded:
    """Return the counts of emitted events, by name, as a record."""
    return document(dict(counts))


def counts_in(kept: Kept) -> Mapping[str, int]:
    """Read the counts of emitted events. Raises CheckpointDamagedError."""
    counts = _tree(kept)
    if not isinstance(counts, dict):
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} has no counts")
    return cast("dict[str, int]", counts)


def _tree(kept: Kept) -> Any:
    return loads(kept.require_encoded().text)


def arguments_digest(fn: Callable[..., Any], args: tuple[Any, ...], values: Values) -> str | None:
    """Return a digest of a step's arguments; None if they can't be encoded, and so can't be compared."""
    return _digest_of(_bound(fn, args), values)


def call_digest(fn: Callable[..., Any], args: tuple[Any, ...], blobs: tuple[Any, ...], values: Values) -> str | None:
    """Return a digest of a step's arguments and of what else tells its function from others; None if there is none."""
    bound = _bound(fn, args)
    return _digest_of((bound, blobs) if blobs else bound, values)


def _bound(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[object, ...]:
    return (args, fn.args, fn.keywords) if isinstance(fn, functools.partial) else (args,)


def _digest_of(value: object, values: Values) -> str | None:
    path = "arguments of a step"
    try:
        encoded = values.canonical(value, path)
        return _untrusting_digest(value, path) if encoded is None else _digest(encoded)
    except EncodeError:
        pass
    try:
        return _untrusting_digest(value, path)
    except EncodeError:
        return None


def value_digest(value: object, values: Values) -> str:
    """Return a digest of a value, whatever the order of its keys. Raises EncodeError."""
    path = "what is approved"
    encoded = values.canonical(value, path)
    return _untrusting_digest(value, path) if encoded is None else _digest(encoded)


def _untrusting_digest(value: object, path: str) -> str:
    """Digest a value that is never read back, so that the types in it need not be trusted. Raises EncodeError."""
    codec = Codec(Trust.of(list(dict.fromkeys(_types_in(value)))))
    return _digest(codec.encode(value, path=path, sorts_mappings=True))


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
    return digest(json.dumps(loads(encoded.text), sort_keys=True).encode())


def moment_record(moment: Moment) -> Encoded:
    """Return a moment as a record."""
    return document(moment)


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
