"""The checks of the suite: kills, damage, forks, races and recoveries must not change how a run ends."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from perdure.errors import AlreadyAnsweredError, RunBusyError, RunNotFoundError, WorkflowException
from perdure.storage.port import is_tenant_store
from perdure.testing.resume.kill_points import (
    NO_KILL,
    Chance,
    Effects,
    KillPlan,
    KillTarget,
    KillTargets,
    record_into,
    use_plan,
    window_of,
)
from perdure.testing.resume.processes import (
    Baseline,
    Child,
    Gate,
    ProcessResult,
    RunDirectory,
    Runner,
    run_isolated,
    start_child,
)
from perdure.testing.resume.subject import RUN_ID, RunSnapshot, SubjectDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.storage import StoreStorage
    from perdure.testing.resume.suite import Report

_KILLS_PER_RUN_MAX = 8
_RANDOM_SECONDS_MAX = 0.4


@dataclass(slots=True)
class _Run:
    """A run under test, with a snapshot after each process and the points that killed it."""

    run_dir: RunDirectory
    attempts: int = 0
    snapshots: list[RunSnapshot] = field(default_factory=list["RunSnapshot"])
    kills: list[str] = field(default_factory=list[str])

    @property
    def history(self) -> str:
        """Description for violations."""
        return f"in {self.run_dir.path}, killed at [{', '.join(self.kills)}]"


@dataclass(slots=True)
class KillCheck:
    """Kills the subject at every known point, and at random moments."""

    runner: Runner
    expected: Baseline
    chance: Chance
    targets: KillTargets

    def run(self, *, random_kills: int) -> None:
        """Run the directed kills, then the random ones."""
        self.targets.add_points(self.expected.points, ())
        self.targets.add_inherited_points(self.expected.points)
        while not self.targets.is_done:
            self._run_directed()
        self.report.checked("directed points", self.runner.kind, self.targets.describe_missed())
        if not self.targets.hit:
            self.report.missed("directed points", self.runner.kind, "no process was killed at a point")
        if not self.expected.effects.done:
            why = "no effect was ever finished: call effect() where the workflow does its work"
            self.report.missed("effect once", self.runner.kind, why)
        while self.report.kills[f"random/{self.runner.kind}"] < random_kills:
            self._run_random()

    @property
    def report(self) -> Report:
        """The report."""
        return self.runner.report

    def _run_directed(self) -> None:
        run, planned, done = _Run(self.runner.new_directory()), self.targets.next_run(), list["KillTarget"]()
        while planned or len(run.kills) < _KILLS_PER_RUN_MAX:
            target = planned.popleft() if planned else self.targets.next_target()
            if target is None:
                break
            result = self._run_to_target(run, target)
            if result.error is not None or not self._take_snapshot(run):
                return
            if not result.was_killed:
                self.targets.add_points(result.value, tuple(done))
            done.append(target if result.was_killed else NO_KILL)
            if target is not NO_KILL and not result.was_killed:
                break
        for left in planned:
            self.targets.record_result(left, was_hit=False)
        self._finish(run, tuple(done))

    def _run_to_target(self, run: _Run, target: KillTarget) -> ProcessResult:
        result = self._run_process(run, KillPlan(target.name, target.occurrence))
        if target is not NO_KILL:
            self.targets.record_result(target, was_hit=result.was_killed)
        if result.was_killed:
            run.kills.append(f"{target.name} #{target.occurrence}")
            self.report.windows[f"{window_of(target.name)}/{self.runner.kind}"] += 1
        return result

    def _run_process(self, run: _Run, plan: KillPlan, *, kill_after_seconds: float | None = None) -> ProcessResult:
        """Run the next process of a run. An error violates the prefix continuation."""
        plan.is_resuming = run.attempts > 0
        run.attempts += 1
        result = self.runner.run_process(run.run_dir, plan, kill_after_seconds=kill_after_seconds)
        if result.error is not None:
            self.report.checked("prefix continuation", self.runner.kind, result.error, run.history)
        return result

    def _run_random(self) -> None:
        run = _Run(self.runner.new_directory())
        while len(run.kills) < _KILLS_PER_RUN_MAX:
            seconds = self.chance.seconds(_RANDOM_SECONDS_MAX)
            result = self._run_process(run, KillPlan(), kill_after_seconds=seconds)
            if result.error is not None or not self._take_snapshot(run):
                return
            if not result.was_killed:
                break
            run.kills.append(f"{seconds:.4f} seconds")
        self._finish(run, None)

    def _take_snapshot(self, run: _Run) -> bool:
        """Take a snapshot after a process. Return False if a listed checkpoint does not load."""
        try:
            run.snapshots.append(self.runner.snapshot(run.run_dir))
        except RuntimeError as error:
            self.report.checked("checkpoint validity", self.runner.kind, str(error), run.history)
            return False
        self.report.checked("checkpoint validity", self.runner.kind, None)
        return True

    def _finish(self, run: _Run, targets: tuple[KillTarget, ...] | None) -> None:
        """Run to the end and check the result. Add the points that the last process passed."""
        result = self._run_process(run, KillPlan())
        if result.error is not None or not self._take_snapshot(run):
            return
        if targets is not None:
            self.targets.add_points(result.value, targets)
        self._check_result(run)

    def _check_result(self, run: _Run) -> None:
        """Check that the run equals the undisturbed one, and that each earlier log is a prefix of the final one."""
        kind, last = self.runner.kind, run.snapshots[-1]
        broken = next((what for snapshot in run.snapshots if (what := snapshot.find_broken_prefix(last))), None)
        difference = last.find_gap() or broken or self.expected.find_difference(last, self.runner.subject)
        self.report.checked("prefix continuation", kind, difference, run.history)
        fault = Effects.read(run.run_dir.effects).find_fault(self.expected.effects)
        self.report.checked("effect once", kind, fault, run.history)


_SAMPLE_BYTES = 16
_FLIP = 0x20
_SEEDS = 1 << 32


def check_damage(runner: Runner, expected: Baseline, chance: Chance, *, rounds: int) -> None:
    """Damage one place of the checkpoints in each copy, and read it."""
    damage = _damage_function(runner, expected.run_dir, chance)
    for number in range(rounds):
        run_dir = runner.copy(expected.run_dir)
        what = damage(run_dir)
        if what is None:
            if number == 0:
                runner.report.missed("checkpoint validity", runner.kind, "the store has no checkpoint to be damaged")
            return
        how = f"in {run_dir.path}, {what}"
        runner.report.checked("checkpoint validity", runner.kind, _find_fault(runner, run_dir, expected.snapshot), how)


def _damage_function(runner: Runner, source: RunDirectory, chance: Chance) -> Callable[[RunDirectory], str | None]:
    """Return a function that damages one place of a copy and describes it. It returns None if no place is left."""
    spoil = runner.subject.kind(runner.kind).spoil
    if spoil is not None:
        # The function runs in a child, so its random numbers need their own seed.
        return lambda run_dir: run_isolated(partial(spoil, run_dir.store, Chance(str(chance.below(_SEEDS)))))
    places = iter(chance.shuffled(_find_places(runner, source)))

    def flip(run_dir: RunDirectory) -> str | None:
        found = next(places, None)
        if found is None:
            return None
        path, offset = found
        data = bytearray((run_dir.store / path).read_bytes())
        data[offset] ^= _FLIP
        (run_dir.store / path).write_bytes(data)
        return f"byte {offset} of {path} was flipped"

    return flip


def _find_places(runner: Runner, run_dir: RunDirectory) -> list[tuple[Path, int]]:
    """Return the places of checkpoint data in the store's files."""

    async def pieces(storage: StoreStorage) -> Any:
        manifests = await storage.store.manifests(run_id=RUN_ID)
        blobs = storage.store.read_blobs(root for manifest in manifests for root in manifest.toc.values())
        return [data.hex() for data in (*blobs.values(), *(manifest.header for manifest in manifests))]

    samples = [_middle(bytes.fromhex(text)) for text in runner.with_storage(run_dir, pieces).result()]
    places = set[tuple[Path, int]]()
    for path in sorted(each for each in run_dir.store.rglob("*") if each.is_file()):
        data = path.read_bytes()
        places |= {(path.relative_to(run_dir.store), at) for sample in samples if (at := data.find(sample)) >= 0}
    return sorted(places)


