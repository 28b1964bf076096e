"""Where runs of the subject are played: directories, and the lives, looks and copies in them."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.testing.resume import effects
from perdure.testing.resume.driving import Drive
from perdure.testing.resume.effects import Effects
from perdure.testing.resume.lives import alone, lived
from perdure.testing.resume.looking import Look
from perdure.testing.resume.points import Fate, lines, live_under
from perdure.testing.resume.subject import RUN_ID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from perdure.storage import StoreStorage
    from perdure.testing.resume.lives import Ended
    from perdure.testing.resume.report import Report
    from perdure.testing.resume.subject import Subject


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
