"""Runs that are taken to another kind of store by a file, and back."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from perdure.errors import RunNotFoundError
from perdure.testing.resume.subject import RUN_ID

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import StoreStorage
    from perdure.testing.resume.stage import Place, Stage

_NEEDED = ("tenant", "archive", "close_run", "restore", "remove")


def moves_runs(stage: Stage, place: Place) -> bool:
    """Whether a store of this kind can export and import runs."""

    async def moves(storage: StoreStorage) -> bool:
        # By name, as the storage itself looks: a store that wraps another is not seen to have what it hands on.
        return all(hasattr(storage.store, name) for name in _NEEDED)

    return stage.with_storage(place, moves).result()


def travelled(stage: Stage, source: Place, other: Stage) -> list[tuple[Stage, Place]]:
    """The run of a place in another kind of store, and once more where it came from, by way of that.

    The source itself stays as it is. A process that was killed before its run began has left nothing to take along.
    """
    file = _exported(stage, stage.copied(source))
    if file is None:
        return []
    there = _imported(other, source, file)
    back = _exported(other, _imported(other, source, file))
    assert back is not None, "a run that was imported is there"
    return [(other, there), (stage, _imported(stage, source, back))]


def _exported(stage: Stage, place: Place) -> Path | None:
    """Close the run of a place; the file that it is in. None if there is no run."""
    file = place.directory / "export"

    async def export(storage: StoreStorage) -> Any:
        try:
            await storage.export_run(RUN_ID, file)
        except RunNotFoundError:
            return False
        return True

    return file if stage.with_storage(place, export).result() else None


def _imported(stage: Stage, source: Place, file: Path) -> Place:
    """A new place with the run of a file, and with what the world has seen of it."""
    place = stage.new_place()
    if source.effects.exists():
        shutil.copy(source.effects, place.effects)

    async def take_in(storage: StoreStorage) -> str:
        return await storage.import_run(file)

    stage.with_storage(place, take_in).result()
    return place
