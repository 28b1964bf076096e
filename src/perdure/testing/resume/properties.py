"""Runs that are killed life after life, at directed points and random moments, and end as if nothing had happened."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import AlreadyAnsweredError, RunBusyError, RunNotFoundError, WorkflowException
from perdure.testing.resume import effects
from perdure.testing.resume.effects import Effects
from perdure.testing.resume.kill_points import THROUGH, Chance, Fate, live_under, window_of
from perdure.testing.resume.processes import Gate, alone, begun
from perdure.testing.resume.subject import RUN_ID, Drive, Look

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.storage import StoreStorage
    from perdure.testing.resume.kill_points import Aim, Aims
    from perdure.testing.resume.processes import Child, Ended, Place, Stage, Undisturbed
    from perdure.testing.resume.suite import Report

_DEATHS_PER_RUN_MAX = 8
_LIFE_SECONDS_DRAWN = 0.4


@dataclass(slots=True)
class _Run:
    """A run on its way: where it is, how many lives it had, what the store said after each, and what has killed it."""

    place: Place
    lives: int = 0
    looks: list[Look] = field(default_factory=list["Look"])
    deaths: list[str] = field(default_factory=list[str])

    @property
    def history(self) -> str:
        """The same in words."""
        return f"in {self.place.directory}, killed at [{', '.join(self.deaths)}]"


@dataclass(slots=True)
class Disturbing:
    """Kills the subject on one kind of store until every known point has killed, and often enough at random."""

    stage: Stage
    expected: Undisturbed
    chance: Chance
    aims: Aims

    def run(self, *, random_kills: int) -> None:
        """Run after run: first the directed ones, then those at random moments."""
        self.aims.learn(self.expected.points, ())
        self.aims.learn_inheritance(self.expected.points)
        while not self.aims.is_done:
            self._directed_run()
        self.report.checked("directed points", self.stage.kind, self.aims.missed())
        if not self.aims.hit:
            self.report.missed("directed points", self.stage.kind, "no point has killed a life")
        if not self.expected.effects.done:
            why = "no effect was ever finished: call effect() where the workflow does its work"
            self.report.missed("effect once", self.stage.kind, why)
        while self.report.kills[f"random/{self.stage.kind}"] < random_kills:
            self._random_run()

    @property
    def report(self) -> Report:
        """Where findings go."""
        return self.stage.report

    def _directed_run(self) -> None:
        run, planned, done = _Run(self.stage.new_place()), self.aims.next_run(), list["Aim"]()
        while planned or len(run.deaths) < _DEATHS_PER_RUN_MAX:
            aim = planned.popleft() if planned else self.aims.next_life()
            if aim is None:
                break
            ended = self._aimed_life(run, aim)
            if ended.error is not None or not self._looked(run):
                return
            if not ended.was_killed:
                self.aims.learn(ended.value, tuple(done))
            done.append(aim if ended.was_killed else THROUGH)
            if aim is not THROUGH and not ended.was_killed:
                break
        for left in planned:
            self.aims.settle(left, was_hit=False)
        self._finish(run, tuple(done))

    def _aimed_life(self, run: _Run, aim: Aim) -> Ended:
        ended = self._life(run, Fate(aim.name, aim.occurrence))
        if aim is not THROUGH:
            self.aims.settle(aim, was_hit=ended.was_killed)
        if ended.was_killed:
            run.deaths.append(f"{aim.name} #{aim.occurrence}")
            self.report.windows[f"{window_of(aim.name)}/{self.stage.kind}"] += 1
        return ended

    def _life(self, run: _Run, fate: Fate, *, kill_after_seconds: float | None = None) -> Ended:
        """The next life of a run. One that fails breaks the run's continuation."""
        fate.is_resuming = run.lives > 0
        run.lives += 1
        ended = self.stage.life(run.place, fate, kill_after_seconds=kill_after_seconds)
        if ended.error is not None:
            self.report.checked("prefix continuation", self.stage.kind, ended.error, run.history)
        return ended

    def _random_run(self) -> None:
        run = _Run(self.stage.new_place())
        while len(run.deaths) < _DEATHS_PER_RUN_MAX:
            seconds = self.chance.seconds(_LIFE_SECONDS_DRAWN)
            ended = self._life(run, Fate(), kill_after_seconds=seconds)
            if ended.error is not None or not self._looked(run):
                return
            if not ended.was_killed:
                break
            run.deaths.append(f"{seconds:.4f} seconds")
        self._finish(run, None)

    def _looked(self, run: _Run) -> bool:
        """After a life: whether every checkpoint that is listed loads."""
        try:
            run.looks.append(self.stage.look(run.place))
        except RuntimeError as error:
            self.report.checked("checkpoint validity", self.stage.kind, str(error), run.history)
            return False
        self.report.checked("checkpoint validity", self.stage.kind, None)
        return True

    def _finish(self, run: _Run, aims: tuple[Aim, ...] | None) -> None:
        """Let the run end, and judge it. What its last life came by is known from here on."""
        ended = self._life(run, Fate())
        if ended.error is not None or not self._looked(run):
            return
        if aims is not None:
            self.aims.learn(ended.value, aims)
        self._judge(run)

    def _judge(self, run: _Run) -> None:
        """At the end: the run is the undisturbed one, and each log on the way is the beginning of its own."""
        kind, last = self.stage.kind, run.looks[-1]
        broken = next((what for look in run.looks if (what := look.is_continued_by(last))), None)
        differs = last.gap() or broken or self.expected.differs(last, self.stage.subject)
        self.report.checked("prefix continuation", kind, differs, run.history)
        fault = Effects.of(run.place.effects).fault(self.expected.effects)
        self.report.checked("effect once", kind, fault, run.history)


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


def check_forks(stage: Stage, expected: Undisturbed, chance: Chance, *, rounds: int) -> None:
    """Fork a finished run at checkpoints of chance; the second fork of each is killed on its way."""
    for _ in range(rounds):
        place = stage.copied(expected.place)
        position = chance.below(expected.look.checkpoints)
        how = f"in {place.directory}, forks of checkpoint number {position}"
        try:
            what = _differing_forks(stage, place, position, chance)
            untouched = stage.look(place).differs(expected.look)
        except RuntimeError as error:
            what, untouched = str(error), None
        what = what or (f"the source has changed: {untouched}" if untouched else None)
        stage.report.checked("fork determinism", stage.kind, what, how)


def _differing_forks(stage: Stage, place: Place, position: int, chance: Chance) -> str | None:
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
