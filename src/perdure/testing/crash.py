"""Crashes in one process: a store that fails at its n-th call, and a sweep over all calls.

    async def test_my_workflow_survives(tmp_path):
        await sweep(run_workflow, storage=lambda name: SqliteCheckpointStorage(tmp_path / name), expected=42)

`run_workflow(storage)` starts or resumes the run and returns its result.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, cast

from perdure.storage import Store, StoreStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


Moment: TypeAlias = Literal["before", "after"]


class CrashError(BaseException):
    """Simulates the death of the process. No code under test catches it."""


@dataclass
class CrashPoint:
    """The n-th call of a store, from zero, and the moment of the crash: before or after the call."""

    call: int
    moment: Moment
    calls: list[str] = field(default_factory=list[str])
    was_hit: bool = False

    async def around(self, name: str, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Make the call, unless the crash comes first. After a crash every further call crashes too."""
        index = len(self.calls)
        self.calls.append(name)
        if self.was_hit or (index == self.call and self.moment == "before"):
            self._die(f"before call {index}, {name}")
        outcome = await call(*args, **kwargs)
        if index == self.call:
            self._die(f"after call {index}, {name}")
        return outcome

    def _die(self, where: str) -> NoReturn:
        self.was_hit = True
        task = asyncio.current_task()
        if task is not None:
            # Nobody awaits background tasks of a dead process, so avoid asyncio's warning.
            task.add_done_callback(_look_at)
        raise CrashError(where)


def _look_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class WrappedStore:
    """Wraps a store. `around` makes each call of an async method, given its name, the method and its arguments."""

    def __init__(self, inner: Store, around: Callable[..., Awaitable[Any]]) -> None:
        self.inner = inner
        self.around = around

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return partial(self.around, name, found) if inspect.iscoroutinefunction(found) else found


def crashing(storage: StoreStorage, point: CrashPoint) -> StoreStorage:
    """Return a storage that crashes at the point."""
    return StoreStorage(cast("Store", WrappedStore(storage.store, point.around)))


@dataclass(frozen=True, slots=True)
class Sweep:
    """Result of a sweep: the number of crashes, and the store calls of an undisturbed attempt."""

    points: int
    calls: tuple[str, ...]


async def sweep(
    live: Callable[[StoreStorage], Awaitable[object]], *, storage: Callable[[str], StoreStorage], expected: object
) -> Sweep:
    """Crash at the first store call, then at the second, and so on, before and after each.

    `live` is one attempt of the program: given a storage, it starts or resumes the run and returns its result.
    `storage` opens a storage by name; the same name opens the same storage. After each crash a second, undisturbed
    attempt must return `expected`.
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
            # A background call may be cancelled before its point, so only the number of calls ends the sweep.
            if call >= len(point.calls):
                calls = tuple(point.calls)
                break
            call, points = call + 1, points + point.was_hit
    return Sweep(points, calls)
