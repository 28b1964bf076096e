"""A store in front of which something happens just before one of its calls: races, in a fixed order."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from perdure.storage import StoreStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.storage import Store


class MeddledStore:
    """The store that it wraps; before the first call of a name, once, somebody else gets a turn."""

    def __init__(self, inner: Store, before: dict[str, Callable[[], Awaitable[object]]]) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def after_others(*args: Any, **kwargs: Any) -> Any:
            meddle = self._before.pop(name, None)
            if meddle is not None:
                await meddle()
            return await found(*args, **kwargs)

        return after_others


def meddled(storage: StoreStorage, **before: Callable[[], Awaitable[object]]) -> StoreStorage:
    """The same storage; before its next call of a name this is done first, in full."""
    return StoreStorage(cast("Store", MeddledStore(storage.store, before)), clock=storage.clock)
