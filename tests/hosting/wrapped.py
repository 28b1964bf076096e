"""A store that does one thing otherwise, for what is hard to bring about with real processes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.storage import StoreStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.hosting.places import Storage


class Wrapped:
    """A store, where calls by these names go through functions that are given the real ones."""

    def __init__(self, inner: Any, instead: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self._inner = inner
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._instead[name], found) if name in self._instead else found


def wrapped(storage: Storage, **instead: Callable[..., Awaitable[Any]]) -> StoreStorage:
    """The same storage on such a store."""
    store = Wrapped(storage.store, instead)
    return StoreStorage(store, clock=storage.clock)  # pyright: ignore[reportArgumentType] - it is all that it wraps
