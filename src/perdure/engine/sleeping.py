"""Waits of a handler: until when is recorded, so that every life waits for the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from perdure.checkpoint import moment_in, moment_record
from perdure.clock import moment_of, now, seconds_until
from perdure.engine.branches import branch_place

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import datetime, timedelta

    from perdure.engine.activation import ActivationContext
    from perdure.engine.flight import Inside
    from perdure.engine.parking import Parking
    from perdure.engine.steps import Steps
    from perdure.kernel import Moment


class Sleeper(Protocol):
    """The activation that waits, as far as waits need it."""

    around: ActivationContext
    parking: Parking

    @property
    def home(self) -> str:
        """What its records are named after."""
        ...

    @property
    def enclosing(self) -> Inside | None:
        """The step that is running here, if one is."""
        ...

    def number(self, name: str) -> int:
        """How often something of this name was begun before, here or in the step that is running here."""
        ...


def begin_sleep(owner: Sleeper, steps: Steps, until: datetime | timedelta | float) -> Coroutine[Any, Any, None]:
    """A wait, to be awaited. Until when is settled by the first life that comes here."""
    around, inside, place = owner.around, owner.enclosing, branch_place("sleep", owner)
    due = moment_of(around.clock, until, "a sleep")
    number = owner.number("sleep") if place is None else place
    key = f"{owner.home if inside is None else inside.place}/sleep/{number}"
    found = around.journal.find(key)
    if found is None:
        around.journal.note(key, lambda: moment_record(due))
    return _slept(owner, steps, due if found is None else moment_in(found))


async def _slept(owner: Sleeper, steps: Steps, due: Moment) -> None:
    owner.parking.require_not_left()
    clock = owner.around.clock
    if not owner.around.keeps_records:
        await clock.sleep(seconds_until(clock, due))
    elif due > now(clock):
        if not steps.may_park:
            raise RuntimeError("a step can't be left to wait: call ctx.sleep outside of steps")
        await steps.park(wake_at=due)
