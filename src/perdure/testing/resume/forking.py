"""Fork determinism: two forks of one checkpoint that get the same answers end alike, and their source is untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.testing.resume.driving import Drive
from perdure.testing.resume.points import Fate
from perdure.testing.resume.subject import RUN_ID

if TYPE_CHECKING:
    from perdure.storage import StoreStorage
    from perdure.testing.resume.chance import Chance
    from perdure.testing.resume.stage import Place, Stage, Undisturbed


def check_forks(stage: Stage, expected: Undisturbed, chance: Chance, *, rounds: int) -> None:
    """Fork a finished run at checkpoints of chance; the second fork of each is killed on its way."""
    for _ in range(rounds):
        place = stage.copied(expected.place)
        position = chance.below(expected.look.checkpoints)
        how = f"in {place.directory}, forks of checkpoint number {position}"
        try:
            what = _differing(stage, place, position, chance)
            untouched = stage.look(place).differs(expected.look)
        except RuntimeError as error:
            what, untouched = str(error), None
        what = what or (f"the source has changed: {untouched}" if untouched else None)
        stage.report.checked("fork determinism", stage.kind, what, how)


def _differing(stage: Stage, place: Place, position: int, chance: Chance) -> str | None:
    first, second = _forked(stage, place, position)
    seen: dict[str, int] = stage.life(place, run_id=first, how=Drive.fork_to_the_end).result()
    if seen:
        target = chance.one_of(sorted(seen))
        fate = Fate(target, 1 + chance.below(seen[target]))
        ended = stage.life(place, fate, run_id=second, how=Drive.fork_to_the_end)
        if ended.was_killed:
            stage.life(place, Fate(is_resuming=True), run_id=second, how=Drive.fork_to_the_end).result()
        elif ended.error is not None:
            return ended.error
    one, other = stage.look(place, first), stage.look(place, second)
    return other.differs(one, compares_log=stage.subject.has_fixed_log)


def _forked(stage: Stage, place: Place, position: int) -> tuple[str, str]:
    """Two forks of a checkpoint, by their ids."""

    async def fork(storage: StoreStorage) -> Any:
        checkpoints = await storage.list_checkpoints(run_id=RUN_ID)
        run = stage.subject.build().start(run_id=RUN_ID, checkpoint_storage=storage)
        for _ in range(2):
            await run.fork(checkpoints[position].checkpoint_id)
        return [record.run_id for record in await storage.store.runs() if record.run_id != RUN_ID]

    first, second = stage.with_storage(place, fork).result()
    return first, second
