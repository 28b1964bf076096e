"""What is recorded inside an activation, as bytes: steps, the attempts at something, moments; and digests of values."""

from __future__ import annotations

import functools
import json
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from perdure.codec import (
    Codec,
    DataclassKind,
    Kept,
    Trust,
    document,
    loads,
    piece,
    plain,
    register_type,
    stored_name,
)
from perdure.data import frozen
from perdure.errors import CheckpointDamagedError, EncodeError
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure.codec import Encoded, Values
    from perdure.kernel import Moment


@register_type
@frozen
class InterruptedStep:
    """A request: this step had begun when the process died, and nobody knows whether its work was done.

    `key` is the idempotency key that the step had, under which the other side may know it.
    """

    name: str
    key: str
    executor_id: str
    started_at: str


@register_type
@frozen
class StepDecision:
    """The answer to an `InterruptedStep`: do it again; take it as done, with this result; or let the step fail."""

    action: Literal["rerun", "done", "fail"]
    result: Any = None


@frozen
class RaisedRecord:
    """An error that a step has raised and that was caught: the name of its type, and what it was made of."""

    type: str
    args: tuple[object, ...]


@frozen
class StepRecord:
    """What is known of a step: begun (`result` is None and it is `open`), raised (not `open`), or finished.

    Of one that raised and was gone on past, `raised` says with what, for each call that did. Such a step may have been
    called again, and be finished.

    `round` counts how often it was begun anew after an interruption; `spent` is what it reported to have spent. One
    that has begun says with which idempotency key, and which request asks what became of it if it is interrupted: a
    fork derives others, but this is what the other side may know.
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

    def encoded(self) -> Encoded:
        """The record as bytes."""
        members = {"at": plain(self.at), "digest": plain(self.digest), "round": plain(self.round)}
        if self.result is not None:
            members["result"] = self.result.require_encoded()
            if self.spent:
                members["spent"] = plain(dict(self.spent))
        elif self.is_open:
            members["open"] = plain(value=True)
            members["key"] = plain(self.key)
            members["request"] = plain(self.request_id)
        if self.raised:
            members["raised"] = plain([[each.type, *each.args] for each in self.raised])
        return document(members)

    @classmethod
    def of(cls, kept: Kept, name: str) -> StepRecord:
        """The record of a step. Raises CheckpointDamagedError."""
        tree = _tree(kept)
        try:
            result = _inside(kept, tree["result"], f"result of step {name!r}") if "result" in tree else None
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
            )
        except KeyError as error:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} lacks {error}") from error


@frozen
class TriesRecord:
    """How often something was tried and failed, when it may be tried again, and how it failed last."""

    count: int
    due: Moment | None = None
    error: str | None = None

    def encoded(self) -> Encoded:
        """The record as bytes."""
        return plain([self.count, self.due, self.error])

    @classmethod
    def of(cls, kept: Kept) -> TriesRecord:
        """The record of attempts. Raises CheckpointDamagedError."""
        try:
            count, due, error = _tree(kept)
        except (TypeError, ValueError) as fault:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {fault}") from fault
        return cls(count, due, error)


@frozen
class AskedRecord:
    """What was asked at some place: the request, what tells the question from others, and what was to be approved.

    `wants` is the type of the answer, `reads` tells the function that asked from what it was changed into.
    """

    request_id: str
    digest: str | None = None
    approves: str | None = None
    wants: str | None = None
    reads: str | None = None

    def encoded(self) -> Encoded:
        """The record as bytes."""
        return plain([self.request_id, self.digest, self.approves, self.wants, self.reads])

    @classmethod
    def of(cls, kept: Kept) -> AskedRecord:
        """The record of a question. Raises CheckpointDamagedError."""
        try:
            request_id, digest_, approves, *more = _tree(kept)
            return cls(request_id, digest_, approves, *more)
        except (TypeError, ValueError) as fault:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {fault}") from fault


def moment_in(kept: Kept) -> Moment:
    """The moment that a record holds. Raises CheckpointDamagedError."""
    moment = _tree(kept)
    if not isinstance(moment, str):
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} is no moment")
    return moment


def label_record(label: str) -> Encoded:
    """A short text as a record."""
    return plain(label)


def label_in(kept: Kept) -> str | None:
    """The short text that a record holds; None if it holds something else."""
    label = _tree(kept)
    return label if isinstance(label, str) else None


def counts_record(counts: Mapping[str, int]) -> Encoded:
    """How often things were told, by name, as a record."""
    return plain(dict(counts))


def counts_in(kept: Kept) -> Mapping[str, int]:
    """How often things were told. Raises CheckpointDamagedError."""
    counts = _tree(kept)
    if not isinstance(counts, dict):
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} counts nothing")
    return cast("dict[str, int]", counts)


def _tree(kept: Kept) -> Any:
    return loads(kept.require_encoded().text)


def _inside(kept: Kept, tree: object, path: str) -> Kept:
    """A value inside of a record, with the parts of the record."""
    stored: Mapping[str, bytes] | None = kept.stored
    if stored is None:
        stored = {part.hash: part.data for part in kept.require_encoded().parts}
    return Kept(path=path, encoded=piece(tree), stored=stored, checkpoint_id=kept.checkpoint_id)


def arguments_digest(fn: Callable[..., Any], args: tuple[Any, ...], values: Values) -> str | None:
    """What tells the arguments of a step from others; None if they can't be encoded, and so can't be compared."""
    bound: tuple[object, ...] = (args,)
    if isinstance(fn, functools.partial):
        bound = (args, fn.args, fn.keywords)
    try:
        encoded = values.canonical(bound, "arguments of a step")
    except EncodeError:
        return None
    return None if encoded is None else _digest(encoded)


def value_digest(value: object, values: Values) -> str:
    """What tells a value from others, whatever the order of its keys. Raises EncodeError."""
    path = "what is approved"
    encoded = values.canonical(value, path)
    if encoded is None:
        # Without a storage nothing is read back: the value's own type is all that has to be trusted.
        encoded = Codec(Trust.of([type(value)])).encode(value, path=path, sorts_mappings=True)
    return _digest(encoded)


def _digest(encoded: Encoded) -> str:
    return digest(json.dumps(loads(encoded.text), sort_keys=True).encode())


def moment_record(moment: Moment) -> Encoded:
    """A moment as a record."""
    return plain(moment)


def fields_of(kept: Kept, cls: Any) -> Mapping[str, Kept]:
    """The fields of a dataclass that is kept; none if an object of another class is."""
    if kept.has_live:
        found = kept.live
        names = [each.name for each in fields(cls)] if type(found) is cls else []
        return {name: Kept(path=f"{kept.path}.{name}", live=getattr(found, name), has_live=True) for name in names}
    encoded, stored = kept.require_encoded(), kept.stored
    if stored is None:
        stored = {part.hash: part.data for part in encoded.parts}
    return {
        name: Kept(path=f"{kept.path}.{name}", encoded=piece(tree), stored=stored, checkpoint_id=kept.checkpoint_id)
        for name, tree in _trees(encoded.text, stored_name(cls)).items()
    }


def _trees(text: bytes, name: str) -> dict[str, Any]:
    tree = loads(text)
    is_found = isinstance(tree, dict) and (tree.get("~"), tree.get("type")) == (DataclassKind.tag, name)  # pyright: ignore[reportUnknownMemberType]
    return cast("dict[str, Any]", tree["fields"]) if is_found else {}
