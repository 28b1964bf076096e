"""Processes: work done in a child that is forked from this one, and may be killed in the middle.

The parent has imported everything and starts no thread, so a life costs milliseconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import select
import shutil
import signal
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.testing.resume import effects
from perdure.testing.resume.effects import Effects
from perdure.testing.resume.kill_points import Fate, lines, live_under
from perdure.testing.resume.subject import RUN_ID, Drive, Look

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from perdure.storage import StoreStorage
    from perdure.testing.resume.subject import Subject
    from perdure.testing.resume.suite import Report

T = TypeVar("T")

LIFE_SECONDS_MAX = 60.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: killed, with a value, or with an error."""

    was_killed: bool = False
    value: Any = None
    error: str | None = None

    def result(self) -> Any:
        """The value. Raises RuntimeError if there is none."""
        if self.was_killed or self.error is not None:
            raise RuntimeError(self.error or "a child that nobody was to kill was killed")
        return self.value


@dataclass(slots=True)
class Child:
    """A child at work, and the pipe on which it tells its result."""

    pid: int
    pipe: int

    def ended(self, *, kill_after_seconds: float | None = None) -> Ended:
        """Wait for its end; kill it if it has not come by then."""
        limit = LIFE_SECONDS_MAX if kill_after_seconds is None else kill_after_seconds
        told, is_late = self._told(limit)
        if is_late:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        if is_late:
            # It may have ended by itself just before.
            told += self._told(0)[0]
        os.close(self.pipe)
        if is_late and kill_after_seconds is None:
            return Ended(error=f"it did not end within {LIFE_SECONDS_MAX:.0f} seconds")
        if os.WIFSIGNALED(status):
            return Ended(was_killed=True)
        return Ended(**json.loads(told))

    def _told(self, seconds: float) -> tuple[bytes, bool]:
        """What it has told, and whether it lives on after this time. The pipe is closed when it dies."""
        told = b""
        while select.select([self.pipe], [], [], seconds)[0]:
            chunk = os.read(self.pipe, _CHUNK)
            if not chunk:
                return told, False
            told += chunk
        return told, True


