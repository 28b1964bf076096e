"""The kinds of storage that the resume suite is run on here."""

from __future__ import annotations

import pytest
from tests.postgres_server import needs_postgres

KINDS = ["file", "sqlite", pytest.param("postgres", marks=needs_postgres)]