def _middle(data: bytes) -> bytes:
    half = max(len(data) - _SAMPLE_BYTES, 0) // 2
    return data[half : half + _SAMPLE_BYTES]


def _find_fault(runner: Runner, run_dir: RunDirectory, expected: RunSnapshot) -> str | None:
    """Return the fault in reading a damaged copy. None if it is refused, or reads as before."""

    async def read(storage: StoreStorage) -> str | None:
        try:
            snapshot = await RunSnapshot.take(storage, RUN_ID)
        except WorkflowException as error:
            named = RUN_ID in str(error) or str(run_dir.store) in str(error)
            return None if named else f"the error names neither checkpoint nor file: {type(error).__name__}: {error}"
        return snapshot.find_difference(expected)

    result = runner.with_storage(run_dir, read)
    return result.value if result.error is None else result.error


def check_forks(runner: Runner, expected: Baseline, chance: Chance, *, rounds: int) -> None:
    """Fork a finished run twice at random checkpoints, and kill the second fork once."""
    for _ in range(rounds):
        run_dir = runner.copy(expected.run_dir)
        position = chance.below(expected.snapshot.checkpoints)
        how = f"in {run_dir.path}, forks of checkpoint number {position}"
        try:
            what = _compare_forks(runner, run_dir, position, chance)
            untouched = runner.snapshot(run_dir).find_difference(expected.snapshot)
        except RuntimeError as error:
            what, untouched = str(error), None
        what = what or (f"the source has changed: {untouched}" if untouched else None)
        runner.report.checked("fork determinism", runner.kind, what, how)


