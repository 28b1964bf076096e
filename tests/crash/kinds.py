"""Kinds of storage on which these tests run the resume suite."""

from __future__ import annotations

import pytest
from tests.postgres_server import needs_postgres

ON_DISK = ["file", "sqlite"]
KINDS = [*ON_DISK, pytest.param("postgres", marks=needs_postgres)]
