"""Verify a run that comes from elsewhere, before a store takes it in.

Checksums only tell accidents: whoever forges an export computes them. So everything that others rely on is derived
from the data itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import contextmanager
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.commands import AnswerCommand, answer_id, read_command
from perdure.checkpoint.documents import DocumentReader, Entry, require_form, require_moment, tree_of
from perdure.checkpoint.events import EventReader
from perdure.checkpoint.manifest import Reader, entries_of, header_of, origin_of
from perdure.checkpoint.record import SAVED_FIELDS_PATH, saved_fields
from perdure.codec import MALFORMED, Codec, DamagedPartError, every_reference, form_codec, loads, references
from perdure.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from perdure.records import Archive, Manifest

UNFOLDED_SIZE_MAX = 32 * 1024 * 1024
UNFOLDED_FACTOR_MAX = 100
"""A checkpoint or record may unfold to this many bytes, or to this many times the size of all parts."""
_REFERENCE_LENGTH = 64
_TOO_LARGE = "unfolds to more data than is plausible: its parts refer to each other too often"


class DamagedExportError(Exception):
    """The export is damaged; the message says where and how."""


def require_whole(archive: Archive) -> None:
    """Refuse a run that could not continue because something is missing or does not belong together.

    Raises DamagedExportError, and WorkflowCheckpointException for a checkpoint of a newer format.
    """
    _require_ids(archive)
    _require_order(archive)
    _require_blobs(archive)
    _require_size(archive)
    _require_forms(archive)


def _require_ids(archive: Archive) -> None:
    """Refuse ids that are not the run's own: a store has room for one checkpoint of each id."""
    run_id, head = archive.record.run_id, archive.record.head
    manifests = [each.manifest for each in archive.checkpoints]
    for manifest in manifests:
        _require_own_id(manifest, run_id)
    ids = {
        "checkpoint": [manifest.checkpoint_id for manifest in manifests],
        "journal record": [record.key for record in archive.journal],
        "command": [command.id for command in archive.inbox],
        "commit of events": [batch.checkpoint_id for batch in archive.events],
    }
    for kind, found in ids.items():
        for each, count in Counter(found).items():
            if count > 1:
                raise DamagedExportError(f"the {kind} {each!r} is there twice")
    if head not in ids["checkpoint"]:
        raise DamagedExportError(f"the newest checkpoint {head!r} is missing")


def _require_own_id(manifest: Manifest, run_id: str) -> None:
    """Refuse the id of a checkpoint if this or another run could need it for a commit."""
    checkpoint_id = manifest.checkpoint_id
    owner, _, number = checkpoint_id.rpartition("@")
    is_numbered = number.isascii() and number.isdigit()
    if manifest.run_id != run_id or (is_numbered and owner not in {"", run_id}):
        raise DamagedExportError(f"checkpoint {checkpoint_id!r} belongs to another run")
    if is_numbered and owner and int(number) > manifest.position:
        raise DamagedExportError(f"the number of checkpoint {checkpoint_id!r} is past its position")


def _require_order(archive: Archive) -> None:
    record = archive.record
    positions = [each.manifest.position for each in archive.checkpoints]
    numbers = [command.number for command in archive.inbox]
    if not _is_growing([*positions, record.position + 1]) or not _is_growing(numbers):
        raise DamagedExportError("checkpoints or commands are not in order")
    after = [batch.last + 1 for batch in archive.events]
    if [batch.first for batch in archive.events[1:]] != after[:-1] or any(batch.count < 1 for batch in archive.events):
        raise DamagedExportError("the events have gaps")
    if after and after[-1] != record.events + 1:
        raise DamagedExportError("the newest events are missing")


def _is_growing(numbers: list[int]) -> bool:
    return all(one < other for one, other in itertools.pairwise(numbers))


def _require_blobs(archive: Archive) -> None:
    """Refuse references that are missing, and those that the data does not have.

    Runs share blobs. If one lists too few references, collection removes data of another run; if it lists too many,
    another run reads data that is not its own.
    """
    present = {blob.hash for blob in archive.blobs}
    needs = [
        *((f"checkpoint {each.manifest.checkpoint_id!r}", each.manifest.roots) for each in archive.checkpoints),
        *((what, refs) for what, _, refs in _listed(archive)),
    ]
    for what, addresses in needs:
        for address in addresses:
            if address not in present:
                raise DamagedExportError(f"{what} needs part {address}, which is missing")
    for what, data, refs in _listed(archive):
        try:
            found = set(references(data))
        except DamagedPartError as error:
            raise DamagedExportError(f"{what} can't be read: {error}") from error
        if not found <= set(refs):
            raise DamagedExportError(f"{what} does not list all parts that it refers to")
        # Some records of format 1 hold a hash alone.
        if any(address.encode() not in data for address in refs):
            raise DamagedExportError(f"{what} lists parts that it does not refer to")


