"""A storm: hosts are killed, frozen and restarted at random while runs are started, answered and finished."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.hosting.chaos import orders
from tests.hosting.chaos.customers import Board, Customers, Served, run_of
from tests.hosting.chaos.fleet import Fleet
from tests.hosting.chaos.verdict import Trial

from perdure import Host
from perdure.records import Mark
from perdure.testing.resume import Chance

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from tests.hosting.chaos.fleet import Ship
    from tests.hosting.chaos.place import Place

    from perdure.records import RunRecord
    from perdure.storage import StoreStorage

QUIET_SECONDS_MAX = 60.0
"""How long nothing may happen when the storm is over. It only matters when something is broken."""

_LULL_SECONDS_MAX = 1.5
_FREEZE_LEASES_MAX = 5.0
_PATIENCE_SECONDS = 5.0
_SHOWN_MAX = 20
_NOWHERE = Mark(head="", events=-1, commands=-1)
"""The mark of no run at all: whoever has seen it is told at once how far a run is."""
_RESTART_SECONDS_MAX = 1.0
_STARTING_BLOB = 0.7
"""In which part of the storm the runs are started."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How hard it blows. `hosts` are how many there are, in one part of the storm after the other."""

    hosts: tuple[int, ...]
    runs: int
    strikes: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: counts for a table, and whatever is not as it must be."""

    counts: dict[str, int]
    violations: tuple[str, ...]

    def table(self) -> str:
        width = max(map(len, self.counts))
        lines = [f"{name.ljust(width)}  {count:>6,}" for name, count in self.counts.items()]
        return "\n".join([*lines, *(f"VIOLATED {each}" for each in self.violations)])


class Storm:
    """One storm over one place."""

    def __init__(self, place: Place, weather: Weather) -> None:
        self._place = place
        self._weather = weather
        self._fleet = Fleet(place, orders.NAME, spares=2)
        self._doors = [asyncio.Event() for _ in range(weather.runs)]
        self._missing = 0
        """How many hosts are about to be started again."""
        self._repairs: list[asyncio.Task[None]] = []

    async def rage(self) -> Outcome:
        """All of it, from the first run to the last."""
        async with self._place.storage() as storage:
            host = Host(storage)
            host.register(lambda: orders.build(self._place.world), name=orders.NAME)
            customers = Customers(host, Board(host), Chance(f"customers {self._weather.seed}"))
            with self._fleet:
                served = await self._served(customers)
                await self._calm()
            return await self._judged(storage, customers, served)

    async def _served(self, customers: Customers) -> list[Served]:
        """Let the customers come while the wind blows. Whatever goes wrong with either ends both."""
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(customers.board.keep())
            blowing = group.create_task(self._blow())
            tasks = [group.create_task(self._one(customers, number)) for number in range(self._weather.runs)]
            await blowing
            await self._ended(tasks)
            showing.cancel()
        return [task.result() for task in tasks]

    async def _ended(self, tasks: Sequence[asyncio.Task[Served]]) -> None:
        """Wait for all runs, as long as anything happens."""
        happened, late = -1, set(tasks)
        while late:
            _, late = await asyncio.wait(tasks, timeout=QUIET_SECONDS_MAX)
            so_far = len(self._place.world.facts())
            if late and so_far == happened:
                left = await self._unfinished()
                raise AssertionError(f"{len(late)} runs have not ended:\n{left}\n{self._fleet.told()}")
            happened = so_far

    async def _one(self, customers: Customers, number: int) -> Served:
        await self._doors[number].wait()
        return await customers.serve(number)

    async def _blow(self) -> None:
        """Strike again and again. How far that is decides how many runs are started and how many hosts there are."""
        strikes, hosts = self._weather.strikes, self._weather.hosts
        for number in range(strikes):
            self._open_doors((number + 1) / strikes)
            while len(self._fleet.ships) + self._missing < hosts[number * len(hosts) // strikes]:
                self._fleet.launch()
            # Each strike has a chance of its own: what is done does not depend on how fast the others go.
            wind = Chance(f"strike {number} of {self._weather.seed}")
            what, is_aimed = wind.below(10), wind.below(2) == 0
            await asyncio.sleep(wind.seconds(_LULL_SECONDS_MAX))
            ship = await self._fleet.victim(wind, in_flight=is_aimed, patience_seconds=_PATIENCE_SECONDS)
            self._strike(ship, what, wind)
        await asyncio.gather(*self._repairs)

    def _open_doors(self, blob: float) -> None:
        """Let so many customers in that all are there before the wind ends."""
        for door in self._doors[: math.ceil(self._weather.runs * blob / _STARTING_BLOB)]:
            door.set()

    def _strike(self, ship: Ship, what: int, wind: Chance) -> None:
        if what < 4:
            self._fleet.kill(ship)
            self._missing += 1
            self._later(self._relaunched(wind))
        elif what < 9:
            self._fleet.freeze(ship)
            self._later(self._thawed(ship, wind))
        else:
            self._later(self._replaced(ship))

    def _later(self, repair: Coroutine[Any, Any, None]) -> None:
        self._repairs.append(asyncio.create_task(repair))

    async def _relaunched(self, wind: Chance) -> None:
        await asyncio.sleep(wind.seconds(_RESTART_SECONDS_MAX))
        self._missing -= 1
        self._fleet.launch()

    async def _thawed(self, ship: Ship, wind: Chance) -> None:
        """Thaw it, perhaps long after its lease has run out; or kill it while it is frozen."""
        longest = _FREEZE_LEASES_MAX if wind.below(2) == 0 else 1.0
        await asyncio.sleep(wind.seconds(longest * self._place.lease_seconds))
        if wind.below(6) == 0:
            self._fleet.kill(ship)
            self._missing += 1
            await self._relaunched(wind)
        else:
            self._fleet.thaw(ship)

    async def _replaced(self, ship: Ship) -> None:
        await self._fleet.end(ship)
        self._fleet.launch()

    async def _calm(self) -> None:
        self._fleet.require_alive()
        await asyncio.gather(*(self._fleet.end(ship) for ship in list(self._fleet.ships)))

    async def _unfinished(self) -> str:
        async with self._place.storage() as storage:
            records = await storage.store.runs()
        left = [record for record in records if record.run_status != "idle" or record.owner is not None]
        return "\n".join(
            f"{record.run_id} at {record.head} is {record.run_status}, {record.attempts} attempts, owner {record.owner}"
            for record in left[:_SHOWN_MAX]
        )

    async def _judged(self, storage: StoreStorage, customers: Customers, served: Sequence[Served]) -> Outcome:
        trial = Trial.of(self._place.world.facts())
        runs = [run_of(number) for number in range(self._weather.runs)]
        violations = list(trial.violations((run, name) for run in runs for name in orders.STEPS))
        records = {record.run_id: record for record in await storage.store.runs()}
        if sorted(records) != sorted(runs):
            violations.append(f"there are {len(records)} runs, not {len(runs)}")
        for each in served:
            violations += await _wrongs(storage, records[run_of(each.number)], each)
        return Outcome(self._counts(trial, customers), tuple(violations))

    def _counts(self, trial: Trial, customers: Customers) -> dict[str, int]:
        fleet = self._fleet.counts
        return {
            "runs": self._weather.runs,
            "hosts": fleet["hosts"],
            "kills": fleet["killing"],
            "freezes": fleet["frozen"],
            "drains": fleet["ending"],
            "takeovers": trial.takeovers,
            "writes refused": trial.count("refused"),
            "effects": len(trial.works),
            "repeats in flight": trial.repeats,
            "answers accepted": customers.counts["answers accepted"],
            "answers refused": customers.counts["answers refused"],
        }


async def _wrongs(storage: StoreStorage, record: RunRecord, served: Served) -> list[str]:
    """What is not as it must be with a run that has ended."""
    expected = orders.outputs(served.number, served.amount)
    events = [event async for event in storage.events(record.run_id)]
    kinds = [event.type for event in events]
    told = [event.data for event in events if event.type == "output"]
    # A host that was killed when the run was over, and before it gave it free, has left its name and its attempt.
    owner = (await storage.store.watch(record.run_id, seen=_NOWHERE)).owner
    found = {
        f"has outputs {served.outputs}, not {expected}": served.outputs != expected,
        f"has told {told}, not {expected}": told != expected,
        f"is {record.run_status}": record.run_status != "idle",
        f"is claimed by {record.owner}": owner is not None,
        f"has {record.attempts} attempts open": record.attempts > (0 if record.owner is None else 1),
        f"asked {kinds.count('request_info')} times": kinds.count("request_info") != 1,
        f"was answered {kinds.count('answered')} times": kinds.count("answered") != 1,
        "has a gap in its events": [event.seq for event in events] != list(range(1, record.events + 1)),
        "has commands in its inbox": bool(await storage.store.inbox(record.run_id)),
    }
    return [f"{record.run_id} {what}" for what, is_wrong in found.items() if is_wrong]
