"""Session stores for tests: each test that asks for one runs on all that we ship."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.threads.session_kinds import KINDS, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from perdure.threads import SessionStore


@pytest.fixture(params=KINDS)
async def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    """A session store of each kind."""
    async with opened(request.param, tmp_path) as one:
        yield one
