"""Random operations on a PostgreSQL store and on a model of it that is too simple to be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from test_model import SETTINGS, StoreMachine
from tests.postgres_server import needs_postgres, shared_server
from tests.soak import IS_SOAK
from typing_extensions import override

from perdure.storage import PostgresStore

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.records import Retention
    from perdure.storage import HostStore

pytestmark = needs_postgres


class PostgresMachine(StoreMachine):
    kind = "postgres"

    @override
    def open_store(self, directory: Path, retention: Retention) -> HostStore:
        schema = shared_server().fresh_schema()
        return PostgresStore(shared_server().dsn, schema=schema, retention=retention, clock=self.clock)


def test_a_postgres_store_does_what_its_model_does() -> None:
    run_state_machine_as_test(PostgresMachine, settings=SETTINGS if IS_SOAK else settings(SETTINGS, max_examples=3))