def _compare_forks(runner: Runner, run_dir: RunDirectory, position: int, chance: Chance) -> str | None:
    first, second = _fork_twice(runner, run_dir, position)
    seen: dict[str, int] = runner.run_process(run_dir, run_id=first, how=SubjectDriver.run_fork_to_end).result()
    if seen:
        target = chance.one_of(sorted(seen))
        plan = KillPlan(target, 1 + chance.below(seen[target]))
        result = runner.run_process(run_dir, plan, run_id=second, how=SubjectDriver.run_fork_to_end)
        if result.was_killed:
            runner.run_process(
                run_dir, KillPlan(is_resuming=True), run_id=second, how=SubjectDriver.run_fork_to_end
            ).result()
        elif result.error is not None:
            return result.error
    one, other = runner.snapshot(run_dir, first), runner.snapshot(run_dir, second)
    return other.find_difference(one, compares_log=runner.subject.has_fixed_log)


def _fork_twice(runner: Runner, run_dir: RunDirectory, position: int) -> tuple[str, str]:
    """Fork a checkpoint twice and return the ids."""

    async def fork(storage: StoreStorage) -> Any:
        checkpoints = await storage.list_checkpoints(run_id=RUN_ID)
        run = runner.subject.build().start(run_id=RUN_ID, checkpoint_storage=storage)
        for _ in range(2):
            await run.fork(checkpoints[position].checkpoint_id)
        return [record.run_id for record in await storage.store.runs() if record.run_id != RUN_ID]

    first, second = runner.with_storage(run_dir, fork).result()
    return first, second


RIVALS = 8

# Ways in which the rivals of a race answer.
_ANSWER_MODES: Final = ("through the store", "either way", "by running")
# Final snapshot and effects of a run.
_End: TypeAlias = "tuple[RunSnapshot, Counter[str]]"


@dataclass(frozen=True, slots=True)
class _Race:
    """A run that waits for an answer, the answers of the rivals as text, and its end for each answer that won."""

    run_dir: RunDirectory
    request_id: str
    answers: tuple[str, ...]
    ends: dict[str, _End] = field(default_factory=dict[str, _End])

    def end(self, runner: Runner, answer: str) -> _End:
        """Return the end of the run for this answer."""
        if answer not in self.ends:
            self.ends[answer] = _run_with_one_answer(runner, self, self.answers.index(answer))
        return self.ends[answer]


def check_races(runner: Runner, *, rounds: int) -> None:
    """Let rivals answer the first request of the run at the same moment."""
    race = _prepare_race(runner) if rounds else None
    if race is None:
        return
    _check_late_commit(runner, race)
    for first in range(rounds):
        run_dir = runner.copy(race.run_dir)
        try:
            what = _run_race(runner, race, run_dir, first)
        except RuntimeError as error:
            what = str(error)
        runner.report.checked("consume once", runner.kind, what, f"in {run_dir.path}")


def _check_late_commit(runner: Runner, race: _Race) -> None:
    """Stop an answering run before its commit, and let another process answer the request first.

    Only a check inside the commit can detect that the first answer is too late.
    """
    other = next((n for n, answer in enumerate(race.answers) if answer != race.answers[0]), None)
    if other is None:
        why = "all rivals answer the same: let Subject(rival=...) answer something else for each number"
        runner.report.missed("consume once", runner.kind, why)
        return
    run_dir, gate = runner.copy(race.run_dir), Gate()
    plan = KillPlan("answer before commit", action=gate.wait)
    late = _start_rival(runner, race, run_dir, 0, mode="by running", plan=plan)
    is_met = gate.gather(1)
    early = _start_rival(runner, race, run_dir, other, mode="through the store").wait()
    gate.open()
    outcomes = [(0, late.wait()), (other, early)]
    if not is_met:
        why = "the one who answers by running was never about to commit the answer"
        runner.report.missed("consume once", runner.kind, why)
        return
    try:
        what = _check_outcome(runner, race, run_dir, outcomes)
    except RuntimeError as error:
        what = str(error)
    how = f"in {run_dir.path}, answered through the store while another was about to commit"
    runner.report.checked("consume once", runner.kind, what, how)


