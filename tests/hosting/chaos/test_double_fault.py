"""Two faults: a host is frozen and replaced, wakes up, and the one that replaced it dies. The run goes on."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.hosting.chaos import relay
from tests.hosting.chaos.fleet import Fleet
from tests.hosting.chaos.orders import Order
from tests.hosting.chaos.place import Place
from tests.hosting.chaos.relay import Gate
from tests.hosting.chaos.verdict import Trial
from tests.postgres_server import needs_postgres, shared_server

from perdure import Host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.hosting.chaos.fleet import Ship
    from tests.hosting.chaos.world import Fact

    from perdure import HostedRun
    from perdure.storage import StoreStorage

RUN = "baton"
LEASE_SECONDS = 3.0
"""Long enough that a busy machine does not take a run from a host that nobody has frozen."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs_postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "postgres":
        return Place.on_postgres(shared_server(), tmp_path, lease_seconds=LEASE_SECONDS)
    return Place.on_sqlite(tmp_path, lease_seconds=LEASE_SECONDS)


@dataclass
class Scene:
    """Host A is frozen in the middle of the second step; host B has taken over and is in the middle of the third."""

    place: Place
    fleet: Fleet
    run: HostedRun
    a: Ship
    b: Ship
    taken_over: int
    """How much had happened when B had the run."""

    def gate(self, name: str) -> Gate:
        return Gate(self.place.world, name)

    async def until(self, what: str, ship: Ship, name: str = "", *, past: int = 0) -> int:
        def is_it(fact: Fact) -> bool:
            return (fact.what, fact.pid, fact.run) == (what, ship.pid, RUN) and name in {"", fact.name}

        return await self.place.world.until(is_it, past=past)


async def frozen_and_replaced(place: Place, fleet: Fleet, run: HostedRun) -> Scene:
    """A is frozen in the middle of the second step, B in the middle of the third."""
    a = fleet.launch()
    scene = Scene(place, fleet, run, a, a, 0)
    await scene.until("effect", a, "second")
    # What works beside it is finished and recorded by now, and must not be done again by anybody.
    await scene.until("returned", a, "beside")
    scene.b = fleet.launch()
    await place.world.until(lambda fact: (fact.what, fact.pid) == ("serving", scene.b.pid))
    fleet.freeze(a)
    scene.taken_over = await scene.until("claimed", scene.b)
    scene.gate("second").open_for(scene.b.pid)
    await scene.until("effect", scene.b, "third")
    return scene


def let_through(scene: Scene) -> None:
    """Hold A nowhere any more: it does what it can."""
    for name in ("second", "third"):
        scene.gate(name).open_for(scene.a.pid)


async def thaw_then_kill(scene: Scene) -> None:
    scene.fleet.thaw(scene.a)
    await scene.until("refused", scene.a)
    scene.fleet.kill(scene.b)


async def kill_then_thaw(scene: Scene) -> None:
    scene.fleet.kill(scene.b)
    scene.fleet.thaw(scene.a)
    await scene.until("refused", scene.a)


@pytest.mark.parametrize("faults", [thaw_then_kill, kill_then_thaw])
async def test_a_run_continues_when_its_host_is_frozen_and_the_next_one_dies(
    place: Place, faults: Callable[[Scene], Awaitable[None]]
) -> None:
    async with place.storage() as storage:
        host = Host(storage)
        host.register(lambda: relay.build(place.world), name=relay.NAME)
        with Fleet(place, relay.NAME) as fleet:
            run = await host.start(relay.NAME, Order(RUN, 3), run_id=RUN)
            scene = await frozen_and_replaced(place, fleet, run)
            let_through(scene)
            await faults(scene)
            result = await run.result()
            await fleet.end(scene.a)
        told = f"first 3, second 3, third 3, told by {scene.a.pid}"
        assert result.get_outputs() == [told, "beside 3"]
        require_nothing_of_the_old_lease(scene)
        require_effects(scene)
        await require_whole(storage)


async def test_a_host_that_was_replaced_and_fails_when_it_wakes_does_not_fail_the_run(place: Place) -> None:
    async with place.storage() as storage:
        host = Host(storage)
        host.register(lambda: relay.build(place.world), name=relay.NAME)
        with Fleet(place, relay.NAME) as fleet:
            run = await host.start(relay.NAME, Order(RUN, 3), run_id=RUN)
            scene = await frozen_and_replaced(place, fleet, run)
            scene.gate("third").open_for(scene.b.pid)
            result = await run.result()
            scene.gate("second").open_for(scene.a.pid, fails=True)
            fleet.thaw(scene.a)
            await scene.until("released", scene.a)
            await fleet.end(scene.a)
            await fleet.end(scene.b)
        assert result.get_outputs() == [f"first 3, second 3, third 3, told by {scene.b.pid}", "beside 3"]
        leases = [fact.pid for fact in place.world.facts() if fact.what == "claimed"]
        assert leases == [scene.a.pid, scene.b.pid], "who was replaced has nothing to say"
        await require_whole(storage)


def require_nothing_of_the_old_lease(scene: Scene) -> None:
    """A has written nothing under its first claim since B had the run; what it tried was refused."""
    facts = [fact for fact in scene.place.world.facts() if fact.run == RUN]
    leases = [fact for fact in facts if fact.what == "claimed"]
    assert [fact.pid for fact in leases] == [scene.a.pid, scene.b.pid, scene.a.pid]
    assert all(one.token < other.token for one, other in itertools.pairwise(leases))
    first = leases[0].token
    since = [fact for fact in scene.place.world.facts()[scene.taken_over :] if fact.run == RUN]
    assert not [fact for fact in since if fact.what == "wrote" and fact.token == first]
    assert {fact.token for fact in since if fact.what == "refused"} == {first}


def require_effects(scene: Scene) -> None:
    """What was in flight with a host that was lost is done once more, by who had the run next; nothing else is."""
    trial = Trial.of(scene.place.world.facts())
    names = ("first", "second", "third", "beside")
    assert list(trial.violations((RUN, name) for name in names)) == []
    done = Counter((fact.name, fact.pid) for name in names for _, fact in trial.effects((RUN, name)))
    a, b = scene.a.pid, scene.b.pid
    assert done == Counter([("first", a), ("beside", a), ("second", a), ("second", b), ("third", b), ("third", a)])


async def require_whole(storage: StoreStorage) -> None:
    """The log has each fact once, and nobody has the run."""
    record = await storage.store.run(RUN)
    assert record is not None
    assert (record.run_status, record.owner, record.attempts) == ("idle", None, 0)
    events = [event async for event in storage.events(RUN)]
    assert [event.seq for event in events] == list(range(1, record.events + 1))
    completed = [event.executor_id for event in events if event.type == "executor_completed"]
    assert sorted(map(str, completed)) == ["other", "runner", "starter"]
