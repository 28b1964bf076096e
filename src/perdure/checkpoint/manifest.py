"""A snapshot as a manifest and its parts, and back. docs/checkpoint-format.md describes what is written here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from perdure.checkpoint.codec import DamagedPartError
from perdure.checkpoint.documents import array, document, dumps, loads, piece, plain, verified
from perdure.checkpoint.values import Kept, as_kept, decode
from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.kernel.snapshot import Answered, Delivery, Output, Request, Snapshot
from perdure.kernel.trail import CHUNK_LENGTH, Trail
from perdure.records import Manifest, NewRun
from perdure.typenames import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from perdure.checkpoint.codec import Codec, Encoded
    from perdure.records import Part

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What a manifest says beside the snapshot: who, where in the run, of which graph."""

    checkpoint_id: str
    run_id: str
    workflow_name: str
    position: int
    previous_id: str | None
    timestamp: str
    kind: str
    graph_signature_hash: str
    definition_version: int
    origin: NewRun
    """How the run began, so that a copy of the checkpoint in another store is a copy of the run."""


class Writer:
    """Writes the checkpoints of one run, each as what changed since the one before."""

    def __init__(self, codec: Codec, graph: Mapping[str, Any]) -> None:
        self._codec = codec
        self._graph = plain(graph).part()
        self._chunks: dict[int, tuple[object, Part, tuple[Part, ...]]] = {}

    def write(
        self, snapshot: Snapshot, identity: Identity, known: Mapping[str, str]
    ) -> tuple[Manifest, tuple[Part, ...]]:
        """The manifest of a snapshot, and the parts that `known`, the contents of the predecessor, does not have."""
        toc: dict[str, str] = {}
        fresh: dict[str, Part] = {}
        for path, part, nested in self._parts(snapshot, ""):
            toc[path] = part.hash
            if known.get(path) != part.hash:
                fresh.update((inner.hash, inner) for inner in nested)
                fresh[part.hash] = part
        manifest = Manifest(
            checkpoint_id=identity.checkpoint_id,
            run_id=identity.run_id,
            workflow_name=identity.workflow_name,
            position=identity.position,
            previous_id=identity.previous_id,
            timestamp=identity.timestamp,
            iteration_count=snapshot.iteration,
            header=dumps(_header(snapshot, identity)),
            toc=toc,
        )
        return manifest, tuple(fresh.values())

    def _parts(self, snapshot: Snapshot, prefix: str) -> Iterator[tuple[str, Part, tuple[Part, ...]]]:
        if not prefix:
            yield "graph", self._graph, ()
        else:
            counts = plain([snapshot.turn, snapshot.iteration, snapshot.since_input])
            yield f"{prefix}counts", counts.part(), ()
        for executor_id, value in snapshot.executors.items():
            yield _kept(f"{prefix}executor/{executor_id}", value)
        for (scope, key), value in snapshot.state.items():
            yield _kept(f"{prefix}state/{quote(scope, safe='')}/{key}", value)
        for request in snapshot.requests.values():
            yield _whole(f"{prefix}request/{request.id}", self._request(request))
        if snapshot.deliveries:
            yield _whole(f"{prefix}deliveries", array(map(self._delivery, snapshot.deliveries)))
        if snapshot.fan_in:
            yield _whole(f"{prefix}fan_in", self._fan_in(snapshot.fan_in))
        yield from self._trail(f"{prefix}outputs", snapshot.outputs, self._output)
        yield from self._trail(f"{prefix}answered", snapshot.answered, _answered)
        if snapshot.kwargs is not None:
            yield _kept(f"{prefix}kwargs", snapshot.kwargs)
        for executor_id, child in snapshot.children.items():
            yield from self._parts(child, f"{prefix}child/{quote(executor_id, safe='')}/")

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

    def _value(self, value: object) -> Encoded:
        return self._codec.inline(as_kept(value).require_encoded())

    def _type(self, type_: object, path: str) -> Encoded:
        return self._codec.encode(type_, path=path)

    def _request(self, request: Request) -> Encoded:
        path = f"request {request.id!r}"
        return document(
            {
                "id": plain(request.id),
                "executor": plain(request.executor_id),
                "data": self._value(request.data),
                "request_type": self._type(request.request_type, path),
                "response_type": self._type(request.response_type, path),
            }
        )

    def _delivery(self, delivery: Delivery) -> Encoded:
        members = {
            "target": plain(delivery.target_id),
            "sources": plain(delivery.sources),
            "values": array(map(self._value, delivery.values)),
            "send": plain(delivery.send),
        }
        if delivery.is_gathered:
            members["gathered"] = plain(value=True)
        if delivery.asked_for is not None:
            members["asked_for"] = plain(delivery.asked_for)
        if delivery.answers is not None:
            members["answers"] = self._request(delivery.answers)
        return document(members)

    def _fan_in(self, buffers: Mapping[str, Mapping[str, tuple[object, ...]]]) -> Encoded:
        return document(
            {
                group_id: document({source: array(map(self._value, values)) for source, values in buffer.items()})
                for group_id, buffer in buffers.items()
            }
        )

    def _output(self, output: Output) -> Encoded:
        return document(
            {
                "executor": plain(output.executor_id),
                "kind": plain(output.kind),
                "data": self._value(output.data),
            }
        )


