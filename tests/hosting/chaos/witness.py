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

    from perdure.records import Claim
    from perdure.storage import StoreStorage


_writes = itertools.count(1)


def witnessed(storage: StoreStorage, world: World) -> StoreStorage:
    """The same storage, whose store tells what it does for this process."""
    store = storage.store
    store.claim = _claiming(store.claim, world)
    store.commit = _writing("commit", store.commit, world)
    store.record = _writing("record", store.record, world)
    store.release = _releasing(store.release, world)
    return storage


def _claiming(claim: Callable[..., Awaitable[Claim]], world: World) -> Callable[..., Any]:
    async def claiming(run_id: str, **options: Any) -> Claim:
        claimed = await claim(run_id, **options)
        _tell(world, "claimed", claimed)
        return claimed

    return claiming


def _writing(name: str, write: Callable[..., Awaitable[Any]], world: World) -> Callable[..., Any]:
    async def writing(claim: Claim, *args: Any, **options: Any) -> Any:
        number = f"{os.getpid()}-{next(_writes)}"
        _tell(world, "writing", claim, name, number)
        try:
            outcome = await write(claim, *args, **options)
        except ClaimLostError:
            _tell(world, "refused", claim, name, number)
            raise
        _tell(world, "wrote", claim, name, number)
        return outcome

    return writing


def _releasing(release: Callable[..., Awaitable[None]], world: World) -> Callable[..., Any]:
    async def releasing(claim: Claim, **options: Any) -> None:
        await release(claim, **options)
        _tell(world, "released", claim)

    return releasing


def _tell(world: World, what: What, claim: Claim, name: str = "", key: str = "") -> None:
    world.note(Fact(what, os.getpid(), claim.run_id, name, key, token=claim.token))
