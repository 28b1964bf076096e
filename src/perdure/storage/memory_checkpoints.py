"""The checkpoints of all runs, in memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from perdure.records import ArchivedCheckpoint
from perdure.storage import retention as keep
from perdure.storage import rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perdure.records import Manifest


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint, with what its commit said of the run. Nobody can change it, so it has no checksum."""

    manifest: Manifest
    entry: keep.Entry


class MemoryCheckpoints:
    """All of them by id, those of each run, those of each workflow: each in commit order."""

    def __init__(self) -> None:
        self._sequence = itertools.count(1)
        self._all: dict[str, Kept] = {}
        self._of_run: dict[str, dict[str, Kept]] = {}
        self._of_workflow: dict[str, dict[str, Kept]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def get(self, checkpoint_id: str | None) -> Kept | None:
        """The checkpoint of that id, if there is one."""
        return None if checkpoint_id is None else self._all.get(checkpoint_id)

    def all(self) -> Mapping[str, Kept]:
        """All there are."""
        return self._all

    def of_run(self, run_id: str) -> dict[str, Kept]:
        """Those of a run."""
        return self._of_run.get(run_id, {})

    def of_workflow(self, workflow_name: str) -> Mapping[str, Kept]:
        """Those of a workflow."""
        return self._of_workflow.get(workflow_name, {})

    def newest_of(self, workflow_name: str) -> Kept | None:
        """The newest of a workflow."""
        return next(reversed(self._of_workflow.get(workflow_name, {}).values()), None)

    def require_new(self, checkpoint_id: str) -> None:
        """Refuse a checkpoint that would replace another."""
        if checkpoint_id in self._all:
            raise rules.exists_already(checkpoint_id)

    def add(self, checkpoint: ArchivedCheckpoint) -> None:
        """Add the newest one."""
        # The caller's table of contents may change under his hands.
        manifest = replace(checkpoint.manifest, toc=MappingProxyType(dict(checkpoint.manifest.toc)))
        entry = keep.Entry(
            checkpoint_id=manifest.checkpoint_id,
            position=manifest.position,
            sequence=next(self._sequence),
            moment=keep.moment(manifest.timestamp),
            settled=checkpoint.settled,
            status=checkpoint.status,
            wake_at=checkpoint.wake_at,
        )
        kept = Kept(manifest, entry)
        self._all[manifest.checkpoint_id] = kept
        self._of_run.setdefault(manifest.run_id, {})[manifest.checkpoint_id] = kept
        self._of_workflow.setdefault(manifest.workflow_name, {})[manifest.checkpoint_id] = kept

    def archived(self, run_id: str) -> Sequence[ArchivedCheckpoint]:
        """Those of a run, with what their commits said of it."""
        return [
            ArchivedCheckpoint(kept.manifest, kept.entry.settled, kept.entry.status, kept.entry.wake_at)
            for kept in self.of_run(run_id).values()
        ]

    def forget(self, checkpoint_id: str) -> None:
        """Remove one."""
        kept = self._all.pop(checkpoint_id)
        for index, key in ((self._of_run, kept.manifest.run_id), (self._of_workflow, kept.manifest.workflow_name)):
            del index[key][checkpoint_id]
            if not index[key]:
                del index[key]

    def drop(self, run_id: str) -> int:
        """Remove all of a run; how many that were."""
        doomed = list(self.of_run(run_id))
        for checkpoint_id in doomed:
            self.forget(checkpoint_id)
        return len(doomed)

    def refs(self) -> Iterator[Iterable[str]]:
        """What checkpoints refer to."""
        return (kept.manifest.roots for kept in self._all.values())
