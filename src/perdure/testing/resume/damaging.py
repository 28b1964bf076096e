"""Checkpoint validity: in a damaged copy a checkpoint is what it was, or an error that names it; never another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import WorkflowException
from perdure.testing.resume.chance import Chance
from perdure.testing.resume.lives import alone
from perdure.testing.resume.looking import Look
from perdure.testing.resume.subject import RUN_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.storage import StoreStorage
    from perdure.testing.resume.stage import Place, Stage, Undisturbed

_NEEDLE_BYTES = 16
_FLIP = 0x20
_SEEDS = 1 << 32


def check_damage(stage: Stage, expected: Undisturbed, chance: Chance, *, rounds: int) -> None:
    """Damage what checkpoints are made of; in each copy one place of it."""
    damage = _damage(stage, expected.place, chance)
    for number in range(rounds):
        place = stage.copied(expected.place)
        what = damage(place)
        if what is None:
            if number == 0:
                stage.report.missed("checkpoint validity", stage.kind, "the store has no checkpoint to be damaged")
            return
        how = f"in {place.directory}, {what}"
        stage.report.checked("checkpoint validity", stage.kind, _fault(stage, place, expected.look), how)


def _damage(stage: Stage, source: Place, chance: Chance) -> Callable[[Place], str | None]:
    """What damages one place of a copy and says which; it says None when there is none left."""
    spoil = stage.subject.kind(stage.kind).spoil
    if spoil is not None:
        # It draws in a process of its own, so what it has drawn is not known here.
        return lambda place: alone(partial(spoil, place.store, Chance(str(chance.below(_SEEDS)))))
    spots = iter(chance.shuffled(_spots(stage, source)))

    def flip(place: Place) -> str | None:
        spot = next(spots, None)
        if spot is None:
            return None
        path, offset = spot
        _flip(place.store / path, offset)
        return f"byte {offset} of {path} was flipped"

    return flip


def _spots(stage: Stage, place: Place) -> list[tuple[Path, int]]:
    """Where pieces of the run's checkpoints stand in the files of the store."""

    async def pieces(storage: StoreStorage) -> Any:
        manifests = await storage.store.manifests(run_id=RUN_ID)
        parts = storage.store.read_parts(root for manifest in manifests for root in manifest.toc.values())
        return [data.hex() for data in (*parts.values(), *(manifest.header for manifest in manifests))]

    needles = [_middle(bytes.fromhex(text)) for text in stage.with_storage(place, pieces).result()]
    spots = set[tuple[Path, int]]()
    for path in sorted(each for each in place.store.rglob("*") if each.is_file()):
        data = path.read_bytes()
        spots |= {(path.relative_to(place.store), at) for needle in needles if (at := data.find(needle)) >= 0}
    return sorted(spots)


def _middle(data: bytes) -> bytes:
    half = max(len(data) - _NEEDLE_BYTES, 0) // 2
    return data[half : half + _NEEDLE_BYTES]


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= _FLIP
    path.write_bytes(data)


def _fault(stage: Stage, place: Place, expected: Look) -> str | None:
    """What is wrong about reading a damaged copy; None if it is refused, or reads as it was."""

    async def read(storage: StoreStorage) -> str | None:
        try:
            look = await Look.at(storage, RUN_ID)
        except WorkflowException as error:
            named = RUN_ID in str(error) or str(place.store) in str(error)
            return None if named else f"the error names neither checkpoint nor file: {type(error).__name__}: {error}"
        return look.differs(expected)

    ended = stage.with_storage(place, read)
    return ended.value if ended.error is None else ended.error
