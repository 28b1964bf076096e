"""Consume once: several processes answer one request at the same moment, each something else, and one of them wins."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import AlreadyAnsweredError, RunBusyError
from perdure.testing.resume import effects
from perdure.testing.resume.driving import Drive
from perdure.testing.resume.effects import Effects
from perdure.testing.resume.lives import Gate, begun
from perdure.testing.resume.points import Fate, live_under
from perdure.testing.resume.subject import RUN_ID

if TYPE_CHECKING:
    from perdure.storage import StoreStorage
    from perdure.testing.resume.lives import Child, Ended
    from perdure.testing.resume.looking import Look
    from perdure.testing.resume.stage import Place, Stage

RIVALS = 8

_WAYS: Final = ("through the store", "either way", "by running")
"""How the rivals of a race answer."""


@dataclass(frozen=True, slots=True)
class _Contest:
    """A run that waits for an answer, and how it ends with those of the answers that have won."""

    place: Place
    request_id: str
    answers: tuple[str, ...]
    """Of each rival what it answers, in words."""
    ends: dict[str, tuple[Look, Counter[str]]] = field(default_factory=dict[str, tuple["Look", Counter[str]]])

    def end(self, stage: Stage, answer: str) -> tuple[Look, Counter[str]]:
        """How the run ends if only one answers, and this."""
        if answer not in self.ends:
            self.ends[answer] = _end_alone(stage, self, self.answers.index(answer))
        return self.ends[answer]


def check_races(stage: Stage, *, rounds: int) -> None:
    """Let rivals answer the first request of the run, again and again."""
    contest = _prepared(stage) if rounds else None
    if contest is None:
        return
    _check_crossed(stage, contest)
    for first in range(rounds):
        place = stage.copied(contest.place)
        try:
            what = _raced(stage, contest, place, first)
        except RuntimeError as error:
            what = str(error)
        stage.report.checked("consume once", stage.kind, what, f"in {place.directory}")


def _check_crossed(stage: Stage, contest: _Contest) -> None:
    """Let one answer by running, and stop it when it has read the inbox and is about to commit; another answers then.

    Nothing but what the commit itself looks at can tell the first that it comes too late.
    """
    other = next((n for n, answer in enumerate(contest.answers) if answer != contest.answers[0]), None)
    if other is None:
        why = "all rivals answer the same: let Subject(rival=...) answer something else for each number"
        stage.report.missed("consume once", stage.kind, why)
        return
    place, gate = stage.copied(contest.place), Gate()
    fate = Fate("answer before commit", instead=gate.wait)
    late = _rival(stage, contest, place, 0, way="by running", fate=fate)
    is_met = gate.gather(1)
    early = _rival(stage, contest, place, other, way="through the store").ended()
    gate.open()
    outcomes = [(0, late.ended()), (other, early)]
    if not is_met:
        why = "the one who answers by running was never about to commit the answer"
        stage.report.missed("consume once", stage.kind, why)
        return
    try:
        what = _outcome(stage, contest, place, outcomes)
    except RuntimeError as error:
        what = str(error)
    how = f"in {place.directory}, answered through the store while another was about to commit"
    stage.report.checked("consume once", stage.kind, what, how)


def _prepared(stage: Stage) -> _Contest | None:
    place = stage.new_place()
    stage.life(place, how=Drive.to_a_request).result()

    async def asked(storage: StoreStorage) -> list[Any]:
        requests = await storage.requests(RUN_ID)
        answers = [repr(stage.subject.rivals_answer_to(requests[0], n)) for n in range(RIVALS)] if requests else []
        return [requests[0].request_id, *answers] if requests else []

    found = stage.with_storage(place, asked).result()
    if not found:
        return None
    request_id, *answers = found
    return _Contest(place, request_id, tuple(answers))


def _end_alone(stage: Stage, contest: _Contest, number: int) -> tuple[Look, Counter[str]]:
    """How the run ends if only one answers."""
    place = stage.copied(contest.place)

    async def answer(storage: StoreStorage) -> None:
        await storage.respond(RUN_ID, {contest.request_id: await _answer(stage, storage, number)})

    stage.with_storage(place, answer).result()
    stage.life(place).result()
    return stage.look(place), Counter(Effects.of(place.effects).begun)


async def _answer(stage: Stage, storage: StoreStorage, number: int) -> Any:
    request, *_ = await storage.requests(RUN_ID)
    return stage.subject.rivals_answer_to(request, number)


def _raced(stage: Stage, contest: _Contest, place: Place, first: int) -> str | None:
    """One race. What is wrong with its outcome; None if nothing is.

    Who waits longest before the gate is likely to be the first behind it: each race begins with another one.
    """
    order = [(first + number) % RIVALS for number in range(RIVALS)]
    gate = Gate()
    way = _WAYS[first % len(_WAYS)]
    children = [_rival(stage, contest, place, number, way=way, gate=gate) for number in order]
    gate.gather(RIVALS)
    gate.open()
    outcomes = [child.ended() for child in children]
    return _outcome(stage, contest, place, list(zip(order, outcomes, strict=True)))


def _outcome(stage: Stage, contest: _Contest, place: Place, outcomes: list[tuple[int, Ended]]) -> str | None:
    """What is wrong about how rivals have ended, by their numbers, and with the run after that."""
    failed = [ended.error or ended.value for _, ended in outcomes if ended.value not in {"won", "refused"}]
    if failed:
        return failed[0]
    won = {contest.answers[number] for number, ended in outcomes if ended.value == "won"}
    if len(won) != 1:
        return f"{len(won)} different answers were accepted: {', '.join(sorted(won))}"
    stage.life(place).result()
    return _unlike(stage, place, contest.end(stage, won.pop()))


def _unlike(stage: Stage, place: Place, expected: tuple[Look, Counter[str]]) -> str | None:
    look, counted = expected
    differs = stage.look(place).differs(look, compares_log=False)
    begun_now = Counter(Effects.of(place.effects).begun)
    if differs is None and begun_now != counted:
        return f"effects were {dict(begun_now - counted)} more and {dict(counted - begun_now)} less often than once"
    return differs


def _rival(
    stage: Stage,
    contest: _Contest,
    place: Place,
    number: int,
    *,
    way: str,
    gate: Gate | None = None,
    fate: Fate | None = None,
) -> Child:
    """A process that answers, once the gate opens if there is one: through the store, or by going on with the run."""
    stage.report.lives[stage.kind] += 1

    async def compete() -> str:
        effects.note_into(place.effects)
        storage = stage.open(place)
        answer = await _answer(stage, storage, number)
        if fate is not None:
            live_under(fate)
        if gate is not None:
            gate.wait()
        try:
            if way == "through the store" or (way == "either way" and number % 2):
                await storage.respond(RUN_ID, {contest.request_id: answer}, by=f"rival {number}")
            else:
                await Drive(stage.subject, storage, RUN_ID).go_on({contest.request_id: answer})
        except AlreadyAnsweredError as error:
            return "refused" if error.by else f"refused without a word of who was first: {error}"
        except RunBusyError as error:
            return "refused" if error.owner else f"refused without a word of who is at work: {error}"
        return "won"

    return begun(compete)
