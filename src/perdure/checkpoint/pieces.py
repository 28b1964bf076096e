"""The values of the kernel as pieces of documents: deliveries, requests, outputs, whole snapshots; and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from perdure.checkpoint.documents import array, document, dumps, loads, piece, plain, verified, with_parts
from perdure.checkpoint.schema import schema_of
from perdure.checkpoint.values import Kept, as_kept, decode
from perdure.kernel.snapshot import (
    Answered,
    Cancelled,
    Delayed,
    Delivery,
    Limits,
    Output,
    Request,
    Snapshot,
    Suspended,
)
from perdure.kernel.trail import CHUNK_LENGTH, Trail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from perdure.checkpoint.codec import Codec, Encoded
    from perdure.records import Part


class PieceWriter:
    """Encodes what a run is made of. A chunk that is full is encoded once."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._chunks: dict[int, tuple[object, Part, tuple[Part, ...]]] = {}

    def parts(self, snapshot: Snapshot, prefix: str) -> Iterator[tuple[str, Part, tuple[Part, ...]]]:
        """Every part of a snapshot: its path, the part, and the parts that it refers to."""
        if prefix:
            counts = plain([snapshot.turn, snapshot.iteration, snapshot.since_input])
            yield f"{prefix}counts", counts.part(), ()
        for executor_id, value in snapshot.executors.items():
            yield _kept(f"{prefix}executor/{executor_id}", value)
        for (scope, key), value in snapshot.state.items():
            yield _kept(f"{prefix}state/{quote(scope, safe='')}/{key}", value)
        for request in snapshot.requests.values():
            yield _whole(f"{prefix}request/{request.id}", self.request(request))
        if snapshot.deliveries:
            yield _whole(f"{prefix}deliveries", array(map(self.delivery, snapshot.deliveries)))
        if snapshot.fan_in:
            yield _whole(f"{prefix}fan_in", self._fan_in(snapshot.fan_in))
        yield from self._trail(f"{prefix}outputs", snapshot.outputs, self.output)
        yield from self._trail(f"{prefix}answered", snapshot.answered, _answered)
        yield from self._trail(f"{prefix}received", snapshot.received, plain)
        if snapshot.kwargs is not None:
            yield _kept(f"{prefix}kwargs", snapshot.kwargs)
        yield from self._waiting(snapshot, prefix)
        for executor_id, child in snapshot.children.items():
            yield from self.parts(child, f"{prefix}child/{quote(executor_id, safe='')}/")

    def _waiting(self, snapshot: Snapshot, prefix: str) -> Iterator[tuple[str, Part, tuple[Part, ...]]]:
        """What waits for its time or was stopped, and what the run may take."""
        if snapshot.suspended:
            yield _whole(f"{prefix}suspended", array(map(self._suspended, snapshot.suspended)))
        if snapshot.delayed:
            yield _whole(f"{prefix}delayed", array(map(self._delayed, snapshot.delayed)))
        for key, value in snapshot.carried.items():
            yield _kept(f"{prefix}carried/{key}", value)
        if snapshot.cancelled is not None:
            cancelled = snapshot.cancelled
            yield _whole(f"{prefix}cancelled", plain([cancelled.at, cancelled.by, cancelled.reason]))
        if snapshot.limits != Limits():
            limits = snapshot.limits
            yield _whole(f"{prefix}limits", plain([limits.deadline, dict(limits.budget), dict(limits.spent)]))

    def _suspended(self, suspended: Suspended) -> Encoded:
        return document(
            {
                "delivery": self.delivery(suspended.delivery),
                "wake_at": plain(suspended.wake_at),
                "awaits": plain(suspended.awaits),
            }
        )

    def _delayed(self, delayed: Delayed) -> Encoded:
        return document(
            {
                "due": plain(delayed.due),
                "source": plain(delayed.source_id),
                "send": plain(delayed.send),
                "value": self.value(delayed.data),
                "asked_for": plain(delayed.asked_for),
                "targets": plain(delayed.targets),
                "fan_ins": plain(delayed.fan_ins),
            }
        )

    def _trail(
        self, path: str, trail: Trail[Any], encode: Callable[[Any], Encoded]
    ) -> Iterator[tuple[str, Part, tuple[Part, ...]]]:
        for index, chunk in enumerate(trail.sealed):
            cached = self._chunks.get(id(chunk))
            if cached is not None and cached[0] is chunk:
                yield f"{path}/{index}", cached[1], cached[2]
                continue
            encoded = array(map(encode, chunk))
            self._chunks[id(chunk)] = (chunk, encoded.part(), encoded.parts)
            yield _whole(f"{path}/{index}", encoded)
        if trail.tail:
            yield _whole(f"{path}/{len(trail.sealed)}", array(map(encode, trail.tail)))

    def value(self, value: object) -> Encoded:
        """A kept value: in place if it is small, else as a reference."""
        return self._codec.inline(as_kept(value).require_encoded())

    def type(self, type_: object, path: str) -> Encoded:
        """A type expression."""
        return self._codec.encode(type_, path=path)

    def request(self, request: Request) -> Encoded:
        """A request."""
        path = f"request {request.id!r}"
        members = {
            "id": plain(request.id),
            "executor": plain(request.executor_id),
            "data": self.value(request.data),
            "request_type": self.type(request.request_type, path),
            "response_type": self.type(request.response_type, path),
        }
        for name in _SOMETIMES:
            if getattr(request, name):
                members[name] = plain(getattr(request, name))
        if request.default is not None:
            members["default"] = self.value(request.default)
        schema = schema_of(request.response_type)
        if schema is not None:
            # For those who answer without the program.
            members["schema"] = plain(schema)
        return document(members)

    def delivery(self, delivery: Delivery) -> Encoded:
        """A delivery."""
        members = {
            "target": plain(delivery.target_id),
            "sources": plain(delivery.sources),
            "values": array(map(self.value, delivery.values)),
            "send": plain(delivery.send),
        }
        if delivery.is_gathered:
            members["gathered"] = plain(value=True)
        if delivery.asked_for is not None:
            members["asked_for"] = plain(delivery.asked_for)
        if delivery.answers is not None:
            members["answers"] = self.request(delivery.answers)
        if delivery.home is not None:
            members["home"] = plain(delivery.home)
        if delivery.woken_at is not None:
            members["woken_at"] = plain(delivery.woken_at)
        return document(members)

    def _fan_in(self, buffers: Mapping[str, Mapping[str, tuple[object, ...]]]) -> Encoded:
        return document(
            {
                group_id: document({source: array(map(self.value, values)) for source, values in buffer.items()})
                for group_id, buffer in buffers.items()
            }
        )

    def output(self, output: Output) -> Encoded:
        """An output."""
        return document(
            {
                "executor": plain(output.executor_id),
                "kind": plain(output.kind),
                "data": self.value(output.data),
            }
        )


