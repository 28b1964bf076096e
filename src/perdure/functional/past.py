"""What a step leaves on record, and what earlier entries of a function have left: which step has set what."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import quote, unquote

from perdure.checkpoint import StepRecord, fields_of
from perdure.codec import register_type
from perdure.data import frozen
from perdure.engine import STEP, ActivationRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.codec import Kept
    from perdure.graph import ActivationPort

Rank: TypeAlias = tuple[int, str, str]
"""How many writes of a key came before, where the step was called, and where its record is. The highest counts."""

FUNCTION: Final = "workflow "
"""How a step is called that is a function inside of another one. It has a state of its own."""
_FUNCTION_QUOTED: Final = quote(FUNCTION, safe="")
_OUTCOME: Final = "perdure.functional.steps:StepOutcome"
_NAME: Final = _OUTCOME.encode()
_FIRST: Rank = (0, "", "")
_ENTERED: Final = "functions that were entered"


@register_type(name=_OUTCOME)
@frozen
class StepOutcome:
    """What a step gave and what it set in the state, as it is recorded. One that set nothing is its result alone."""

    result: Any
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    ranks: dict[str, Any] = field(default_factory=dict[str, Any])
    """By key: in which order with others it was set."""
    rests_on: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """By key: the steps that had set it before and were not on record yet, and how often each of them had."""

    def rank(self, key: str) -> Rank:
        """In which order with others a key was set."""
        return _as_rank(self.ranks.get(key, _FIRST))


@frozen
class Recorded:
    """What a step that is on record has set under one key."""

    place: str
    key: str
    rank: Rank
    rests_on: Mapping[str, int]
    give: Callable[[], Any]
    """Reads the value, which nobody may ask for."""

    @property
    def name(self) -> str:
        """What the step is called."""
        return unquote(re.split("[#@]", _last(self.place))[0])


def recorded_by(activation: ActivationPort) -> Iterator[Recorded]:
    """What the steps on record have set, of the function that is being entered here."""
    if isinstance(activation, ActivationRecorder):
        past = _Past(activation)
        for place in past.places():
            yield from past.recorded(place)


def place_in(activation: ActivationPort) -> str:
    """Where the step that is running here is recorded; nothing if none is."""
    inside = activation.enclosing if isinstance(activation, ActivationRecorder) else None
    return "" if inside is None else inside.place


class _Past:
    """The records of a function that is being entered: it is a handler, or a step of one."""

    def __init__(self, activation: ActivationRecorder) -> None:
        self._around = activation.around
        self._home = activation.home
        self._function = place_in(activation) or activation.home
        self._is_entered_again = activation.activation.delivery.activation_id is not None
        entered = cast("set[str]", activation.memo.setdefault(_ENTERED, set[str]()))
        self._is_tried_again = self._function in entered
        entered.add(self._function)

    def places(self) -> Iterable[str]:
        """Where there are records of steps, and of what else is known of them."""
        journal = self._around.journal
        if self._is_tried_again:
            # What this life has recorded is looked for only where an attempt before this one can have done so.
            return dict.fromkeys([*self._around.held(self._home), *journal.records(self._home)])
        before = journal.steps_before(self._home, is_entered_again=self._is_entered_again)
        return dict.fromkeys([*self._around.held(self._home), *before])

    def recorded(self, place: str) -> Iterator[Recorded]:
        """What the step of a place has set, with those inside of it.

        Of one inside of another that has ended, well or not, it is for that one to say what is kept.
        """
        if not place.startswith(f"{self._function}{STEP}") or "/" in _last(place):
            return
        outer = list(self._outer(place))
        if any(_last(each).startswith(_FUNCTION_QUOTED) for each in outer):
            return
        fields = self._fields(place)
        if not fields or any(self._has_ended(each) for each in outer):
            return
        give, state = self._around.values.give, fields["state"]
        ranks = {key: _as_rank(rank) for key, rank in give(fields["ranks"]).items()}
        rests_on: dict[str, dict[str, int]] = give(fields["rests_on"]) if "rests_on" in fields else {}
        for key, rank in ranks.items():
            yield Recorded(place, key, rank, rests_on.get(key, {}), lambda key=key: give(state)[key])

    def _outer(self, place: str) -> Iterator[str]:
        """The steps of the function that one is inside of."""
        outer = place.rpartition(STEP)[0]
        while len(outer) > len(self._function):
            yield outer
            outer = outer.rpartition(STEP)[0]

    def _fields(self, place: str) -> Mapping[str, Kept]:
        """What is recorded of a step that has set something. Its result is left unread: it alone knows the type."""
        held = self._around.held(self._home).get(place)
        if held is not None:
            return fields_of(held.result, StepOutcome)
        found = self._around.journal.find(place)
        # Results may be long, and most steps set nothing.
        if found is None or _NAME not in found.require_encoded().text:
            return {}
        result = StepRecord.of(found, place).result
        return {} if result is None else fields_of(result, StepOutcome)

    def _has_ended(self, place: str) -> bool:
        if place in self._around.held(self._home):
            return True
        found = self._around.journal.find(place)
        record = None if found is None else StepRecord.of(found, place)
        return record is not None and (record.result is not None or bool(record.raised))


def _as_rank(recorded: Any) -> Rank:
    """A rank as it was recorded: where a step was called was once a number."""
    writes, order, place = recorded
    return (writes, f"{order:08}" if isinstance(order, int) else order, place)


def _last(place: str) -> str:
    return place.rpartition(STEP)[2]
