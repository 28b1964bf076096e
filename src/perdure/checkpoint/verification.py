"""Verify a run that comes from elsewhere, before a store takes it in.

Checksums only tell accidents: whoever forges an export computes them. So everything that others rely on is derived
from the data itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from perdure.checkpoint.manifest import header_of
from perdure.codec import DamagedPartError, references

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.records import Archive, Manifest


class DamagedExportError(Exception):
    """The export is damaged; the message says where and how."""


def require_whole(archive: Archive) -> None:
    """Refuse a run that could not continue because something is missing or does not belong together.

    Raises DamagedExportError, and WorkflowCheckpointException for a checkpoint of a newer format.
    """
    _require_ids(archive)
    _require_order(archive)
    for checkpoint in archive.checkpoints:
        try:
            header_of(checkpoint.manifest)
        except TypeError as error:
            raise DamagedExportError(f"checkpoint {checkpoint.manifest.checkpoint_id!r} has no format") from error
    _require_blobs(archive)


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