def _prepare_race(runner: Runner) -> _Race | None:
    run_dir = runner.new_directory()
    runner.run_process(run_dir, how=SubjectDriver.run_to_request).result()

    async def asked(storage: StoreStorage) -> list[Any]:
        requests = await storage.requests(RUN_ID)
        answers = [repr(runner.subject.rival_answer_to(requests[0], n)) for n in range(RIVALS)] if requests else []
        return [requests[0].request_id, *answers] if requests else []

    found = runner.with_storage(run_dir, asked).result()
    if not found:
        return None
    request_id, *answers = found
    return _Race(run_dir, request_id, tuple(answers))


def _run_with_one_answer(runner: Runner, race: _Race, number: int) -> _End:
    """Return the end of the run if only this rival answers."""
    run_dir = runner.copy(race.run_dir)

    async def answer(storage: StoreStorage) -> None:
        await storage.respond(RUN_ID, {race.request_id: await _answer(runner, storage, number)})

    runner.with_storage(run_dir, answer).result()
    runner.run_process(run_dir).result()
    return runner.snapshot(run_dir), Counter(Effects.read(run_dir.effects).begun)


async def _answer(runner: Runner, storage: StoreStorage, number: int) -> Any:
    request, *_ = await storage.requests(RUN_ID)
    return runner.subject.rival_answer_to(request, number)


def _run_race(runner: Runner, race: _Race, run_dir: RunDirectory, first: int) -> str | None:
    """Run one race. Return the fault in its outcome; None if there is none.

    The rival that waits longest is likely to be first, so each race starts with another one.
    """
    order = [(first + number) % RIVALS for number in range(RIVALS)]
    gate = Gate()
    mode = _ANSWER_MODES[first % len(_ANSWER_MODES)]
    children = [_start_rival(runner, race, run_dir, number, mode=mode, gate=gate) for number in order]
    gate.gather(RIVALS)
    gate.open()
    outcomes = [child.wait() for child in children]
    return _check_outcome(runner, race, run_dir, list(zip(order, outcomes, strict=True)))


def _check_outcome(
    runner: Runner, race: _Race, run_dir: RunDirectory, outcomes: list[tuple[int, ProcessResult]]
) -> str | None:
    """Return the fault in the results of the rivals or in the run after them; None if there is none."""
    failed = [result.error or result.value for _, result in outcomes if result.value not in {"won", "refused"}]
    if failed:
        return failed[0]
    won = {race.answers[number] for number, result in outcomes if result.value == "won"}
    if len(won) != 1:
        return f"{len(won)} different answers were accepted: {', '.join(sorted(won))}"
    runner.run_process(run_dir).result()
    snapshot, counted = race.end(runner, won.pop())
    difference = runner.snapshot(run_dir).find_difference(snapshot, compares_log=False)
    counted_now = Counter(Effects.read(run_dir.effects).begun)
    if difference is None and counted_now != counted:
        return f"effects were {dict(counted_now - counted)} more and {dict(counted - counted_now)} less often than once"
    return difference


def _start_rival(
    runner: Runner,
    race: _Race,
    run_dir: RunDirectory,
    number: int,
    *,
    mode: str,
    gate: Gate | None = None,
    plan: KillPlan | None = None,
) -> Child:
    """Start a process that answers through the store or by running, once the gate opens."""
    runner.report.lives[runner.kind] += 1

    async def compete() -> str:
        record_into(run_dir.effects)
        storage = runner.open(run_dir)
        answer = await _answer(runner, storage, number)
        if plan is not None:
            use_plan(plan)
        if gate is not None:
            gate.wait()
        try:
            if mode == "through the store" or (mode == "either way" and number % 2):
                await storage.respond(RUN_ID, {race.request_id: answer}, by=f"rival {number}")
            else:
                await SubjectDriver(runner.subject, storage, RUN_ID).resume({race.request_id: answer})
        except AlreadyAnsweredError as error:
            return "refused" if error.by else f"refused without the name of the first: {error}"
        except RunBusyError as error:
            return "refused" if error.owner else f"refused without the name of the owner: {error}"
        return "won"

    return start_child(compete)


