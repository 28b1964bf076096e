"""Check that everything stored of a run is what was written, and name what is not."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from perdure.codec import MALFORMED, references
from perdure.errors import CheckpointDamagedError, CheckpointNotFoundError, WorkflowCheckpointException
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.records import Manifest
    from perdure.storage.file import FileBackend
    from perdure.storage.sql.backend import SqlBackend

DamageKind: TypeAlias = Literal["store", "run", "checkpoint", "blob", "journal", "inbox", "events"]

_BATCHES_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class Damage:
    """Stored data that is not what was written.

    Attributes:
        run_id: The run that needs it; None if the store itself is damaged.
        kind: The kind of data.
        name: A checkpoint id, the hash of a blob, or otherwise the run id.
        reason: The difference, and advice.
    """

    run_id: str | None
    kind: DamageKind
    name: str
    reason: str


def check_run(backend: FileBackend | SqlBackend, run_id: str) -> list[Damage]:
    """Return the damage of a run. Nothing is changed."""
    found = _RunCheck(backend, run_id).check()
    # Retention may have removed something in the middle of the check: real damage is found again.
    again = _RunCheck(backend, run_id).check() if found else []
    return [each for each in found if each in again]


class _RunCheck:
    """Reads everything of one run."""

    def __init__(self, backend: FileBackend | SqlBackend, run_id: str) -> None:
        self._backend = backend
        self._run_id = run_id
        self._found: list[Damage] = []
        self._known_blobs: set[str] = set()

    def check(self) -> list[Damage]:
        """Return what is damaged."""
        roots = [*self._check_checkpoints(), *self._check_logs()]
        for root in dict.fromkeys(roots):
            if root not in self._known_blobs:
                with self._noting("blob", root):
                    self._check_blobs(root)
        return self._found

    @contextlib.contextmanager
    def _noting(self, kind: DamageKind, name: str | None = None) -> Generator[None]:
        try:
            yield
        except CheckpointNotFoundError:
            pass  # removed meanwhile
        except (WorkflowCheckpointException, *MALFORMED) as error:
            at = error.checkpoint_id if kind == "events" and isinstance(error, CheckpointDamagedError) else self._run_id
            self._add(kind, name or at, getattr(error, "reason", None) or str(error))

    def _add(self, kind: DamageKind, name: str, reason: str) -> None:
        self._found.append(Damage(self._run_id, kind, name, reason))

    def _check_checkpoints(self) -> list[str]:
        """Check the record and the checkpoints. Return the blobs that they need."""
        backend, run_id, is_known = self._backend, self._run_id, True
        manifests: list[Manifest] = []
        with self._noting("run"):
            is_known = backend.run(run_id) is not None
        with self._noting("run"):
            ids = backend.checkpoint_ids(run_id)
            if ids and not is_known:
                raise CheckpointDamagedError(ids[0], "the log of its run is gone")
            for checkpoint_id in ids:
                with self._noting("checkpoint", checkpoint_id):
                    manifests.append(backend.manifest(checkpoint_id))
        if not self._found:
            with self._noting("run"):  # it counts its checkpoints
                backend.manifests(workflow_name=None, run_id=run_id)
        return [root for manifest in manifests for root in manifest.roots]

    def _check_logs(self) -> list[str]:
        """Check the journal, the inbox and the events. Return the blobs that they need."""
        backend, run_id = self._backend, self._run_id
        roots: list[str] = []
        with self._noting("journal"):
            roots += [ref for record in backend.journal(run_id) for ref in record.refs]
        with self._noting("inbox"):
            roots += [ref for command in backend.inbox(run_id) for ref in command.refs]
        with self._noting("events"):
            after = 0
            while batches := backend.events(run_id, after=after, limit=_BATCHES_PER_PAGE):
                roots += [ref for batch in batches for ref in batch.refs]
                after = batches[-1].last
        return roots

    def _check_blobs(self, root: str) -> None:
        """Check a blob and all that it refers to."""
        blobs, wanted = self._backend.blobs([root]), [root]
        while wanted:
            blob_hash = wanted.pop()
            if blob_hash in self._known_blobs:
                continue
            self._known_blobs.add(blob_hash)
            data = blobs.get(blob_hash)
            if data is None:
                self._add("blob", blob_hash, "it is missing")
            elif digest(data) != blob_hash:
                self._add("blob", blob_hash, "its bytes are not what was written")
            else:
                with contextlib.suppress(*MALFORMED):  # bytes that are no JSON refer to nothing
                    wanted += references(data)