def _listed(archive: Archive) -> Iterator[tuple[str, bytes, tuple[str, ...]]]:
    """Yield everything that lists references: its name, its bytes and the references."""
    for blob in archive.blobs:
        yield f"part {blob.hash}", blob.data, blob.refs
    for each in archive.checkpoints:
        yield f"checkpoint {each.manifest.checkpoint_id!r}", each.manifest.pieces, each.manifest.refs
    for record in archive.journal:
        yield f"record {record.key!r} of its journal", record.data, record.refs
    for command in archive.inbox:
        yield f"command {command.id!r}", command.data, command.refs
    for batch in archive.events:
        yield f"the events of {batch.checkpoint_id!r}", batch.data, batch.refs


def _require_size(archive: Archive) -> None:
    """Refuse blobs that refer to each other so often that reading them would take forever."""
    blobs = {blob.hash: blob.data for blob in archive.blobs}
    limit = max(UNFOLDED_SIZE_MAX, UNFOLDED_FACTOR_MAX * sum(map(len, blobs.values())))
    sizes: dict[str, int] = {}

    def unfolded(data: bytes, roots: Iterable[str] = ()) -> int:
        return min(len(data) + sum(sizes[each] for each in (*every_reference(data), *roots)), limit + 1)

    for address in TopologicalSorter({each: references(data) for each, data in blobs.items()}).static_order():
        data = blobs[address]
        # A long text or raw bytes are one object, however often they are mentioned.
        is_leaf = data.lstrip()[:1] not in {b"[", b"{"}
        sizes[address] = _REFERENCE_LENGTH if is_leaf else unfolded(data)
    for each in archive.checkpoints:
        manifest = each.manifest
        base = () if manifest.base is None else (manifest.base,)
        if unfolded(manifest.pieces, (*manifest.toc.values(), *base)) > limit:
            raise DamagedExportError(f"checkpoint {manifest.checkpoint_id!r} {_TOO_LARGE}")
    for what, data, _ in _listed(archive):
        if unfolded(data) > limit:
            raise DamagedExportError(f"{what} {_TOO_LARGE}")


def _require_forms(archive: Archive) -> None:
    """Refuse records that can't be read. This needs no types: values are read as stored JSON."""
    blobs, codec, record = {blob.hash: blob.data for blob in archive.blobs}, form_codec(), archive.record
    with _naming("the record of the run"):
        for moment in (record.wake_at, *(each.wake_at for each in archive.checkpoints)):
            if moment is not None:
                require_moment(moment)
    seen: set[tuple[str, Entry]] = set()
    for each in archive.checkpoints:
        with _naming(f"checkpoint {each.manifest.checkpoint_id!r}"):
            _require_checkpoint(each.manifest, blobs, codec, seen)
    for batch in archive.events:
        with _naming(f"the events of {batch.checkpoint_id!r}"):
            EventReader(codec, batch, blobs).events()
    for command in archive.inbox:
        with _naming(f"command {command.id!r}"):
            found = read_command(command, blobs, checkpoint_id=record.run_id)
            expected = answer_id(found.request_id) if isinstance(found, AnswerCommand) else command.id
            if command.id != expected:
                raise DamagedPartError(f"it answers another request: {expected!r}")
    for each in archive.journal:
        with _naming(f"record {each.key!r} of its journal"):
            loads(each.data)


def _require_checkpoint(
    manifest: Manifest, blobs: Mapping[str, bytes], codec: Codec, seen: set[tuple[str, Entry]]
) -> None:
    """Refuse a checkpoint that can't be read. Entries that an earlier one has at the same path are read once."""
    header = header_of(manifest)
    origin_of(manifest)
    if SAVED_FIELDS_PATH in manifest.toc:
        require_form(saved_fields(manifest, blobs, codec), dict[str, Any])
        return
    entries = entries_of(manifest, blobs)
    fresh = {each for each in entries.items() if each not in seen}
    seen |= fresh
    # The counts of a sub-workflow tell that it is one.
    tree = tree_of(
        {path: entry for path, entry in entries.items() if (path, entry) in fresh or path.endswith("/counts")}
    )
    counts = (header["turn"], manifest.iteration_count, header["since_input"])
    snapshot = DocumentReader(codec, blobs, manifest.checkpoint_id).snapshot(tree, counts)
    Reader(manifest, blobs, codec).graph()
    for request_id, request in snapshot.requests.items():
        told = header["pending_request_info_events"].get(request_id, {})
        if request.id != request_id or told.get("request_type") is None or told.get("response_type") is None:
            raise DamagedPartError(f"its request {request_id!r} is called otherwise elsewhere")


@contextmanager
def _naming(what: str) -> Generator[None]:
    """Raise DamagedExportError for anything that can't be read."""
    try:
        yield
    except CheckpointDamagedError as error:
        raise DamagedExportError(f"{what} can't be read: {error.reason}") from error
    except MALFORMED as error:
        raise DamagedExportError(f"{what} can't be read: {error or repr(error)}") from error
