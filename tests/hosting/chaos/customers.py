"""Those outside: they start the runs, answer what is asked, each answer twice and more, and wait for the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.hosting.chaos import orders

from perdure import AlreadyAnsweredError

if TYPE_CHECKING:
    from perdure import Host, HostedRun, RunInfo
    from perdure.testing.resume import Chance

_LATER_SECONDS_MAX = 1.0
_LOOK_SECONDS = 0.25
_STARTED_TWICE_EVERY = 4
_RIVALS_EVERY = 3


def run_of(number: int) -> str:
    """The run of an order."""
    return f"order-{number}"


@dataclass(frozen=True, slots=True)
class Served:
    """What one of them got."""

    number: int
    amount: int
    outputs: list[object]


class Board:
    """Shows where all runs stand, so that not every customer has to look."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._infos: dict[str, RunInfo] = {}
        self._changed = asyncio.Condition()

    async def keep(self) -> None:
        """Look again and again, until this is cancelled."""
        while True:
            self._infos = {info.run_id: info for info in await self._host.runs(workflow=orders.NAME)}
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(_LOOK_SECONDS)

    async def until(self, run_id: str, status: str) -> None:
        """Wait until a run stands there. Raises AssertionError if nobody goes on with it."""
        async with self._changed:
            while (info := self._infos.get(run_id)) is None or info.status != status:
                # While all hosts are dead, a run is blocked; it goes on when one is back.
                is_well = info is None or info.error is None or info.status == "blocked"
                assert is_well, f"run {run_id!r} has stopped: {info}"
                await self._changed.wait()


@dataclass
class Customers:
    """All of them, at a desk that advances nothing itself."""

    host: Host
    board: Board
    chance: Chance
    counts: Counter[str] = field(default_factory=Counter[str])

    async def serve(self, number: int) -> Served:
        """One order, from its start to its end."""
        run = await self._started(number)
        await self.board.until(run.run_id, "waiting")
        (request,) = await run.requests()
        amount = await self._answered(run, request.request_id, number)
        await self.board.until(run.run_id, "idle")
        result = await run.result()
        await self._answered_late(run, request.request_id, amount)
        return Served(number, amount, result.get_outputs())

    async def _started(self, number: int) -> HostedRun:
        order, run_id = orders.Order(run_of(number), number), run_of(number)
        times = 2 if number % _STARTED_TWICE_EVERY == 0 else 1
        started = await asyncio.gather(*(self.host.start(orders.NAME, order, run_id=run_id) for _ in range(times)))
        assert {run.run_id for run in started} == {run_id}
        return started[0]

    async def _answered(self, run: HostedRun, request_id: str, number: int) -> int:
        """Give the answer twice at the same moment, and once more soon after; what the run was told."""
        amount = 10 * number
        rival = amount + 1 if number % _RIVALS_EVERY == 0 else amount
        accepted = await asyncio.gather(
            self._accepted(run, request_id, amount, by="ann"), self._accepted(run, request_id, rival, by="bob")
        )
        assert any(accepted), f"{run.run_id!r} took no answer"
        assert rival == amount or not all(accepted), f"{run.run_id!r} took two different answers"
        stands = amount if accepted[0] else rival
        await asyncio.sleep(self.chance.seconds(_LATER_SECONDS_MAX))
        # It has been taken in by now, or it waits: then the same is accepted, which changes nothing.
        await self._accepted(run, request_id, stands, by="ann")
        return stands

    async def _answered_late(self, run: HostedRun, request_id: str, amount: int) -> None:
        is_accepted = await self._accepted(run, request_id, amount, by="eve")
        assert not is_accepted, f"{run.run_id!r} was answered when it was over"

    async def _accepted(self, run: HostedRun, request_id: str, amount: int, *, by: str) -> bool:
        try:
            await run.respond({request_id: amount}, by=by)
        except AlreadyAnsweredError:
            self.counts["answers refused"] += 1
            return False
        self.counts["answers accepted"] += 1
        return True
