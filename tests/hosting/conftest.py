"""Storages for hosts: each test that asks for one runs on all that a host is meant for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.hosting.places import opened
from tests.postgres_server import needs_postgres
from tests.soak import MEMORY

from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.hosting.places import Storage


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs_postgres), *MEMORY])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of storage."""
    return request.param


@pytest.fixture
async def storage(kind: str, tmp_path: Path) -> AsyncIterator[Storage]:
    """A storage with the machine's clock."""
    async with opened(kind, tmp_path) as one:
        yield one


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock()


@pytest.fixture
async def timed(kind: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Storage]:
    """A storage whose clock stands still."""
    async with opened(kind, tmp_path, clock=clock) as one:
        yield one
