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
from perdure.testing.resume.processes import Baseline, Child, Gate, ProcessResult, RunDirectory, Runner, run_isolated
from perdure.testing.resume.subject import RUN_ID, RunSnapshot, SubjectDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perdure.storage import StoreStorage

_KILLS_PER_RUN_MAX = 8
_RANDOM_SECONDS_MAX = 0.4


@dataclass(slots=True)
class _Run:
    """A run under test, with a snapshot after each process and the points that killed it."""

    run_dir: RunDirectory
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
        runner = self.runner
        self.targets.add_points(self.expected.points, ())
        self.targets.add_inherited_points(self.expected.points)
        while not self.targets.is_done:
            self._run_directed()
        runner.checked("directed points", self.targets.describe_missed())
        if not self.targets.hit:
            runner.missed("directed points", "no process was killed at a point")
        if not self.expected.effects.done:
            runner.missed("effect once", "no effect was ever finished: call effect() where the workflow does its work")
        while runner.report.kills[f"random/{runner.kind}"] < random_kills:
            self._run_random()

    def _run_directed(self) -> None:
        run, planned, done = _Run(self.runner.new_directory()), self.targets.next_run(), list["KillTarget"]()
        while planned or len(run.kills) < _KILLS_PER_RUN_MAX:
            target = planned.popleft() if planned else self.targets.next_target()
            if target is None:
                break
            plan = KillPlan(target.name, target.occurrence)
            result = self._run_process(run, plan, cause=f"{target.name} #{target.occurrence}")
            if result is None:
                return
            if target is not NO_KILL:
                self.targets.record_result(target, was_hit=result.was_killed)
            if result.was_killed:
                self.runner.report.windows[f"{window_of(target.name)}/{self.runner.kind}"] += 1
                done.append(target)
                continue
            self.targets.add_points(result.value, tuple(done))
            done.append(NO_KILL)
            if target is not NO_KILL:
                break
        for left in planned:
            self.targets.record_result(left, was_hit=False)
        last = self._finish(run)
        if last is not None:
            self.targets.add_points(last.value, tuple(done))

    def _run_random(self) -> None:
        run = _Run(self.runner.new_directory())
        while len(run.kills) < _KILLS_PER_RUN_MAX:
            seconds = self.chance.seconds(_RANDOM_SECONDS_MAX)
            result = self._run_process(run, KillPlan(), kill_after_seconds=seconds, cause=f"{seconds:.4f} seconds")
            if result is None:
                return
            if not result.was_killed:
                break
        self._finish(run)

    def _run_process(
        self, run: _Run, plan: KillPlan, *, cause: str = "", kill_after_seconds: float | None = None
    ) -> ProcessResult | None:
        """Run the next process of a run, and read all checkpoints after it. Return None after a violation."""
        plan.is_resuming = bool(run.snapshots)
        result = self.runner.run_process(run.run_dir, plan, kill_after_seconds=kill_after_seconds)
        if result.error is not None:
            self.runner.checked("prefix continuation", result.error, run.history)
            return None
        if result.was_killed:
            run.kills.append(cause)

        def take_snapshot() -> None:
            run.snapshots.append(self.runner.snapshot(run.run_dir))

        return result if self.runner.check("checkpoint validity", take_snapshot, run.history) else None

    def _finish(self, run: _Run) -> ProcessResult | None:
        """Run to the end. The run must equal the undisturbed one, and each earlier log be a prefix of the final one."""
        result = self._run_process(run, KillPlan())
        if result is not None:
            last = run.snapshots[-1]
            broken = next((what for snapshot in run.snapshots if (what := snapshot.find_broken_prefix(last))), None)
            difference = last.find_gap() or broken or self.expected.find_difference(last, self.runner.subject)
            self.runner.checked("prefix continuation", difference, run.history)
            fault = Effects.read(run.run_dir.effects).find_fault(self.expected.effects)
            self.runner.checked("effect once", fault, run.history)
        return result


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
                runner.missed("checkpoint validity", "the store has no checkpoint to be damaged")
            return
        find_fault = partial(_find_fault, runner, run_dir, expected.snapshot)
        runner.check("checkpoint validity", find_fault, f"in {run_dir.path}, {what}")


