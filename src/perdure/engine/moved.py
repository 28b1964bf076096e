"""Steps whose calls have moved: where a program was changed, a record is found by the arguments of its call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint import StepRecord
from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.engine.activation import ActivationContext
    from perdure.engine.reading import Reading

_KEYED = "@"
# What counts in a branch is kept as a key, too: it begins with a space, which users' keys don't.
_COUNTED_IN_BRANCH = "@%20"


@frozen
class Sought:
    """A call whose record is sought: `stem` is where all calls of its name are, `place` where this one would be."""

    stem: str
    place: str
    digest: str | None

    @property
    def is_keyed(self) -> bool:
        """Whether a user has said what it is known by."""
        return _is_keyed(self.place.removeprefix(self.stem))

    def is_made_of(self, record: StepRecord) -> bool:
        """Whether a record may be of such a call."""
        return None in {self.digest, record.digest} or self.digest == record.digest


@frozen
class Found:
    """Where the record of a call is, or is to be if there is none."""

    place: str
    record: StepRecord | None


class Moved:
    """Which calls of one attempt have which records. Each record is that of one call, or of all calls of one key."""

    def __init__(self, around: ActivationContext, home: str) -> None:
        self._around = around
        self._home = home
        self._users: dict[str, str] = {}
        self._places: list[str] | None = None

    def is_used(self, place: str) -> bool:
        """Whether a call has the record of this place."""
        return place in self._users

    def found(self, sought: Sought, reading: Reading) -> Found | None:
        """The record of a call, or where it is to be; None if another one's is there and nothing says why."""
        record = self.record(sought.place)
        is_own = self._users.get(sought.place, sought.place) == sought.place
        found = Found(sought.place, record)
        if record is not None and not (is_own and sought.is_made_of(record)):
            found = self._elsewhere(sought, reading, is_missed=False)
            if found is None and is_own and (sought.is_keyed or not reading.is_edited):
                return None
            beside = f"{sought.place}~{(sought.digest or '')[:16]}"
            found = found or Found(beside, self.record(beside))
        elif record is None:
            found = self._elsewhere(sought, reading, is_missed=True) or found
        self._users[found.place] = sought.place
        return found

    def _elsewhere(self, sought: Sought, reading: Reading, *, is_missed: bool) -> Found | None:
        """A record that no call has yet, of the same name and arguments.

        In a program that was not changed a call without a record is one that was not finished, though others like it
        were; and calls that have a key are others than those that have none.
        """
        if sought.digest is None or (sought.is_keyed and not is_missed):
            return None
        if is_missed and not reading.may_have_moved:
            return None
        for place in self._recorded(sought.stem):
            is_alike = reading.may_have_moved or _is_keyed(place.removeprefix(sought.stem)) == sought.is_keyed
            if is_alike and place not in self._users:
                record = self.record(place)
                if record is not None and record.digest == sought.digest:
                    return Found(place, record)
        return None

    def _recorded(self, stem: str) -> Iterator[str]:
        if self._places is None:
            self._places = list(dict.fromkeys(self._around.journal.steps_before(self._home, is_entered_again=True)))
        for place in self._places:
            rest = place.removeprefix(stem)
            # What is recorded inside of a step has a slash.
            if place.startswith(stem) and rest.startswith(("#", _KEYED)) and "/" not in rest:
                yield place

    def record(self, place: str) -> StepRecord | None:
        """The record of a place."""
        found = self._around.journal.find(place)
        return None if found is None else StepRecord.of(found, place)


def _is_keyed(rest: str) -> bool:
    return rest.startswith(_KEYED) and not rest.startswith(_COUNTED_IN_BRANCH)
