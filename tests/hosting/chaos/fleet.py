"""The host processes of a storm: started, killed, frozen, thawed, and asked to end."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests import warm
from tests.hosting.chaos.world import WAIT_SECONDS_MAX, Fact

if TYPE_CHECKING:
    from types import TracebackType

    from tests.hosting.chaos.place import Place
    from tests.hosting.chaos.world import What

    from perdure.testing.resume import Chance

_LOOK_SECONDS = 0.05

ROOT = Path(__file__).parents[3]


@dataclass(eq=False)
class Ship:
    """One host process."""

    process: warm.Process
    is_frozen: bool = False
    is_ending: bool = False

    @property
    def is_untouched(self) -> bool:
        """Whether nothing is being done to it."""
        return not self.is_frozen and not self.is_ending

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass
class Fleet:
    """The host processes of a place, all with the same workflow. Whatever is done to one is noted in the world."""

    place: Place
    workflow: str
    ships: list[Ship] = field(default_factory=list[Ship])
    counts: Counter[str] = field(default_factory=Counter[str])
    spares: int = 0
    """How many processes wait to be hosts: a program takes seconds to load where a machine is busy."""
    _spares: list[warm.Process] = field(default_factory=list[warm.Process])

    @property
    def log(self) -> Path:
        """What all of them have logged."""
        return self.place.directory / "log"

    def launch(self) -> Ship:
        """Let a host begin."""
        while len(self._spares) <= self.spares:
            self._spares.append(self._built())
        ship = Ship(self._spares.pop(0))
        assert ship.process.stdin is not None
        ship.process.stdin.close()
        self.ships.append(ship)
        self.counts["hosts"] += 1
        return ship

    def _built(self) -> warm.Process:
        """A process that is about to be a host, as soon as its input ends."""
        command = ("-m", "tests.hosting.chaos.worker", self.workflow, *self.place.arguments)
        with self.log.open("ab") as log:
            return warm.start(*command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log.fileno(), stderr=log.fileno())

    def kill(self, ship: Ship) -> None:
        """Kill a host, frozen or not."""
        self._note("killing", ship)
        ship.process.kill()
        ship.process.wait()
        self.ships.remove(ship)

    def freeze(self, ship: Ship) -> None:
        """Let a host do nothing until it is thawed."""
        ship.is_frozen = True
        ship.process.send_signal(signal.SIGSTOP)
        self._note("frozen", ship)

    def thaw(self, ship: Ship) -> None:
        """Let it go on."""
        self._note("thawing", ship)
        ship.process.send_signal(signal.SIGCONT)
        ship.is_frozen = False

    async def end(self, ship: Ship) -> None:
        """Ask a host to end, and wait until it has drained. Raises AssertionError if it does not, or badly."""
        ship.is_ending = True
        await self.place.world.until(lambda fact: (fact.what, fact.pid) == ("serving", ship.pid))
        self._note("ending", ship)
        ship.process.terminate()
        try:
            status = await asyncio.to_thread(ship.process.wait, WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"host {ship.pid} did not end when it was asked to\n{self.told()}") from None
        self.ships.remove(ship)
        assert status == 0, f"host {ship.pid} was asked to end, and ended with {status}\n{self.told()}"

    async def victim(self, chance: Chance, *, in_flight: bool, patience_seconds: float) -> Ship:
        """One that serves and that nothing is being done to.

        If that can be had soon, it is one that has runs in hand, or even a step `in_flight`.
        """
        for look in itertools.count():
            self.require_alive()
            signs = self._signs()
            wanted: What = "effect" if in_flight else "claimed"
            if look * _LOOK_SECONDS > patience_seconds:
                wanted = "serving"
            found = [ship for ship in self.ships if ship.is_untouched and ship.pid in signs[wanted]]
            if found:
                return chance.one_of(found)
            await asyncio.sleep(_LOOK_SECONDS)
        raise AssertionError

    def _signs(self) -> dict[What, set[int]]:
        """The processes that have begun to serve, those that have claims, those that have steps in flight."""
        serving, leases, flying = set[int](), dict[tuple[str, int], int](), dict[tuple[str, str], int]()
        for fact in self.place.world.facts():
            match fact.what:
                case "serving":
                    serving.add(fact.pid)
                case "claimed":
                    leases[fact.run, fact.token] = fact.pid
                case "released":
                    leases.pop((fact.run, fact.token), None)
                case "effect":
                    flying[fact.work] = fact.pid
                case "returned":
                    flying.pop(fact.work, None)
                case _:
                    pass
        return {"serving": serving, "claimed": set(leases.values()), "effect": set(flying.values())}

    def require_alive(self) -> None:
        """Refuse hosts that have ended by themselves."""
        for ship in self.ships:
            status = None if ship.is_ending else ship.process.poll()
            assert status is None, f"host {ship.pid} ended by itself, with {status}\n{self.told()}"

    def told(self, lines: int = 20) -> str:
        """The end of what the hosts have logged."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])

    def _note(self, what: What, ship: Ship) -> None:
        self.counts[what] += 1
        self.place.world.note(Fact(what, ship.pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in (*(ship.process for ship in self.ships), *self._spares):
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