def _kept(path: str, value: object) -> tuple[str, Part, tuple[Part, ...]]:
    kept = as_kept(value)
    return path, kept.part(), kept.require_encoded().parts


def _whole(path: str, encoded: Encoded) -> tuple[str, Part, tuple[Part, ...]]:
    return path, encoded.part(), encoded.parts


def _answered(answered: Answered) -> Encoded:
    return plain([answered.request_id, answered.at])


def _header(snapshot: Snapshot, identity: Identity) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "workflow_name": identity.workflow_name,
        "checkpoint_id": identity.checkpoint_id,
        "run_id": identity.run_id,
        "previous_checkpoint_id": identity.previous_id,
        "timestamp": identity.timestamp,
        "iteration_count": snapshot.iteration,
        "graph_signature_hash": identity.graph_signature_hash,
        "kind": identity.kind,
        "turn": snapshot.turn,
        "since_input": snapshot.since_input,
        "definition_version": identity.definition_version,
        "pending_request_info_events": {
            request.id: {
                "type": "request_info",
                "request_id": request.id,
                "source_executor_id": request.executor_id,
                "request_type": describe(request.request_type),
                "response_type": describe(request.response_type),
            }
            for request in snapshot.requests.values()
        },
        "withheld_kwargs": list(snapshot.withheld_kwargs),
        "run": {
            "created_at": identity.origin.created_at,
            "nonce": identity.origin.nonce,
            "input_digest": identity.origin.input_digest,
            "parent_checkpoint_id": identity.origin.parent_checkpoint_id,
        },
        "metadata": {},
        "version": "1.0",
    }


def header_of(manifest: Manifest) -> dict[str, Any]:
    """The header of a manifest. Raises WorkflowCheckpointException for a format of a later release."""
    try:
        header = loads(manifest.header)
        written = header["format"]
    except (DamagedPartError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, f"its header can't be read: {error}") from error
    if written > FORMAT:
        raise WorkflowCheckpointException(
            f"checkpoint {manifest.checkpoint_id!r} has format {written}, this perdure reads up to {FORMAT}; "
            "upgrade perdure to read it"
        )
    return header


def origin_of(manifest: Manifest) -> NewRun:
    """How the run of a checkpoint began, as far as it is told."""
    told = header_of(manifest).get("run", {})
    return NewRun(
        manifest.run_id,
        manifest.workflow_name,
        told.get("created_at", manifest.timestamp),
        told.get("nonce", manifest.run_id),
        told.get("input_digest"),
        told.get("parent_checkpoint_id"),
    )


def is_settled(manifest: Manifest) -> bool:
    """Whether the checkpoint leaves nothing to do and nothing to answer."""
    return "deliveries" not in manifest.toc and not any(path.startswith("request/") for path in manifest.toc)


