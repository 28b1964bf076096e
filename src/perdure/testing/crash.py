"""Crashes on purpose: a store that fails at its n-th call, and a sweep over all of them.

async def test_my_workflow_survives(tmp_path):
    await sweep(lambda: my_life(SqliteCheckpointStorage(tmp_path / "runs.db")), ...)
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, cast

from perdure.storage import StoreStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.storage import Store

Moment: TypeAlias = Literal["before", "after"]


class CrashError(BaseException):
    """The process dies here, as far as the code under test can tell: nothing catches this to go on."""


@dataclass
class CrashPoint:
    """The n-th call to a store, counted from zero, and whether the crash comes before it is done or after."""

    call: int
    moment: Moment
    calls: list[str] = field(default_factory=list[str])
    was_hit: bool = False

    async def around(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work, unless this is the call. After a crash every further call crashes too: the process is dead."""
        index = len(self.calls)
        self.calls.append(name)
        if self.was_hit or (index == self.call and self.moment == "before"):
            self._die(f"before call {index}, {name}")
        outcome = await work()
        if index == self.call:
            self._die(f"after call {index}, {name}")
        return outcome

    def _die(self, where: str) -> NoReturn:
        self.was_hit = True
        task = asyncio.current_task()
        if task is not None:
            # In a dead process nobody asks a task of the background how it has ended, nor complains about that.
            task.add_done_callback(_look_at)
        raise CrashError(where)


def _look_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class CrashingStore:
    """A store that dies at a given point and is otherwise the one that it wraps."""

    def __init__(self, inner: Store, point: CrashPoint) -> None:
        self._inner = inner
        self._point = point

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            return await self._point.around(name, lambda: found(*args, **kwargs))

        return guarded


def crashing(storage: StoreStorage, point: CrashPoint) -> StoreStorage:
    """The same storage, dying at the point."""
    return StoreStorage(cast("Store", CrashingStore(storage.store, point)))


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep did: how many points it tried, and the names of the calls of an undisturbed life."""

    points: int
    calls: tuple[str, ...]


async def sweep(
    live: Callable[[StoreStorage], Awaitable[object]],
    *,
    storage: Callable[[str], StoreStorage],
    expected: object,
) -> Sweep:
    """Crash at the first store call, then at the second, until none is hit, before and after each.

    `live` is one life of the program: given a storage, it starts or goes on with the run and returns what it ended
    with. `storage` opens a storage of a given name; opening a name again opens the same one. After each crash a second
    life, undisturbed, must return `expected`.
    """
    points = 0
    calls: tuple[str, ...] = ()
    for moment in ("before", "after"):
        call = 0
        while True:
            point = CrashPoint(call, moment)
            name = f"{moment}-{call}"
            try:
                outcome = await live(crashing(storage(name), point))
            except CrashError:
                outcome = await live(storage(name))
            if outcome != expected:
                raise AssertionError(
                    f"crashed {moment} call {call} ({point.calls[call] if point.was_hit else 'not reached'}): "
                    f"the resumed run ended with {outcome!r}, not with {expected!r}"
                )
            # A call that nobody waits for may be given up before its point: only the number of calls ends the sweep.
            if call >= len(point.calls):
                calls = tuple(point.calls)
                break
            call, points = call + 1, points + point.was_hit
    return Sweep(points, calls)
