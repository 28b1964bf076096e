"""Shared fixtures of these tests."""

from __future__ import annotations

import pytest
from tests.crash.servers import SERVER
from tests.postgres_server import shared_server


@pytest.fixture(autouse=True)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program know our server, if the test is about it."""
    if "postgres" in request.node.name:
        monkeypatch.setenv(SERVER, shared_server().dsn)