class Reader:
    """Reads the snapshot of one checkpoint. Values stay encoded until they are asked for."""

    def __init__(self, manifest: Manifest, parts: Mapping[str, bytes], codec: Codec) -> None:
        self._manifest = manifest
        self._parts = parts
        self._codec = codec

    def snapshot(self) -> Snapshot:
        """The run as this checkpoint has it. Raises CheckpointDamagedError."""
        header = header_of(self._manifest)
        counts = (header["turn"], self._manifest.iteration_count, header["since_input"])
        try:
            snapshot = self._snapshot(_tree(self._manifest.toc), counts)
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error
        return replace(snapshot, withheld_kwargs=tuple(header.get("withheld_kwargs", ())))

    def graph(self) -> dict[str, Any]:
        """What the checkpoint says of the graph that wrote it; empty for one that was made by hand."""
        address = self._manifest.toc.get("graph")
        try:
            return {} if address is None else loads(verified(self._parts, address))
        except DamagedPartError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CheckpointDamagedError:
        return CheckpointDamagedError(self._manifest.checkpoint_id, str(error) or repr(error))

    def _snapshot(self, tree: dict[str, Any], counts: tuple[int, int, int]) -> Snapshot:
        turn, iteration, since_input = counts
        return Snapshot(
            turn=turn,
            iteration=iteration,
            since_input=since_input,
            deliveries=tuple(map(self._delivery, self._read(tree.get("deliveries")) or ())),
            fan_in=self._fan_in(self._read(tree.get("fan_in")) or {}),
            state={
                (unquote(scope), key): self._stored(address, f"state[{key!r}]")
                for scope, keys in tree.get("state", {}).items()
                for key, address in keys.items()
            },
            executors={
                executor_id: self._stored(address, f"state of executor {executor_id!r}")
                for executor_id, address in tree.get("executor", {}).items()
            },
            requests={
                request_id: self._request(self._read(address))
                for request_id, address in tree.get("request", {}).items()
            },
            answered=self._trail(tree.get("answered", {}), lambda pair: Answered(*pair)),
            outputs=self._trail(tree.get("outputs", {}), self._output),
            children={
                unquote(executor_id): self._snapshot(child, tuple(self._read(child["counts"])))
                for executor_id, child in tree.get("child", {}).items()
            },
            kwargs=self._stored(tree["kwargs"], "run kwargs") if "kwargs" in tree else None,
        )

    def _fan_in(self, tree: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, tuple[Kept, ...]]]:
        return {
            group_id: {
                source: tuple(self._inline(value, f"message of executor {source!r}") for value in values)
                for source, values in buffer.items()
            }
            for group_id, buffer in tree.items()
        }

    def _read(self, address: str | None) -> Any:
        return None if address is None else loads(verified(self._parts, address))

    def _stored(self, address: str, path: str) -> Kept:
        return self._kept(verified(self._parts, address), path)

    def _inline(self, tree: object, path: str) -> Kept:
        return self._kept(dumps(tree), path)

    def _kept(self, text: bytes, path: str) -> Kept:
        encoded = piece(loads(text))
        return Kept(path=path, encoded=encoded, stored=self._parts, checkpoint_id=self._manifest.checkpoint_id)

    def _type(self, tree: object, path: str) -> object:
        return decode(self._codec, self._inline(tree, path))

    def _request(self, tree: dict[str, Any]) -> Request:
        path = f"request {tree['id']!r}"
        return Request(
            tree["id"],
            tree["executor"],
            self._inline(tree["data"], path),
            self._type(tree["request_type"], path),
            self._type(tree["response_type"], path),
        )

    def _delivery(self, tree: dict[str, Any]) -> Delivery:
        path = f"message for executor {tree['target']!r}"
        return Delivery(
            tree["target"],
            tuple(tree["sources"]),
            tuple(self._inline(value, path) for value in tree["values"]),
            tree["send"],
            is_gathered=tree.get("gathered", False),
            asked_for=tree.get("asked_for"),
            answers=self._request(tree["answers"]) if "answers" in tree else None,
        )

    def _output(self, tree: dict[str, Any]) -> Output:
        path = f"output of executor {tree['executor']!r}"
        return Output(tree["executor"], tree["kind"], self._inline(tree["data"], path))

    def _trail(self, chunks: Mapping[str, str], read: Callable[[Any], Any]) -> Trail[Any]:
        loaded = [tuple(map(read, self._read(chunks[index]))) for index in sorted(chunks, key=int)]
        if loaded and len(loaded[-1]) < CHUNK_LENGTH:
            return Trail(tuple(loaded[:-1]), loaded[-1])
        return Trail(tuple(loaded), ())


def _tree(toc: Mapping[str, str]) -> dict[str, Any]:
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
