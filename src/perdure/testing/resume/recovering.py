"""Recovery determinism: what a killed process has left is copied, and every copy recovers to the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.testing.resume.points import Fate

if TYPE_CHECKING:
    from perdure.testing.resume.chance import Chance
    from perdure.testing.resume.looking import Look
    from perdure.testing.resume.stage import Place, Stage, Undisturbed


def check_recoveries(stage: Stage, expected: Undisturbed, chance: Chance, *, rounds: int) -> None:
    """Kill a run at a point of chance, and recover it where it is and in two copies, one of them deeper."""
    killed = 0
    for _ in range(rounds):
        target = chance.one_of(sorted(expected.points))
        place = stage.new_place()
        killed += stage.life(place, Fate(target, 1 + chance.below(expected.points[target]))).was_killed
        deeper = stage.new_directory() / "somewhere" / "else"
        deeper.parent.mkdir(parents=True)
        copies = [place.copied_to(stage.new_directory()), place.copied_to(deeper), place]
        how = f"in {place.directory}, killed at {target!r}"
        stage.report.checked("recovery determinism", stage.kind, _differing(stage, expected, copies), how)
    if rounds and not killed:
        stage.report.missed("recovery determinism", stage.kind, "no life was killed: there was nothing to recover")


def _differing(stage: Stage, expected: Undisturbed, places: list[Place]) -> str | None:
    try:
        first, *others = [_recovered(stage, place) for place in places]
    except RuntimeError as error:
        return str(error)
    differing = (other.differs(first) for other in others)
    return next((what for what in differing if what), None) or expected.differs(first, stage.subject)


def _recovered(stage: Stage, place: Place) -> Look:
    stage.life(place, Fate(is_resuming=True)).result()
    return stage.look(place)
