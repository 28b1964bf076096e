"""Recovery determinism: what a killed process has left is copied, and every copy recovers to the same run.

It is copied as it lies there, and it is exported to another kind of store, and from there back again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.testing.resume.effects import Effects
from perdure.testing.resume.points import Fate
from perdure.testing.resume.travelling import moves_runs, travelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.testing.resume.chance import Chance
    from perdure.testing.resume.looking import Look
    from perdure.testing.resume.stage import Place, Stage, Undisturbed

_INSIDE_A_SUPERSTEP = ("finished", "record", "step", "intent", "activation")
"""Points at which work is done that no commit has yet, by the first words of their names."""


def check_recoveries(
    stage: Stage, expected: Undisturbed, chance: Chance, *, rounds: int, others: Sequence[Stage] = ()
) -> None:
    """Kill a run at a point of chance, and recover it where it is, in two copies, and in another kind of store."""
    killed, abroad = 0, _abroad(stage, expected, others) if rounds else []
    for number in range(rounds):
        target, place = _target(expected, chance, number), stage.new_place()
        killed += stage.life(place, Fate(target, 1 + chance.below(expected.points[target]))).was_killed
        how = f"in {place.directory}, killed at {target!r}"
        if abroad:
            what = _differing_abroad(stage, expected, place, chance.one_of(abroad))
            stage.report.checked("recovery from an export", stage.kind, what, how)
        copies = [stage.copied(place), stage.copied(place, "somewhere", "else"), place]
        stage.report.checked("recovery determinism", stage.kind, _differing(stage, expected, copies), how)
    if rounds and not killed:
        stage.report.missed("recovery determinism", stage.kind, "no life was killed: there was nothing to recover")


def _target(expected: Undisturbed, chance: Chance, number: int) -> str:
    """Where to kill: in every other round in the middle of a superstep, if there is such a point."""
    points = sorted(expected.points)
    inside = [name for name in points if name.partition(" ")[0] in _INSIDE_A_SUPERSTEP]
    return chance.one_of(inside if inside and number % 2 == 0 else points)


def _abroad(stage: Stage, expected: Undisturbed, others: Sequence[Stage]) -> list[Stage]:
    """The other kinds of store that runs can be taken to. None, if they can't leave this one."""
    return (
        [other for other in others if moves_runs(other, other.new_place())] if moves_runs(stage, expected.place) else []
    )


def _differing(stage: Stage, expected: Undisturbed, places: list[Place]) -> str | None:
    try:
        first, *others = [_recovered(stage, place) for place in places]
    except RuntimeError as error:
        return str(error)
    differing = (other.differs(first) for other in others)
    return next((what for what in differing if what), None) or expected.differs(first, stage.subject)


def _differing_abroad(stage: Stage, expected: Undisturbed, place: Place, other: Stage) -> str | None:
    """What is otherwise with the run in another kind of store, and when it has come back; None if nothing is."""
    try:
        before = stage.look(place)
        for where, arrived in travelled(stage, place, other):
            look = _recovered(where, arrived)
            differs = before.is_continued_by(look) or look.gap() or expected.differs(look, stage.subject)
            what = differs or Effects.of(arrived.effects).fault(expected.effects)
            if what is not None:
                return f"exported, and recovered in {arrived.directory}: {what}"
    except RuntimeError as error:
        return f"exported from a copy, by way of {other.kind}: {error}"
    return None


def _recovered(stage: Stage, place: Place) -> Look:
    stage.life(place, Fate(is_resuming=True)).result()
    return stage.look(place)
