"""Adds PostgreSQL to the shipped stores, for programs that run the resume suite."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from perdure.testing.resume import postgres_kind

if TYPE_CHECKING:
    from perdure.testing.resume import Storages

SERVER = "PERDURE_TEST_POSTGRES"
"""The environment variable with the address of a server that runs already."""


def with_postgres(storages: Storages) -> Storages:
    """These storages, and PostgreSQL, if it is asked for and there is a server: one that runs, or one of our own."""
    dsn = (os.environ.get(SERVER) or _started()) if _is_wanted() else None
    return storages if dsn is None else {**storages, "postgres": postgres_kind(dsn)}


def _is_wanted() -> bool:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--stores", default="postgres")
    return "postgres" in parser.parse_known_args()[0].stores.split(",")


def _started() -> str | None:
    from tests.postgres_server import binaries, shared_server  # noqa: PLC0415 - only who asks for it needs it

    return None if binaries() is None else shared_server().dsn
