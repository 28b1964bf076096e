"""A store that tells the world of its claims, and of every write under them that was accepted or refused."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from tests.hosting.chaos.world import Fact

from perdure.errors import ClaimLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.hosting.chaos.world import What, World

    from perdure.records import Lease
    from perdure.storage import StoreStorage


_writes = itertools.count(1)


def witnessed(storage: StoreStorage, world: World) -> StoreStorage:
    """The same storage, whose store tells what it does for this process."""
    store = storage.store
    store.acquire = _acquiring(store.acquire, world)
    store.commit = _writing("commit", store.commit, world)
    store.record = _writing("record", store.record, world)
    store.release = _releasing(store.release, world)
    return storage


def _acquiring(lease: Callable[..., Awaitable[Lease]], world: World) -> Callable[..., Any]:
    async def acquiring(run_id: str, **options: Any) -> Lease:
        acquired = await lease(run_id, **options)
        _tell(world, "claimed", acquired)
        return acquired

    return acquiring


def _writing(name: str, write: Callable[..., Awaitable[Any]], world: World) -> Callable[..., Any]:
    async def writing(lease: Lease, *args: Any, **options: Any) -> Any:
        number = f"{os.getpid()}-{next(_writes)}"
        _tell(world, "writing", lease, name, number)
        try:
            outcome = await write(lease, *args, **options)
        except ClaimLostError:
            _tell(world, "refused", lease, name, number)
            raise
        _tell(world, "wrote", lease, name, number)
        return outcome

    return writing


def _releasing(release: Callable[..., Awaitable[None]], world: World) -> Callable[..., Any]:
    async def releasing(lease: Lease, **options: Any) -> None:
        await release(lease, **options)
        _tell(world, "released", lease)

    return releasing


def _tell(world: World, what: What, lease: Lease, name: str = "", key: str = "") -> None:
    world.note(Fact(what, os.getpid(), lease.run_id, name, key, token=lease.token))
