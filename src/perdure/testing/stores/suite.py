"""What the parts of the suite have in common: the store under test and its clock. Needs pytest."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, ParamSpec

import pytest
from typing_extensions import override

from perdure.errors import ClaimLostError, StaleHeadError
from perdure.records import Retention
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Part
    from perdure.storage import HostStore, Store
    from perdure.testing.stores.driver import RunDriver

P = ParamSpec("P")

UNWOKEN_SECONDS = 30.0
"""When a test gives up on someone who should have been woken long ago."""

LATE_COMMITS_MAX = 200
"""How long a collection that nobody asked for may be late, as it runs beside the commits."""

REFUSED = (ClaimLostError, StaleHeadError)
"""What a writer is told whose run was replaced or is gone."""


class StoreSuite:
    """Tests that are run against a store of their own each."""

    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> Store:
        """A new, empty store. It may use `directory`."""
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The store's clock."""
        return ManualClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Store:
        """A store that keeps everything."""
        return self.open_store(tmp_path, retention=Retention(), clock=clock)


class HostStoreSuite(StoreSuite):
    """The same, against a store that serves hosts."""

    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    @override
    def store(self, tmp_path: Path, clock: ManualClock) -> HostStore:
        return self.open_store(tmp_path, retention=Retention(), clock=clock)


def in_a_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """The test as a function that is not async: it has an event loop of its own, whatever plugins pytest has."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def latest_id(store: Store, workflow_name: str) -> str:
    """The id of the newest checkpoint of a workflow."""
    manifest = await store.latest(workflow_name=workflow_name)
    assert manifest is not None
    return manifest.checkpoint_id


async def contents_of(store: Store, checkpoint_id: str) -> Mapping[str, bytes]:
    """The values of a checkpoint, by path."""
    manifest = await store.manifest(checkpoint_id)
    parts = await store.parts(manifest.toc.values())
    return {path: parts[part] for path, part in manifest.toc.items()}


async def go_by_themselves(run: RunDriver, parts: Sequence[Part], **values: Part) -> bool:
    """Whether a third of these parts, which nothing needs any more, go while the run goes on with these values.

    Closes the store.
    """
    hashes, fewer = [part.hash for part in parts], 2 * len(parts) // 3
    for _ in range(LATE_COMMITS_MAX):
        if len(await run.store.parts(hashes)) < fewer:
            break
        await run.commit(values)
    # A collection that nobody asked for is waited for by who closes the store.
    await run.store.close()
    return len(await run.store.parts(hashes)) < fewer
