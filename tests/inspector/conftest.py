from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.hosting.flows import fail, office, pass_on, row, shout, until

from perdure import Host, SqliteCheckpointStorage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncGenerator[SqliteCheckpointStorage]:
    """A store with a failed run, one that waits for a person, and one that is idle."""
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        host = Host(storage)
        for factory in (row("boom", pass_on, fail), office, row("ok", shout)):
            host.register(factory)
        async with host:
            await host.start("boom", "sku-17", run_id="bad/1", tags={"customer": "acme"})
            await host.start("office", "rent", run_id="ask-1", tags={"customer": "binford"})
            await host.start("ok", "x", run_id="ok-1", tags={"customer": "acme"})
            await until(host, "bad/1", "failed")
            await until(host, "ask-1", "waiting")
            await until(host, "ok-1", "idle")
        yield storage