def _kept(path: str, value: object) -> tuple[str, Part, tuple[Part, ...]]:
    kept = as_kept(value)
    return path, kept.part(), kept.require_encoded().parts


def _whole(path: str, encoded: Encoded) -> tuple[str, Part, tuple[Part, ...]]:
    return path, encoded.part(), encoded.parts


def _answered(answered: Answered) -> Encoded:
    return plain([answered.request_id, answered.at, answered.by, answered.what])


_SOMETIMES = ("opened_at", "deadline", "approves", "resumes", "refusals")
"""What a request has only in some cases."""


class PieceReader:
    """Reads the same from the parts of one checkpoint. Values stay encoded until they are asked for.

    With `brings_parts` each value has its parts with it: what was read from a journal is written into the checkpoint
    that makes the journal void.
    """

    def __init__(
        self, codec: Codec, parts: Mapping[str, bytes], checkpoint_id: str, *, brings_parts: bool = False
    ) -> None:
        self._codec = codec
        self._parts = parts
        self._checkpoint_id = checkpoint_id
        self._brings_parts = brings_parts

    def snapshot(self, tree: dict[str, Any], counts: tuple[int, int, int]) -> Snapshot:
        """A whole snapshot, from its table of contents."""
        turn, iteration, since_input = counts
        return Snapshot(
            turn=turn,
            iteration=iteration,
            since_input=since_input,
            deliveries=tuple(map(self.delivery, self._read(tree.get("deliveries")) or ())),
            fan_in=self._fan_in(self._read(tree.get("fan_in")) or {}),
            state={
                (unquote(scope), key): self.stored(address, f"state[{key!r}]")
                for scope, keys in tree.get("state", {}).items()
                for key, address in keys.items()
            },
            executors={
                executor_id: self.stored(address, f"state of executor {executor_id!r}")
                for executor_id, address in tree.get("executor", {}).items()
            },
            requests={
                request_id: self.request(self._read(address)) for request_id, address in tree.get("request", {}).items()
            },
            answered=self.answered(tree),
            received=self._trail(tree.get("received", {}), str),
            outputs=self._trail(tree.get("outputs", {}), self.output),
            children={
                unquote(executor_id): self.snapshot(child, self.counts(child))
                for executor_id, child in tree.get("child", {}).items()
            },
            kwargs=self.stored(tree["kwargs"], "run kwargs") if "kwargs" in tree else None,
            suspended=tuple(map(self._suspended, self._read(tree.get("suspended")) or ())),
            delayed=tuple(map(self._delayed, self._read(tree.get("delayed")) or ())),
            carried={key: self.stored(address, f"record {key!r}") for key, address in tree.get("carried", {}).items()},
            cancelled=Cancelled(*self._read(tree["cancelled"])) if "cancelled" in tree else None,
            limits=Limits(*self._read(tree["limits"])) if "limits" in tree else Limits(),
        )

    def _suspended(self, tree: dict[str, Any]) -> Suspended:
        return Suspended(self.delivery(tree["delivery"]), tree["wake_at"], tree["awaits"])

    def _delayed(self, tree: dict[str, Any]) -> Delayed:
        return Delayed(
            tree["due"],
            tree["source"],
            tree["send"],
            self.inline(tree["value"], f"message of executor {tree['source']!r}"),
            tree["asked_for"],
            tuple(tree["targets"]),
            tuple(tree["fan_ins"]),
        )

    def counts(self, tree: dict[str, Any]) -> tuple[int, int, int]:
        """The counts of a sub-workflow: turn, supersteps of the turn, supersteps since the last input."""
        turn, iteration, since_input = self._read(tree["counts"])
        return turn, iteration, since_input

    def answered(self, tree: dict[str, Any]) -> Trail[Answered]:
        """The requests that have been answered."""
        return self._trail(tree.get("answered", {}), lambda pair: Answered(*pair))

    def _fan_in(self, tree: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, tuple[Kept, ...]]]:
        return {
            group_id: {
                source: tuple(self.inline(value, f"message of executor {source!r}") for value in values)
                for source, values in buffer.items()
            }
            for group_id, buffer in tree.items()
        }

    def _read(self, address: str | None) -> Any:
        return None if address is None else loads(verified(self._parts, address))

    def stored(self, address: str, path: str) -> Kept:
        """A value that is a part of its own."""
        return self._kept(verified(self._parts, address), path)

    def inline(self, tree: object, path: str) -> Kept:
        """A value inside of a document."""
        return self._kept(dumps(tree), path)

    def _kept(self, text: bytes, path: str) -> Kept:
        encoded = piece(loads(text))
        if self._brings_parts and encoded.refs:
            encoded = replace(encoded, parts=with_parts(encoded.refs, self._parts))
        return Kept(path=path, encoded=encoded, stored=self._parts, checkpoint_id=self._checkpoint_id)

    def _type(self, tree: object, path: str) -> object:
        return decode(self._codec, self.inline(tree, path))

    def request(self, tree: dict[str, Any]) -> Request:
        """A request."""
        path = f"request {tree['id']!r}"
        return Request(
            tree["id"],
            tree["executor"],
            self.inline(tree["data"], path),
            self._type(tree["request_type"], path),
            self._type(tree["response_type"], path),
            opened_at=tree.get("opened_at"),
            deadline=tree.get("deadline"),
            default=self.inline(tree["default"], f"default of {path}") if "default" in tree else None,
            approves=tree.get("approves"),
            resumes=tree.get("resumes"),
            refusals=tuple(tree.get("refusals", ())),
        )

    def delivery(self, tree: dict[str, Any]) -> Delivery:
        """A delivery."""
        path = f"message for executor {tree['target']!r}"
        return Delivery(
            tree["target"],
            tuple(tree["sources"]),
            tuple(self.inline(value, path) for value in tree["values"]),
            tree["send"],
            is_gathered=tree.get("gathered", False),
            asked_for=tree.get("asked_for"),
            answers=self.request(tree["answers"]) if "answers" in tree else None,
            home=tree.get("home"),
            woken_at=tree.get("woken_at"),
        )

    def output(self, tree: dict[str, Any]) -> Output:
        """An output."""
        path = f"output of executor {tree['executor']!r}"
        return Output(tree["executor"], tree["kind"], self.inline(tree["data"], path))

    def _trail(self, chunks: Mapping[str, str], read: Callable[[Any], Any]) -> Trail[Any]:
        loaded = [tuple(map(read, self._read(chunks[index]))) for index in sorted(chunks, key=int)]
        if loaded and len(loaded[-1]) < CHUNK_LENGTH:
            return Trail(tuple(loaded[:-1]), loaded[-1])
        return Trail(tuple(loaded), ())


def tree_of(toc: Mapping[str, str]) -> dict[str, Any]:
    """The table of contents by its first names: `state/<scope>/<key>`, `child/<id>/...` and so on, nested."""
    tree: dict[str, Any] = {}
    for path, address in toc.items():
        _place(tree, path, address)
    return tree


def _place(tree: dict[str, Any], path: str, address: str) -> None:
    kind, _, rest = path.partition("/")
    if not rest:
        tree[kind] = address
    elif kind == "state":
        scope, _, key = rest.partition("/")
        tree.setdefault(kind, {}).setdefault(scope, {})[key] = address
    elif kind == "child":
        executor_id, _, inner = rest.partition("/")
        _place(tree.setdefault(kind, {}).setdefault(executor_id, {}), inner, address)
    else:
        tree.setdefault(kind, {})[rest] = address
