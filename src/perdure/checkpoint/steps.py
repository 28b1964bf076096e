"""Records inside an activation: steps, attempts, questions and moments; and digests of values."""

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
    piece,
    plain,
    register_type,
    stored_name,
)
from perdure.errors import CheckpointDamagedError, EncodeError
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure.codec import Encoded, Values
    from perdure.kernel import Moment


@register_type
@dataclass(frozen=True, slots=True)
class InterruptedStep:
    """A request about a step that was running when the process died, so that its outcome is unknown.

    `key` is the step's idempotency key, under which the other side may know it.
    """

    name: str
    key: str
    executor_id: str
    started_at: str


@register_type
@dataclass(frozen=True, slots=True)
class StepDecision:
    """The answer to an `InterruptedStep`: rerun it, take it as done with this result, or let it fail."""

    action: Literal["rerun", "done", "fail"]
    result: Any = None


@dataclass(frozen=True, slots=True)
class RaisedRecord:
    """An error that a step raised and the handler caught: the name of its type, and its arguments."""

    type: str
    args: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of a step: started (`is_open`), finished (it has a `result`), or raised.

    `raised` lists the caught errors of earlier calls; the step may have been called again and finished since.

    `round` counts restarts after interruptions, and `spent` is what the step reported to have spent. A started step
    records its idempotency key and the id of the request that would ask about it: a fork derives others, but the other
    side may know these.
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
        """Encode the record."""
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
        """Decode the record of a step. Raises CheckpointDamagedError."""
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


@dataclass(frozen=True, slots=True)
class TriesRecord:
    """Failed attempts: their number, when the next one is due, and the last error."""

    count: int
    due: Moment | None = None
    error: str | None = None

    def encoded(self) -> Encoded:
        """Encode the record."""
        return plain([self.count, self.due, self.error])

    @classmethod
    def of(cls, kept: Kept) -> TriesRecord:
        """Decode the record of attempts. Raises CheckpointDamagedError."""
        try:
            count, due, error = _tree(kept)
        except (TypeError, ValueError) as fault:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {fault}") from fault
        return cls(count, due, error)


@dataclass(frozen=True, slots=True)
class AskedRecord:
    """A question: the request, the digest that identifies it, and the digest of what it approves.

    `wants` is the type of the answer, and `reads` identifies the text of the function that asked.
    """

    request_id: str
    digest: str | None = None
    approves: str | None = None
    wants: str | None = None
    reads: str | None = None

    def encoded(self) -> Encoded:
        """Encode the record."""
        return plain([self.request_id, self.digest, self.approves, self.wants, self.reads])

    @classmethod
    def of(cls, kept: Kept) -> AskedRecord:
        """Decode the record of a question. Raises CheckpointDamagedError."""
        try:
            request_id, digest_, approves, *more = _tree(kept)
            return cls(request_id, digest_, approves, *more)
        except (TypeError, ValueError) as fault:
            raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path}: {fault}") from fault


def moment_in(kept: Kept) -> Moment:
    """Decode a moment. Raises CheckpointDamagedError."""
    moment = _tree(kept)
    if not isinstance(moment, str):
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} is no moment")
    return moment


def label_record(label: str) -> Encoded:
    """Encode a short text."""
    return plain(label)


def label_in(kept: Kept) -> str | None:
    """Decode a short text; None if the record holds something else."""
    label = _tree(kept)
    return label if isinstance(label, str) else None


def counts_record(counts: Mapping[str, int]) -> Encoded:
    """Encode the number of emitted events, by name."""
    return plain(dict(counts))


def counts_in(kept: Kept) -> Mapping[str, int]:
    """Decode the number of emitted events. Raises CheckpointDamagedError."""
    counts = _tree(kept)
    if not isinstance(counts, dict):
        raise CheckpointDamagedError(kept.checkpoint_id, f"{kept.path} counts nothing")
    return cast("dict[str, int]", counts)


def _tree(kept: Kept) -> Any:
    return loads(kept.require_encoded().text)


def _inside(kept: Kept, tree: object, path: str) -> Kept:
    """Return a value inside a record, with the blobs of the record."""
    stored: Mapping[str, bytes] | None = kept.stored
    if stored is None:
        stored = {part.hash: part.data for part in kept.require_encoded().parts}
    return Kept(path=path, encoded=piece(tree), stored=stored, checkpoint_id=kept.checkpoint_id)


def arguments_digest(fn: Callable[..., Any], args: tuple[Any, ...], values: Values) -> str | None:
    """Return a digest of a step's arguments; None if they can't be encoded."""
    bound: tuple[object, ...] = (args,)
    if isinstance(fn, functools.partial):
        bound = (args, fn.args, fn.keywords)
    try:
        encoded = values.canonical(bound, "arguments of a step")
    except EncodeError:
        return None
    return None if encoded is None else _digest(encoded)


def value_digest(value: object, values: Values) -> str:
    """Return a digest of a value that does not depend on the order of keys. Raises EncodeError."""
    path = "what is approved"
    encoded = values.canonical(value, path)
    if encoded is None:
        # Without a storage nothing is read back, so only the value's own type must be trusted.
        encoded = Codec(Trust.of([type(value)])).encode(value, path=path, sorts_mappings=True)
    return _digest(encoded)


def _digest(encoded: Encoded) -> str:
    return digest(json.dumps(loads(encoded.text), sort_keys=True).encode())


def moment_record(moment: Moment) -> Encoded:
    """Encode a moment."""
    return plain(moment)


def fields_of(kept: Kept, cls: Any) -> Mapping[str, Kept]:
    """Return the fields of a kept dataclass, each as a kept value; none if it is of another class."""
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
