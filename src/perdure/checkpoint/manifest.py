"""A snapshot as a manifest and its parts, and back. docs/checkpoint-format.md describes what is written here."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.codec import DamagedPartError
from perdure.checkpoint.documents import dumps, loads, plain, verified
from perdure.checkpoint.pieces import PieceReader, PieceWriter, tree_of
from perdure.errors import CheckpointDamagedError, PartDamagedError, WorkflowCheckpointException
from perdure.records import Manifest, NewRun
from perdure.typenames import describe

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from perdure.checkpoint.codec import Codec
    from perdure.kernel.snapshot import Answered, Snapshot
    from perdure.kernel.trail import Trail
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
    trace: str | None = None
    """The span under which it is written, as W3C trace context."""


class Writer:
    """Writes the checkpoints of one run, each as what changed since the one before."""

    def __init__(self, codec: Codec, graph: Mapping[str, Any]) -> None:
        self.pieces = PieceWriter(codec)
        self._graph = plain(graph).part()

    def write(
        self, snapshot: Snapshot, identity: Identity, known: Mapping[str, str]
    ) -> tuple[Manifest, tuple[Part, ...]]:
        """The manifest of a snapshot, and the parts that `known`, the contents of the predecessor, does not have."""
        toc: dict[str, str] = {}
        fresh: dict[str, Part] = {}
        for path, part, nested in chain([("graph", self._graph, ())], self.pieces.parts(snapshot, "")):
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
        **({"trace": identity.trace} if identity.trace is not None else {}),
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


@contextmanager
def naming(manifest: Manifest) -> Generator[None]:
    """Name the checkpoint whose parts are being read when one of them proves damaged."""
    try:
        yield
    except PartDamagedError as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, error.reason) from error


def trace_of(manifest: Manifest) -> str | None:
    """The span under which a checkpoint was written, if one was."""
    return header_of(manifest).get("trace")


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
    at_work = ("deliveries", "suspended", "delayed", "cancelled")
    return not any(path in at_work or path.startswith("request/") for path in manifest.toc)


class Reader:
    """Reads the snapshot of one checkpoint. Values stay encoded until they are asked for."""

    def __init__(self, manifest: Manifest, parts: Mapping[str, bytes], codec: Codec) -> None:
        self._manifest = manifest
        self._parts = parts
        self._pieces = PieceReader(codec, parts, manifest.checkpoint_id)

    def snapshot(self) -> Snapshot:
        """The run as this checkpoint has it. Raises CheckpointDamagedError."""
        header = header_of(self._manifest)
        counts = (header["turn"], self._manifest.iteration_count, header["since_input"])
        try:
            snapshot = self._pieces.snapshot(tree_of(self._manifest.toc), counts)
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error
        return replace(snapshot, withheld_kwargs=tuple(header.get("withheld_kwargs", ())))

    def answered(self) -> Trail[Answered]:
        """The requests that were answered so far; nothing else is looked at."""
        try:
            return self._pieces.answered(tree_of(self._manifest.toc))
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def graph(self) -> dict[str, Any]:
        """What the checkpoint says of the graph that wrote it; empty for one that was made by hand."""
        address = self._manifest.toc.get("graph")
        try:
            return {} if address is None else loads(verified(self._parts, address))
        except DamagedPartError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CheckpointDamagedError:
        return CheckpointDamagedError(self._manifest.checkpoint_id, str(error) or repr(error))