def begun(work: Callable[[], Awaitable[object]]) -> Child:
    """A child that does the work, in an event loop of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    # What the parent has made is not looked through for garbage: that would copy it.
    gc.freeze()
    try:
        os.close(reading)
        _tell(writing, _done(work))
    finally:
        # Not the end of the parent's program: no handlers at exit, no buffers written twice.
        os._exit(0)


def lived(work: Callable[[], Awaitable[object]], *, kill_after_seconds: float | None = None) -> Ended:
    """Let a child do the work and wait for it."""
    return begun(work).ended(kill_after_seconds=kill_after_seconds)


def alone(work: Callable[[], T]) -> T:
    """What work gives that may start threads, which this process must not have."""

    async def do() -> object:
        return work()

    return lived(do).result()


def _done(work: Callable[[], Awaitable[object]]) -> dict[str, object]:
    async def done() -> object:
        return await work()

    try:
        return {"value": asyncio.run(done())}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells it
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"}


def _tell(pipe: int, outcome: dict[str, object]) -> None:
    with open(pipe, "wb") as file:
        file.write(json.dumps(outcome).encode())


class Gate:
    """Lets children that wait before it go on at the same moment."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._heard, self._saying = os.pipe()

    def wait(self) -> None:
        """In a child: say that it is there, and wait until the gate opens."""
        os.close(self._writing)
        os.write(self._saying, b".")
        os.close(self._saying)
        os.read(self._reading, 1)

    def gather(self, children: int) -> int:
        """In the parent: wait until so many are there, or have ended; how many are there."""
        os.close(self._saying)
        missing = children
        while missing and (there := os.read(self._heard, missing)):
            missing -= len(there)
        return children - missing

    def open(self) -> None:
        """In the parent, after `gather`: let them go on."""
        for end in (self._writing, self._reading, self._heard):
            os.close(end)


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one run: its store, and outside of that its effects and the points that killed it."""

    directory: Path

    @property
    def store(self) -> Path:
        """Where the store is."""
        return self.directory / "store"

    @property
    def effects(self) -> Path:
        """Where effects are noted."""
        return self.directory / "effects"

    @property
    def hits(self) -> Path:
        """Where a life notes the point that kills it."""
        return self.directory / "hits"


@dataclass(slots=True)
class Stage:
    """The subject on one kind of store."""

    subject: Subject
    kind: str
    directory: Path
    report: Report
    _places: list[Place] = field(default_factory=list[Place])

    def beside(self, kind: str) -> Stage:
        """The same subject on another kind of store."""
        return Stage(self.subject, kind, self.directory.with_name(f"{self.directory.name}-{kind}"), self.report)

    def new_place(self, *inside: str) -> Place:
        """Room for a new run, in further directories if they are named."""
        place = Place(self.directory.joinpath(str(len(self._places)), *inside))
        place.store.mkdir(parents=True)
        self._places.append(place)
        return place

    def copied(self, source: Place, *inside: str) -> Place:
        """What a place has, at another."""
        place, copy = self.new_place(*inside), self.subject.kind(self.kind).copy
        shutil.copytree(source.directory, place.directory, dirs_exist_ok=True)
        if copy is not None:
            alone(partial(copy, source.store, place.store))
        return place

    def clear(self) -> None:
        """Remove what the places have outside of their directories."""
        clear = self.subject.kind(self.kind).clear
        if clear is not None:
            for place in self._places:
                alone(partial(clear, place.store))

    def life(
        self,
        place: Place,
        fate: Fate | None = None,
        *,
        kill_after_seconds: float | None = None,
        how: Callable[[Drive], Awaitable[None]] = Drive.to_the_end,
        run_id: str = RUN_ID,
    ) -> Ended:
        """One life of a run; if it is not killed, its value is how often it came by which point."""
        self.report.lives[self.kind] += 1
        own = fate or Fate()
        own.hits = place.hits

        async def live() -> dict[str, int]:
            live_under(own)
            effects.note_into(place.effects)
            await how(Drive(self.subject, self.open(place), run_id))
            return dict(own.seen)

        ended = lived(live, kill_after_seconds=kill_after_seconds)
        if ended.was_killed:
            how_killed = "random" if kill_after_seconds is not None else "directed"
            self.report.kills[f"{how_killed}/{self.kind}"] += 1
        return ended

    def open(self, place: Place) -> StoreStorage:
        """The storage, in a child."""
        return self.subject.open(self.kind, place.store)

    def with_storage(self, place: Place, work: Callable[[StoreStorage], Awaitable[object]]) -> Ended:
        """Let a child do something with the storage, and close it."""

        async def do() -> object:
            async with self.open(place) as storage:
                return await work(storage)

        return lived(do)

    def look(self, place: Place, run_id: str = RUN_ID) -> Look:
        """Look at a run, in a process of its own. Raises RuntimeError if it can't be looked at."""

        async def look(storage: StoreStorage) -> dict[str, Any]:
            return dataclasses.asdict(await Look.at(storage, run_id))

        return Look(**self.with_storage(place, look).result())

    def undisturbed(self) -> Undisturbed:
        """A run that nobody disturbs."""
        place = self.new_place()
        seen = self.life(place).result()
        return Undisturbed(place, self.look(place), Effects.of(place.effects), Counter(seen))

    def hit(self, place: Place) -> list[str]:
        """The points that have killed lives of a run."""
        return lines(place.hits)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """How the run goes if nobody disturbs it: what all others are compared with."""

    place: Place
    look: Look
    effects: Effects
    points: Counter[str]

    def differs(self, look: Look, subject: Subject) -> str | None:
        """How another run has ended otherwise; None if it has not."""
        return look.differs(self.look, compares_log=subject.has_fixed_log)