def _damage_function(runner: Runner, source: RunDirectory, chance: Chance) -> Callable[[RunDirectory], str | None]:
    """Return a function that damages one place of a copy and describes it. It returns None if no place is left."""
    spoil = runner.subject.kind(runner.kind).spoil
    if spoil is not None:
        # The function runs in a child, so its random numbers need their own seed.
        return lambda run_dir: run_isolated(partial(spoil, run_dir.store, Chance(str(chance.below(_SEEDS)))))
    places = iter(chance.shuffled(_find_places(runner, source)))

    def flip(run_dir: RunDirectory) -> str | None:
        path, offset = next(places, (None, 0))
        if path is None:
            return None
        data = bytearray((run_dir.store / path).read_bytes())
        data[offset] ^= _FLIP
        (run_dir.store / path).write_bytes(data)
        return f"byte {offset} of {path} was flipped"

    return flip


def _find_places(runner: Runner, run_dir: RunDirectory) -> list[tuple[Path, int]]:
    """Return the places of checkpoint data in the store's files."""

    async def sample(storage: StoreStorage) -> list[str]:
        manifests = await storage.store.manifests(run_id=RUN_ID)
        blobs = storage.store.read_blobs(root for manifest in manifests for root in manifest.toc.values())
        stored = (*blobs.values(), *(manifest.header for manifest in manifests))
        starts = (max(len(data) - _SAMPLE_BYTES, 0) // 2 for data in stored)
        return [data[start : start + _SAMPLE_BYTES].hex() for data, start in zip(stored, starts, strict=True)]

    samples = [bytes.fromhex(text) for text in runner.with_storage(run_dir, sample).result()]
    places = set[tuple[Path, int]]()
    for path in sorted(each for each in run_dir.store.rglob("*") if each.is_file()):
        data = path.read_bytes()
        places |= {(path.relative_to(run_dir.store), at) for sample in samples if (at := data.find(sample)) >= 0}
    return sorted(places)


def _find_fault(runner: Runner, run_dir: RunDirectory, expected: RunSnapshot) -> str | None:
    """Return the fault in reading a damaged copy. None if it is refused, or reads as before."""

    async def read(storage: StoreStorage) -> str | None:
        try:
            snapshot = await RunSnapshot.take(storage, RUN_ID)
        except WorkflowException as error:
            named = RUN_ID in str(error) or str(run_dir.store) in str(error)
            return None if named else f"the error names neither checkpoint nor file: {type(error).__name__}: {error}"
        return snapshot.find_difference(expected)

    return runner.with_storage(run_dir, read).result()


def check_forks(runner: Runner, expected: Baseline, chance: Chance, *, rounds: int) -> None:
    """Fork a finished run twice at random checkpoints, and kill the second fork once."""
    for _ in range(rounds):
        run_dir = runner.copy(expected.run_dir)
        position = chance.below(expected.snapshot.checkpoints)
        compare = partial(_compare_forks, runner, expected, run_dir, position, chance)
        how = f"in {run_dir.path}, forks of checkpoint number {position}"
        runner.check("fork determinism", compare, how)


def _compare_forks(
    runner: Runner, expected: Baseline, run_dir: RunDirectory, position: int, chance: Chance
) -> str | None:
    async def fork_twice(storage: StoreStorage) -> list[str]:
        checkpoints = await storage.list_checkpoints(run_id=RUN_ID)
        run = runner.subject.build().start(run_id=RUN_ID, checkpoint_storage=storage)
        for _ in range(2):
            await run.fork(checkpoints[position].checkpoint_id)
        return [record.run_id for record in await storage.store.runs() if record.run_id != RUN_ID]

    first, second = runner.with_storage(run_dir, fork_twice).result()
    run_fork = partial(runner.run_process, run_dir, how=SubjectDriver.run_fork_to_end)
    seen: dict[str, int] = run_fork(run_id=first).result()
    if seen:
        target = chance.one_of(sorted(seen))
        result = run_fork(KillPlan(target, 1 + chance.below(seen[target])), run_id=second)
        (run_fork(KillPlan(is_resuming=True), run_id=second) if result.was_killed else result).result()
    one, other = runner.snapshot(run_dir, first), runner.snapshot(run_dir, second)
    what = other.find_difference(one, compares_log=runner.subject.has_fixed_log)
    untouched = runner.snapshot(run_dir).find_difference(expected.snapshot)
    return what or (f"the source has changed: {untouched}" if untouched else None)


RIVALS = 8

# Ways in which the rivals of a race answer.
_ANSWER_MODES: Final = ("through the store", "either way", "by running")
# Final snapshot and effects of a run.
_End: TypeAlias = "tuple[RunSnapshot, Counter[str]]"


def check_races(runner: Runner, *, rounds: int) -> None:
    """Let rivals answer the first request of the run at the same moment."""
    if not rounds:
        return
    run_dir = runner.new_directory()
    runner.run_process(run_dir, how=SubjectDriver.run_to_request).result()

    async def ask(storage: StoreStorage) -> list[str]:
        return [
            text
            for request in (await storage.requests(RUN_ID))[:1]
            for text in (request.request_id, *(repr(runner.subject.rival_answer_to(request, n)) for n in range(RIVALS)))
        ]

    asked: list[str] = runner.with_storage(run_dir, ask).result()
    if not asked:
        return
    race = _Race(runner, run_dir, asked[0], asked[1:])
    race.check_late_commit()
    for first in range(rounds):
        run_dir = runner.copy(race.run_dir)
        runner.check("consume once", partial(race.run, run_dir, first), f"in {run_dir.path}")


@dataclass(frozen=True, slots=True)
class _Race:
    """A run that waits for an answer, the answers of the rivals as text, and its end for each answer that won."""

    runner: Runner
    run_dir: RunDirectory
    request_id: str
    answers: Sequence[str]
    ends: dict[str, _End] = field(default_factory=dict[str, _End])

    def check_late_commit(self) -> None:
        """Stop an answering run before its commit, and let another process answer the request first.

        Only a check inside the commit can detect that the first answer is too late.
        """
        other = next((n for n, answer in enumerate(self.answers) if answer != self.answers[0]), None)
        if other is None:
            why = "all rivals answer the same: let Subject(rival=...) answer something else for each number"
            self.runner.missed("consume once", why)
            return
        run_dir, gate = self.runner.copy(self.run_dir), Gate()
        plan = KillPlan("answer before commit", action=gate.wait)
        late = self._start_rival(run_dir, 0, mode="by running", plan=plan)
        is_met = gate.gather(1)
        early = self._start_rival(run_dir, other, mode="through the store").wait()
        gate.open()
        outcomes = {0: late.wait(), other: early}
        if not is_met:
            why = "the one who answers by running was never about to commit the answer"
            self.runner.missed("consume once", why)
            return
        how = f"in {run_dir.path}, answered through the store while another was about to commit"
        self.runner.check("consume once", partial(self._find_fault, run_dir, outcomes), how)

    def run(self, run_dir: RunDirectory, first: int) -> str | None:
        """Run one race. Return the fault in its outcome; None if there is none.

        The rival that waits longest is likely to be first, so each race starts with another one.
        """
        gate, mode = Gate(), _ANSWER_MODES[first % len(_ANSWER_MODES)]
        order = [(first + number) % RIVALS for number in range(RIVALS)]
        rivals = {number: self._start_rival(run_dir, number, mode=mode, gate=gate) for number in order}
        gate.gather(RIVALS)
        gate.open()
        return self._find_fault(run_dir, {number: rival.wait() for number, rival in rivals.items()})

    def _find_fault(self, run_dir: RunDirectory, outcomes: Mapping[int, ProcessResult]) -> str | None:
        """Return the fault in the results of the rivals or in the run after them; None if there is none."""
        for result in outcomes.values():
            if result.value not in {"won", "refused"}:
                return result.error or result.value
        winners = {self.answers[number]: number for number, result in outcomes.items() if result.value == "won"}
        if len(winners) != 1:
            return f"{len(winners)} different answers were accepted: {', '.join(sorted(winners))}"
        ((answer, number),) = winners.items()
        if answer not in self.ends:
            self.ends[answer] = self._run_with_one_answer(number)
        snapshot, counted = self.ends[answer]
        found, counted_now = self._run_to_end(run_dir)
        difference = found.find_difference(snapshot, compares_log=False)
        more, less = dict(counted_now - counted), dict(counted - counted_now)
        return difference or (f"effects were {more} more and {less} less often than once" if more or less else None)

    def _run_with_one_answer(self, number: int) -> _End:
        """Return the end of the run if only this rival answers."""
        run_dir = self.runner.copy(self.run_dir)

        async def answer(storage: StoreStorage) -> None:
            await storage.respond(RUN_ID, {self.request_id: await self._answer(storage, number)})

        self.runner.with_storage(run_dir, answer).result()
        return self._run_to_end(run_dir)

    def _run_to_end(self, run_dir: RunDirectory) -> _End:
        self.runner.run_process(run_dir).result()
        return self.runner.snapshot(run_dir), Counter(Effects.read(run_dir.effects).begun)

    async def _answer(self, storage: StoreStorage, number: int) -> Any:
        request, *_ = await storage.requests(RUN_ID)
        return self.runner.subject.rival_answer_to(request, number)

    def _start_rival(
        self, run_dir: RunDirectory, number: int, *, mode: str, gate: Gate | None = None, plan: KillPlan | None = None
    ) -> Child:
        """Start a process that answers through the store or by running, once the gate opens."""
        self.runner.report.lives[self.runner.kind] += 1

        async def compete() -> str:
            record_into(run_dir.effects)
            storage = self.runner.open(run_dir)
            answers = {self.request_id: await self._answer(storage, number)}
            if plan is not None:
                use_plan(plan)
            if gate is not None:
                gate.wait()
            try:
                if mode == "through the store" or (mode == "either way" and number % 2):
                    await storage.respond(RUN_ID, answers, by=f"rival {number}")
                else:
                    await SubjectDriver(self.runner.subject, storage, RUN_ID).resume(answers)
            except AlreadyAnsweredError as error:
                return "refused" if error.by else f"refused without the name of the first: {error}"
            except RunBusyError as error:
                return "refused" if error.owner else f"refused without the name of the owner: {error}"
            return "won"

        return Child(compete)


def _can_move_runs(runner: Runner, run_dir: RunDirectory) -> bool:
    """Return True if this kind of store can export and import runs."""

    async def has_methods(storage: StoreStorage) -> bool:
        return is_tenant_store(storage.store)

    return runner.with_storage(run_dir, has_methods).result()


def _export_run(runner: Runner, run_dir: RunDirectory) -> Path | None:
    """Export a run to a file. Return None if there is no run: a process may be killed before its run began."""
    file = run_dir.path / "export"

    async def export(storage: StoreStorage) -> bool:
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
    was_killed, destinations = False, list["Runner"]()
    if rounds and _can_move_runs(runner, expected.run_dir):
        destinations = [other for other in others if _can_move_runs(other, other.new_directory())]
    points = sorted(expected.points)
    # Every other round uses a point inside a superstep, if there is one.
    inside = [name for name in points if name.partition(" ")[0] in _INSIDE_SUPERSTEP]
    for number in range(rounds):
        target = chance.one_of(inside if inside and number % 2 == 0 else points)
        run_dir, plan = runner.new_directory(), KillPlan(target, 1 + chance.below(expected.points[target]))
        was_killed |= runner.run_process(run_dir, plan).was_killed
        how = f"in {run_dir.path}, killed at {target!r}"
        if destinations:
            compare = partial(_compare_moved_run, runner, expected, run_dir, chance.one_of(destinations))
            runner.check("recovery from an export", compare, how)
        copies = [runner.copy(run_dir), runner.copy(run_dir, "somewhere", "else"), run_dir]
        runner.check("recovery determinism", partial(_compare_recoveries, runner, expected, copies), how)
    if rounds and not was_killed:
        runner.missed("recovery determinism", "no process was killed: there was nothing to recover")


def _compare_recoveries(runner: Runner, expected: Baseline, places: list[RunDirectory]) -> str | None:
    first, *others = [_recover(runner, run_dir) for run_dir in places]
    differing = (other.find_difference(first) for other in others)
    return next((what for what in differing if what), None) or expected.find_difference(first, runner.subject)


def _compare_moved_run(runner: Runner, expected: Baseline, run_dir: RunDirectory, other: Runner) -> str | None:
    """Move a run to another kind of store and back. Return the difference of either; None if there is none."""
    before, file = runner.snapshot(run_dir), _export_run(runner, runner.copy(run_dir))
    if file is None:
        return None
    there = _import_run(other, run_dir, file)
    file = _export_run(other, _import_run(other, run_dir, file))
    assert file is not None, "a run that was imported is there"
    for place, arrived in ((other, there), (runner, _import_run(runner, run_dir, file))):
        snapshot = _recover(place, arrived)
        what = (
            before.find_broken_prefix(snapshot)
            or snapshot.find_gap()
            or expected.find_difference(snapshot, runner.subject)
            or Effects.read(arrived.effects).find_fault(expected.effects)
        )
        if what is not None:
            return f"exported to {other.kind}, and recovered in {arrived.path}: {what}"
    return None


def _recover(runner: Runner, run_dir: RunDirectory) -> RunSnapshot:
    runner.run_process(run_dir, KillPlan(is_resuming=True)).result()
    return runner.snapshot(run_dir)
