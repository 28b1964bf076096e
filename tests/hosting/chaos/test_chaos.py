"""A short storm: two hosts on one store are killed and frozen at random, and every run ends as if nobody had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.hosting.chaos.place import Place
from tests.hosting.chaos.storm import Storm, Weather
from tests.postgres_server import needs_postgres, shared_server

if TYPE_CHECKING:
    from pathlib import Path

SHORT = Weather(hosts=(2,), runs=16, strikes=8, seed=2026)
LEASE_SECONDS = 1.5

pytestmark = pytest.mark.timeout(600)


async def survive(place: Place) -> None:
    outcome = await Storm(place, SHORT).rage()
    assert not outcome.violations, outcome.table()
    assert outcome.counts["kills"] > 0
    assert outcome.counts["freezes"] > 0
    assert outcome.counts["takeovers"] > 0


async def test_runs_on_one_sqlite_file_outlast_their_hosts(tmp_path: Path) -> None:
    await survive(Place.on_sqlite(tmp_path, lease_seconds=LEASE_SECONDS))


@needs_postgres
async def test_runs_in_one_postgres_database_outlast_their_hosts(tmp_path: Path) -> None:
    await survive(Place.on_postgres(shared_server(), tmp_path, lease_seconds=LEASE_SECONDS))
