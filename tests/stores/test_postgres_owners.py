"""Who is taken for dead on a PostgreSQL server: sessions that are lost, servers that were away, several stores."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg import sql
from severing import Severer
from test_postgres_processes import LONG, OK, Child
from tests.postgres_server import USER, needs_postgres, new_server, shared_server

from perdure.errors import RunBusyError
from perdure.storage import PostgresStore, this_process
from perdure.storage.postgres.database import ConnectionLostError, PostgresDatabase
from perdure.storage.postgres.owners import PostgresOwners
from perdure.storage.postgres.target import Target
from perdure.testing.stores import ManualClock, RunDriver

if TYPE_CHECKING:
    from collections.abc import Generator

    import psycopg
    from tests.postgres_server import Server

pytestmark = needs_postgres


@pytest.fixture
def schema() -> str:
    return shared_server().fresh_schema()


@pytest.fixture
def server() -> Generator[Server]:
    """A server of the test's own."""
    server = new_server()
    yield server
    server.remove()


@pytest.fixture
def severer() -> Generator[tuple[Severer, str]]:
    """A go-between, and the connection string that leads to it."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        severer = Severer(Path(directory), shared_server().directory)
        yield severer, f"postgresql://{USER}@/postgres?host={directory}"
        severer.close()


@contextlib.contextmanager
def looking(server: Server, schema: str) -> Generator[psycopg.Connection[tuple[object, ...]]]:
    with contextlib.closing(server.connect()) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        yield connection


def sessions(connection: psycopg.Connection[tuple[object, ...]]) -> set[object]:
    return {session for (session,) in connection.execute("SELECT session FROM owners").fetchall()}


def begun(child: Child) -> None:
    assert child.hear() == "ready"
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK


async def test_the_end_of_a_lost_session_is_not_the_end_of_a_process_that_has_another(
    severer: tuple[Severer, str], schema: str
) -> None:
    between, dsn = severer
    store = PostgresStore(shared_server().dsn, schema=schema)
    with Child(schema, LONG, dsn=dsn) as child, looking(shared_server(), schema) as connection:
        begun(child)
        (lost,) = sessions(connection)
        between.lose_clients()
        while sessions(connection) == {lost}:
            pass
        between.tell_server()
        connection.execute("SELECT pg_advisory_lock(session_key(%s))", [lost])
        with pytest.raises(RunBusyError):
            await store.acquire("r")
        child.kill()
        between.lose_clients()
        between.tell_server()
        lease = None
        while lease is None:
            with contextlib.suppress(RunBusyError):
                lease = await store.acquire("r")
    await store.close()


async def test_a_server_that_was_away_for_longer_than_a_lease_gives_owners_the_time_to_come_back(
    server: Server,
) -> None:
    store = PostgresStore(server.dsn, schema="s")
    with Child("s", LONG, dsn=server.dsn) as child:
        begun(child)
        child.signal(signal.SIGSTOP)
        server.restart()
        with looking(server, "s") as connection:
            connection.execute("UPDATE owners SET renewed_at = renewed_at - INTERVAL '1 year'")
        with pytest.raises(RunBusyError):
            await store.acquire("r")
        child.signal(signal.SIGCONT)
        assert child.ask("commit", run="r", times=1) == OK
    await store.close()


def test_owner_gets_a_new_session_after_the_server_restarts(server: Server) -> None:
    target = Target.of(server.dsn, "s", lease_seconds=LONG)
    with contextlib.closing(PostgresDatabase(target, pool_size=1, patience_seconds=0.0)) as database:
        owners = PostgresOwners(database)
        owners.enter()
        server.stop()
        # The thread hears of it in its own time.
        while enters(owners):
            pass
        server.start()
        while not enters(owners):
            pass
        with looking(server, "s") as connection:
            found = connection.execute("SELECT server_started = pg_postmaster_start_time() FROM owners").fetchall()
        assert found == [(True,)]
        owners.close()


def enters(owners: PostgresOwners) -> bool:
    try:
        owners.enter()
    except ConnectionLostError:
        return False
    return True


def test_a_process_lives_for_as_long_as_one_of_its_stores_is_open(schema: str) -> None:
    target = Target.of(shared_server().dsn, schema, lease_seconds=LONG)
    with contextlib.closing(PostgresDatabase(target, pool_size=1, patience_seconds=0.0)) as database:
        owners = [PostgresOwners(database) for _ in range(2)]
        dead: list[bool] = []
        for each in owners:
            each.enter()
        for each in owners:
            dead.append(looks_dead(database))
            each.close()
        assert [*dead, looks_dead(database)] == [False, False, True]


def looks_dead(database: PostgresDatabase) -> bool:
    """Whether others would take this process for dead."""
    row = database.execute("owner", id=this_process().id).fetchone()
    assert row is not None
    return row["is_dead"]


async def test_a_process_is_known_in_each_database_that_it_has_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [shared_server().fresh_schema() for _ in range(2)]
    services = tmp_path / "services"
    host = f"host={shared_server().directory}\nuser={USER}"
    services.write_text("".join(f"[{name}]\n{host}\ndbname={name}\n" for name in names), encoding="utf-8")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    for name in names:
        shared_server().execute(f"CREATE DATABASE {name}")
    stores = [PostgresStore(f"service={name}") for name in names]
    for store in stores:
        await RunDriver.start(store, ManualClock(), "r")
    for name, store in zip(names, stores, strict=True):
        target = Target.of(f"service={name}", "perdure", lease_seconds=LONG)
        with contextlib.closing(PostgresDatabase(target, pool_size=1, patience_seconds=0.0)) as database:
            assert not looks_dead(database)
        await store.close()
