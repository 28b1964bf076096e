"""Child processes that run the subject and may be killed at any moment.

They are forked from a parent that has imported everything and has no threads, so that one costs milliseconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import multiprocessing
import os
import shutil
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.testing.resume.kill_points import Effects, KillPlan, record_into, use_plan
from perdure.testing.resume.subject import RUN_ID, RunSnapshot, Subject, SubjectDriver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from perdure.storage import StoreStorage
    from perdure.testing.resume.suite import Property, Report

T = TypeVar("T")

PROCESS_SECONDS_MAX = 60.0
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """Result of a child: it was killed, or it has a value or an error."""

    was_killed: bool = False
    value: Any = None
    error: str | None = None

    def result(self) -> Any:
        """Return the value. Raises RuntimeError if there is none."""
        if self.was_killed or self.error is not None:
            raise RuntimeError(self.error or "a child was killed unexpectedly")
        return self.value


class Child:
    """A child that does some work in its own event loop, and the pipe for its result."""

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self._pipe, writing = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_send_result, args=(work, writing))
        self._process.start()
        writing.close()

    def wait(self, *, kill_after_seconds: float | None = None) -> ProcessResult:
        """Wait for the child's end, and kill it after the limit."""
        is_late = not self._pipe.poll(PROCESS_SECONDS_MAX if kill_after_seconds is None else kill_after_seconds)
        if is_late:
            self._process.kill()
        try:
            # A late child may have ended by itself just before the kill.
            result = ProcessResult(**json.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            result = ProcessResult(was_killed=True)
        self._process.join()
        self._process.close()
        self._pipe.close()
        if is_late and kill_after_seconds is None:
            return ProcessResult(error=f"it did not end within {PROCESS_SECONDS_MAX:.0f} seconds")
        return result


def run_child(work: Callable[[], Awaitable[object]], *, kill_after_seconds: float | None = None) -> ProcessResult:
    """Do the work in a child and wait for it."""
    return Child(work).wait(kill_after_seconds=kill_after_seconds)


def run_isolated(work: Callable[[], T]) -> T:
    """Return the result of work that may start threads, which this process must not have."""

    async def do() -> object:
        return work()

    return run_child(do).result()


def _send_result(work: Callable[[], Awaitable[object]], pipe: Connection) -> None:
    async def done() -> object:
        return await work()

    # Freeze the parent's objects: a collection would copy their memory.
    gc.freeze()
    try:
        result = json.dumps({"value": asyncio.run(done())})
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells it
        last = traceback.extract_tb(error.__traceback__)[-1]
        result = json.dumps({"error": f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"})
    try:
        pipe.send_bytes(result.encode())
    finally:
        # Skip the parent's exit handlers and buffered output.
        os._exit(0)


class Gate:
    """Holds back children until all of them may continue at the same moment."""

    def __init__(self) -> None:
        self._open_reading, self._open_writing = os.pipe()
        self._ready_reading, self._ready_writing = os.pipe()

    def wait(self) -> None:
        """Report this child as ready, and wait until the gate opens."""
        os.close(self._open_writing)
        os.write(self._ready_writing, b".")
        os.close(self._ready_writing)
        os.read(self._open_reading, 1)

    def gather(self, children: int) -> int:
        """Wait in the parent until this many children are ready or have ended. Return the number of ready ones."""
        os.close(self._ready_writing)
        missing = children
        while missing and (there := os.read(self._ready_reading, missing)):
            missing -= len(there)
        return children - missing

    def open(self) -> None:
        """Let the children continue. Call it in the parent after `gather`."""
        for end in (self._open_writing, self._open_reading, self._ready_reading):
            os.close(end)


class RunDirectory:
    """Directory of one run: its store, and beside it the effects and the points that killed it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store, self.effects, self.hits = path / "store", path / "effects", path / "hits"


@dataclass(slots=True)
class Runner:
    """Runs the subject in child processes on one kind of store."""

    subject: Subject
    kind: str
    directory: Path
    report: Report
    _run_dirs: list[RunDirectory] = field(default_factory=list[RunDirectory])

    def checked(self, property_: Property, what: str | None, how: str = "") -> None:
        """Count a check of a property on this kind of store, and add a violation if there is one."""
        self.report.checked(property_, self.kind, what, how)

    def check(self, property_: Property, find: Callable[[], str | None], how: str) -> bool:
        """Check a property: `find` returns what is wrong, or raises RuntimeError. Return True if nothing is."""
        try:
            what = find()
        except RuntimeError as error:
            what = str(error)
        self.checked(property_, what, how)
        return what is None

    def missed(self, property_: Property, why: str) -> None:
        """Note that a property could not be checked on this kind of store."""
        self.report.missed(property_, self.kind, why)

    def with_kind(self, kind: str) -> Runner:
        """Return a runner of the same subject on another kind of store."""
        return Runner(self.subject, kind, self.directory.with_name(f"{self.directory.name}-{kind}"), self.report)

    def new_directory(self, *inside: str) -> RunDirectory:
        """Make a directory for a new run, nested in `inside` if given."""
        run_dir = RunDirectory(self.directory.joinpath(str(len(self._run_dirs)), *inside))
        run_dir.store.mkdir(parents=True)
        self._run_dirs.append(run_dir)
        return run_dir

    def copy(self, source: RunDirectory, *inside: str) -> RunDirectory:
        """Copy a run directory with its storage."""
        run_dir, copy = self.new_directory(*inside), self.subject.kind(self.kind).copy
        shutil.copytree(source.path, run_dir.path, dirs_exist_ok=True)
        if copy is not None:
            run_isolated(partial(copy, source.store, run_dir.store))
        return run_dir

    def clear(self) -> None:
        """Remove the storages' data outside the directories."""
        clear = self.subject.kind(self.kind).clear
        if clear is not None:
            for run_dir in self._run_dirs:
                run_isolated(partial(clear, run_dir.store))

    def run_process(
        self,
        run_dir: RunDirectory,
        plan: KillPlan | None = None,
        *,
        kill_after_seconds: float | None = None,
        how: Callable[[SubjectDriver], Awaitable[None]] = SubjectDriver.run_to_end,
        run_id: str = RUN_ID,
    ) -> ProcessResult:
        """Run the subject in one process. If it is not killed, its value counts the points it passed."""
        self.report.lives[self.kind] += 1
        plan_used = plan or KillPlan()
        plan_used.hits = run_dir.hits

        async def work() -> dict[str, int]:
            use_plan(plan_used)
            record_into(run_dir.effects)
            await how(SubjectDriver(self.subject, self.open(run_dir), run_id))
            return dict(plan_used.seen)

        result = run_child(work, kill_after_seconds=kill_after_seconds)
        if result.was_killed:
            cause = "random" if kill_after_seconds is not None else "directed"
            self.report.kills[f"{cause}/{self.kind}"] += 1
        return result

    def open(self, run_dir: RunDirectory) -> StoreStorage:
        """Open the storage. Call it in a child."""
        return self.subject.open(self.kind, run_dir.store)

    def with_storage(self, run_dir: RunDirectory, work: Callable[[StoreStorage], Awaitable[object]]) -> ProcessResult:
        """Do some work with the storage in a child."""

        async def do() -> object:
            async with self.open(run_dir) as storage:
                return await work(storage)

        return run_child(do)

    def snapshot(self, run_dir: RunDirectory, run_id: str = RUN_ID) -> RunSnapshot:
        """Take a snapshot of a run in a child. Raises RuntimeError if that fails."""

        async def snapshot(storage: StoreStorage) -> dict[str, Any]:
            return dataclasses.asdict(await RunSnapshot.take(storage, run_id))

        return RunSnapshot(**self.with_storage(run_dir, snapshot).result())

    def run_undisturbed(self) -> Baseline:
        """Run the subject without any kill."""
        run_dir = self.new_directory()
        seen = self.run_process(run_dir).result()
        return Baseline(run_dir, self.snapshot(run_dir), Effects.read(run_dir.effects), Counter(seen))


@dataclass(frozen=True, slots=True)
class Baseline:
    """An undisturbed run, with which all others are compared."""

    run_dir: RunDirectory
    snapshot: RunSnapshot
    effects: Effects
    points: Counter[str]

    def find_difference(self, snapshot: RunSnapshot, subject: Subject) -> str | None:
        """Return the first difference of another run; None if there is none."""
        return snapshot.find_difference(self.snapshot, compares_log=subject.has_fixed_log)
