"""State in the records of steps: what a step has set is recorded with its result, and read by later entries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import quote, unquote

from perdure.checkpoint import StepRecord, fields_of
from perdure.codec import register_type
from perdure.engine import STEP, ActivationRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.codec import Kept
    from perdure.graph import ActivationPort

Rank: TypeAlias = tuple[int, str, str]
"""The order of writes of one key: how many came before, when the step was called, the place of its record."""

FUNCTION: Final = "workflow "
"""The beginning of the name of a step that is a function inside of another one. It has a state of its own."""
_FUNCTION_QUOTED: Final = quote(FUNCTION, safe="")
_OUTCOME: Final = "perdure.functional.steps:StepOutcome"
_NAME: Final = _OUTCOME.encode()
_FIRST: Rank = (0, "", "")
_ENTERED: Final = "functions that were entered"


@register_type(name=_OUTCOME)
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The recorded result of a step that has set state. A step that has set none is recorded with its result alone."""

    result: Any
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    ranks: dict[str, Any] = field(default_factory=dict[str, Any])
    """By key: the order of the write among others."""
    rests_on: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """By key: the steps that had set it before and were not recorded yet, and how often each of them had."""

    def rank(self, key: str) -> Rank:
        """Return the order of a write among others."""
        return _as_rank(self.ranks.get(key, _FIRST))


@dataclass(frozen=True, slots=True)
class RecordedWrite:
    """A value that a recorded step has set."""

    place: str
    key: str
    rank: Rank
    rests_on: Mapping[str, int]
    give: Callable[[], Any]
    """Decodes the value, which may never be needed."""

    @property
    def name(self) -> str:
        """Return the name of the step."""
        return unquote(re.split("[#@]", _last(self.place))[0])


def recorded_writes(activation: ActivationPort) -> Iterator[RecordedWrite]:
    """Iterate over what the recorded steps of the function have set that is being entered here."""
    if isinstance(activation, ActivationRecorder):
        reader = _Reader(activation)
        for place in reader.places():
            yield from reader.writes(place)


def place_of_step(activation: ActivationPort) -> str:
    """Return the place of the step that runs here; an empty text if none does."""
    running = activation.running_step if isinstance(activation, ActivationRecorder) else None
    return "" if running is None else running.place


class _Reader:
    """Read the records of a function that is being entered: a handler, or a step of one."""

    def __init__(self, activation: ActivationRecorder) -> None:
        self._context = activation.context
        self._activation_id = activation.activation_id
        self._function = place_of_step(activation) or activation.activation_id
        self._is_entered_again = activation.activation.delivery.activation_id is not None
        entered = cast("set[str]", activation.memo.setdefault(_ENTERED, set[str]()))
        self._is_tried_again = self._function in entered
        entered.add(self._function)

    def places(self) -> Iterable[str]:
        """Return the keys of the function's steps, and of other records about them."""
        journal = self._context.journal
        if self._is_tried_again:
            # This process can have recorded something only if an attempt came before this one.
            return dict.fromkeys([*self._context.held(self._activation_id), *journal.keys(self._activation_id)])
        before = journal.steps_before(self._activation_id, is_entered_again=self._is_entered_again)
        return dict.fromkeys([*self._context.held(self._activation_id), *before])

    def writes(self, place: str) -> Iterator[RecordedWrite]:
        """Iterate over what the step of a place has set, with those inside of it.

        A step inside of one that has ended is skipped: the outer one has recorded what is kept.
        """
        if not place.startswith(f"{self._function}{STEP}") or "/" in _last(place):
            return
        outer = list(self._outer(place))
        if any(_last(each).startswith(_FUNCTION_QUOTED) for each in outer):
            return
        fields = self._fields(place)
        if not fields or any(self._has_ended(each) for each in outer):
            return
        give, state = self._context.values.give, fields["state"]
        ranks = {key: _as_rank(rank) for key, rank in give(fields["ranks"]).items()}
        rests_on: dict[str, dict[str, int]] = give(fields["rests_on"]) if "rests_on" in fields else {}
        for key, rank in ranks.items():
            yield RecordedWrite(place, key, rank, rests_on.get(key, {}), lambda key=key: give(state)[key])

    def _outer(self, place: str) -> Iterator[str]:
        """Iterate over the places of the steps around one, inside of the function."""
        outer = place.rpartition(STEP)[0]
        while len(outer) > len(self._function):
            yield outer
            outer = outer.rpartition(STEP)[0]

    def _fields(self, place: str) -> Mapping[str, Kept]:
        """Return the fields of a step's outcome, if it has set state. Only the step itself knows the result's type."""
        held = self._context.held(self._activation_id).get(place)
        if held is not None:
            return fields_of(held.result, StepOutcome)
        found = self._context.journal.find(place)
        # Results may be long, and most steps set nothing.
        if found is None or _NAME not in found.require_encoded().text:
            return {}
        result = StepRecord.of(found, place).result
        return {} if result is None else fields_of(result, StepOutcome)

    def _has_ended(self, place: str) -> bool:
        if place in self._context.held(self._activation_id):
            return True
        found = self._context.journal.find(place)
        record = None if found is None else StepRecord.of(found, place)
        return record is not None and (record.result is not None or bool(record.raised))


def _as_rank(recorded: Any) -> Rank:
    """Return a recorded rank. In the first versions the second member was a number."""
    writes, order, place = recorded
    return (writes, f"{order:08}" if isinstance(order, int) else order, place)


def _last(place: str) -> str:
    return place.rpartition(STEP)[2]