def can_move_runs(runner: Runner, run_dir: RunDirectory) -> bool:
    """Return True if this kind of store can export and import runs."""

    async def moves(storage: StoreStorage) -> bool:
        return is_tenant_store(storage.store)

    return runner.with_storage(run_dir, moves).result()


def move_run(runner: Runner, source: RunDirectory, other: Runner) -> list[tuple[Runner, RunDirectory]]:
    """Copy a run to another kind of store, and back again. Return both copies.

    The source does not change. A process that was killed before its run began leaves nothing to export.
    """
    file = _export_run(runner, runner.copy(source))
    if file is None:
        return []
    there = _import_run(other, source, file)
    back = _export_run(other, _import_run(other, source, file))
    assert back is not None, "a run that was imported is there"
    return [(other, there), (runner, _import_run(runner, source, back))]


def _export_run(runner: Runner, run_dir: RunDirectory) -> Path | None:
    """Export a run to a file. Return None if there is no run."""
    file = run_dir.path / "export"

    async def export(storage: StoreStorage) -> Any:
        try:
            await storage.export_run(RUN_ID, file)
        except RunNotFoundError:
            return False
        return True

    return file if runner.with_storage(run_dir, export).result() else None


def _import_run(runner: Runner, source: RunDirectory, file: Path) -> RunDirectory:
    """Import a run into a new directory, together with its effects."""
    run_dir = runner.new_directory()
    if source.effects.exists():
        shutil.copy(source.effects, run_dir.effects)

    async def take_in(storage: StoreStorage) -> str:
        return await storage.import_run(file)

    runner.with_storage(run_dir, take_in).result()
    return run_dir


# First words of the points at which work is done but not committed.
_INSIDE_SUPERSTEP = ("finished", "record", "step", "intent", "activation")


def check_recoveries(
    runner: Runner, expected: Baseline, chance: Chance, *, rounds: int, others: Sequence[Runner] = ()
) -> None:
    """Kill a run at random points, and recover it in place, in two copies, and in another kind of store."""
    killed, destinations = 0, list["Runner"]()
    if rounds and can_move_runs(runner, expected.run_dir):
        destinations = [other for other in others if can_move_runs(other, other.new_directory())]
    for number in range(rounds):
        target, run_dir = _choose_point(expected, chance, number), runner.new_directory()
        killed += runner.run_process(run_dir, KillPlan(target, 1 + chance.below(expected.points[target]))).was_killed
        how = f"in {run_dir.path}, killed at {target!r}"
        if destinations:
            what = _compare_moved_run(runner, expected, run_dir, chance.one_of(destinations))
            runner.report.checked("recovery from an export", runner.kind, what, how)
        copies = [runner.copy(run_dir), runner.copy(run_dir, "somewhere", "else"), run_dir]
        runner.report.checked("recovery determinism", runner.kind, _compare_recoveries(runner, expected, copies), how)
    if rounds and not killed:
        runner.report.missed("recovery determinism", runner.kind, "no process was killed: there was nothing to recover")


def _choose_point(expected: Baseline, chance: Chance, number: int) -> str:
    """Choose a point. Every other round uses one inside a superstep, if there is one."""
    points = sorted(expected.points)
    inside = [name for name in points if name.partition(" ")[0] in _INSIDE_SUPERSTEP]
    return chance.one_of(inside if inside and number % 2 == 0 else points)


def _compare_recoveries(runner: Runner, expected: Baseline, places: list[RunDirectory]) -> str | None:
    try:
        first, *others = [_recover(runner, run_dir) for run_dir in places]
    except RuntimeError as error:
        return str(error)
    differing = (other.find_difference(first) for other in others)
    return next((what for what in differing if what), None) or expected.find_difference(first, runner.subject)


def _compare_moved_run(runner: Runner, expected: Baseline, run_dir: RunDirectory, other: Runner) -> str | None:
    """Return the difference of the run after one move and after the way back; None if there is none."""
    try:
        before = runner.snapshot(run_dir)
        for where, arrived in move_run(runner, run_dir, other):
            snapshot = _recover(where, arrived)
            difference = (
                before.find_broken_prefix(snapshot)
                or snapshot.find_gap()
                or expected.find_difference(snapshot, runner.subject)
            )
            what = difference or Effects.read(arrived.effects).find_fault(expected.effects)
            if what is not None:
                return f"exported, and recovered in {arrived.path}: {what}"
    except RuntimeError as error:
        return f"exported from a copy, by way of {other.kind}: {error}"
    return None


def _recover(runner: Runner, run_dir: RunDirectory) -> RunSnapshot:
    runner.run_process(run_dir, KillPlan(is_resuming=True)).result()
    return runner.snapshot(run_dir)
