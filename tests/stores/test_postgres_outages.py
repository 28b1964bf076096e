"""A PostgreSQL server that restarts, and connections that are lost just when it matters: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cutting import Cut, Cutter
from tests.postgres_server import needs_postgres, new_server, shared_server
from typing_extensions import override

from perdure.errors import CheckpointWriteError, WorkflowCheckpointException
from perdure.records import Halt
from perdure.storage import PostgresStore
from perdure.storage.postgres.database import ConflictError, PostgresDatabase
from perdure.storage.postgres.target import Target
from perdure.testing.stores import ManualClock, RunDriver, command, events, finished, new_run, text_blob

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence

    from tests.postgres_server import Server

    from perdure.storage import Sync
    from perdure.storage.postgres.target import Columns

pytestmark = needs_postgres

PARKED = Halt("parked", "2024-01-01T00:00:00+00:00", "for a test")


@pytest.fixture
def server() -> Generator[Server]:
    """A server of the test's own."""
    server = new_server()
    yield server
    server.remove()


@pytest.fixture
def cutter() -> Generator[Cutter]:
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        cutter = Cutter(Path(directory), shared_server().directory)
        yield cutter
        cutter.close()


@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_run_goes_on_when_the_server_is_restarted_in_the_middle_of_it(
    server: Server,
    is_crash: bool,  # noqa: FBT001
) -> None:
    store = PostgresStore(server.dsn)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit(events=events("told 0"))
    restarts = asyncio.create_task(restarted(server, times=3, is_crash=is_crash))
    while not restarts.done() or run.position < 30:
        number = run.position + 1
        await run.note(finished(f"step {number}"))
        await run.post(command(f"message {number}"))
        await run.commit(
            {"a": text_blob(f"{number}")}, consumed=(f"message {number}",), events=events(f"told {number}")
        )
    await restarts
    count = run.position + 1
    assert list(await store.ids()) == [f"r@{number}" for number in range(count)]
    assert list(await run.events(limit=10 * count)) == [f"{number + 1}=told {number}" for number in range(count)]
    assert list(await run.inbox()) == []
    assert list(await store.journal("r")) == []
    await store.close()


async def restarted(server: Server, *, times: int, is_crash: bool) -> None:
    for _ in range(times):
        await asyncio.to_thread(server.crash if is_crash else server.stop)
        await asyncio.to_thread(server.start)


async def test_after_a_restart_of_the_server_the_owner_is_still_the_owner(server: Server) -> None:
    store = PostgresStore(server.dsn)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    server.restart()
    assert (await store.watch("r", seen=run.at("nowhere"))).owner == run.at("r@0").owner
    await run.commit()
    await store.close()


async def test_a_server_that_stays_away_is_an_error_that_says_so(server: Server) -> None:
    store = PostgresStore(server.dsn, patience_seconds=0.2)
    run = await RunDriver.start(store, ManualClock(), "r")
    server.stop()
    with pytest.raises(CheckpointWriteError, match=r"'r'.*can't be reached.*check the server"):
        await run.commit()
    with pytest.raises(WorkflowCheckpointException, match="can't be reached"):
        await store.ids()
    server.start()
    await run.commit()
    assert list(await store.ids()) == ["r@0"]
    await store.close()


async def test_a_store_waits_for_a_server_that_is_about_to_start(server: Server) -> None:
    server.stop()
    store = PostgresStore(server.dsn)
    asked = asyncio.create_task(store.ids())
    await asyncio.to_thread(server.start)
    assert list(await asked) == []
    await store.close()


async def test_a_lock_that_somebody_keeps_is_not_taken_for_a_server_that_is_gone() -> None:
    schema = shared_server().fresh_schema()
    store = PostgresStore(shared_server().dsn, schema=schema, patience_seconds=0.0)
    await store.ids()
    key = Target.of(shared_server().dsn, schema, lease_seconds=1.0).key("writers")
    with contextlib.closing(shared_server().connect()) as connection:
        connection.execute("SELECT pg_advisory_lock_shared(%s)", [key])
        with pytest.raises(WorkflowCheckpointException, match=r"somebody holds a lock.*pg_stat_activity") as caught:
            await store.collect()
    assert "reached" not in str(caught.value)
    assert await store.collect() == 0
    await store.close()


def test_inside_of_what_is_done_until_it_succeeds_each_try_counts_once() -> None:
    target = Target.of(shared_server().dsn, shared_server().fresh_schema(), lease_seconds=1.0)
    tries: list[str] = []

    def inner() -> None:
        tries.append("inner")
        raise ConflictError("in the way")

    def outer() -> None:
        tries.append("outer")
        database.retry(inner)

    database = PostgresDatabase(target, pool_size=1, patience_seconds=0.0)
    with pytest.raises(ConflictError):
        database.retry(outer)
    database.close()
    assert tries.count("inner") == tries.count("outer") > 1


class Storm(PostgresDatabase):
    """A database whose sessions are all ended before each attempt, and while a transaction writes too many runs."""

    commits_max = 100

    @contextlib.contextmanager
    @override
    def errors(self) -> Generator[None]:
        self._end_sessions()
        with super().errors():
            yield

    @override
    def execute_each(self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /) -> Sequence[Columns | None]:
        self._commits += len(rows)
        if self._commits > self.commits_max:
            self._end_sessions()
        return super().execute_each(names, rows)

    @contextlib.contextmanager
    @override
    def transaction(
        self, sync: Sync = "as chosen", *, alone: bool = False, lazy: bool = False, pipelined: bool = False
    ) -> Generator[None]:
        self._commits = 0
        with super().transaction(sync, alone=alone, lazy=lazy, pipelined=pipelined):
            yield

    def _end_sessions(self) -> None:
        """End the sessions of this store, and wait until the server has done so."""
        name = self.target.options["application_name"]
        with contextlib.closing(shared_server().connect()) as connection:
            while connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [name]
            ).fetchall():
                pass


class TightStorm(Storm):
    """A storm in which no transaction can write more than two runs."""

    commits_max = 2


@pytest.mark.parametrize("database", [Storm, TightStorm])
async def test_runs_advance_although_sessions_end_all_the_time(database: type[PostgresDatabase]) -> None:
    schema = shared_server().fresh_schema()
    store = PostgresStore(f"{shared_server().dsn}&application_name={schema}", schema=schema, database=database)
    clock = ManualClock()
    runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(9)]
    for _ in range(3):
        await asyncio.gather(*(run.note(finished("step")) for run in runs), *(run.commit() for run in runs))
    assert sorted(await store.ids()) == sorted(f"r{number}@{position}" for number in range(9) for position in range(3))
    await store.close()


class Lossy:
    """A store whose connection can be cut, and another one on the same schema that sees what is there."""

    def __init__(self, cutter: Cutter, *, database: type[PostgresDatabase] | None = None) -> None:
        schema = shared_server().fresh_schema()
        self.cutter = cutter
        dsn = f"postgresql://perdure@/postgres?host={cutter.directory}"
        self.store = PostgresStore(dsn, schema=schema, database=database)
        self.seen = PostgresStore(shared_server().dsn, schema=schema)

    @contextlib.contextmanager
    def cut(self, cut: Cut) -> Generator[None]:
        """Cut the connection once while this lasts."""
        before = self.cutter.cuts
        self.cutter.cut_next(cut)
        yield
        assert self.cutter.cuts == before + 1


@pytest.fixture
async def lossy(cutter: Cutter) -> AsyncGenerator[Lossy]:
    lossy = Lossy(cutter)
    yield lossy
    await lossy.store.close()
    await lossy.seen.close()


cuts = pytest.mark.parametrize("cut", ["before", "after"])


async def begun(lossy: Lossy) -> RunDriver:
    run = await RunDriver.start(lossy.store, ManualClock(), "r")
    await run.commit({"a": text_blob("0")}, events=events("zero"))
    await run.commit({"a": text_blob("1")}, events=events("one"))
    return run


@cuts
async def test_a_commit_of_unknown_outcome_is_written_once(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    await run.post(command("waits"))
    with lossy.cut(cut):
        await run.commit({"a": text_blob("2")}, events=events("two"))
    assert run.waiting == (await lossy.seen.inbox("r"))[0].number
    await run.commit({"a": text_blob("3")}, events=events("three"))
    assert list(await lossy.seen.ids()) == ["r@0", "r@1", "r@2", "r@3"]
    assert list(await run.events()) == ["1=zero", "2=one", "3=two", "4=three"]


@cuts
async def test_records_and_commits_of_one_batch_are_settled_together(lossy: Lossy, cut: Cut) -> None:
    run, other = await begun(lossy), await RunDriver.start(lossy.store, ManualClock(), "o")
    with lossy.cut(cut):
        await asyncio.gather(run.note(finished("a")), other.note(finished("b")), run.commit(), other.commit())
    assert list(await lossy.seen.ids()) == ["r@0", "r@1", *sorted(["r@2", "o@0"])]
    assert list(await lossy.seen.journal("r")) == []


class Refusing(PostgresDatabase):
    """A database that refuses, once it is told to, what is tried again."""

    times = 0

    @contextlib.contextmanager
    @override
    def transaction(
        self, sync: Sync = "as chosen", *, alone: bool = False, lazy: bool = False, pipelined: bool = False
    ) -> Generator[None]:
        if Refusing.times and not pipelined:
            Refusing.times -= 1
            raise WorkflowCheckpointException("the server has no room for that")
        with super().transaction(sync, alone=alone, lazy=lazy, pipelined=pipelined):
            yield


@cuts
async def test_written_commit_is_reported_although_its_repetition_is_refused(cutter: Cutter, cut: Cut) -> None:
    lossy = Lossy(cutter, database=Refusing)
    run, other = await begun(lossy), await RunDriver.start(lossy.store, ManualClock(), "o")
    with lossy.cut(cut):
        Refusing.times = 1
        await asyncio.gather(run.note(finished("a")), other.note(finished("b")), run.commit(), other.commit())
    assert Refusing.times == 0
    assert list(await lossy.seen.ids()) == ["r@0", "r@1", *sorted(["r@2", "o@0"])]
    await lossy.store.close()
    await lossy.seen.close()


@cuts
async def test_a_record_of_unknown_outcome_is_there_once(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    with lossy.cut(cut):
        await run.note(finished("a", "x", text_blob("part")))
    assert list(await run.noted()) == ["a=x"]


@cuts
async def test_a_lease_and_a_release_of_unknown_outcome_hold(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    with lossy.cut(cut):
        run.lease = await lossy.store.acquire("r")
    await run.commit()
    with lossy.cut(cut):
        await lossy.store.release(run.lease, halt=PARKED)
    record = await lossy.seen.run("r")
    assert record is not None
    assert (record.halt, record.owner) == (PARKED, None)


@cuts
async def test_lease_of_unknown_outcome_is_one_attempt_and_has_the_halt(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    await run.release(halt=PARKED)
    with lossy.cut(cut):
        lease = await lossy.store.acquire("r")
    assert (lease.attempts, lease.halt) == (1, PARKED)
    with lossy.cut(cut):
        lease = await lossy.store.acquire("r")
    assert (lease.attempts, lease.halt) == (2, None)
    record = await lossy.seen.run("r")
    assert record is not None
    assert record.attempts == 2


@cuts
async def test_a_lease_by_a_token_from_elsewhere_holds(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    with lossy.cut(cut):
        run.lease = await lossy.store.acquire("r", token=1000)
    assert run.lease.token == 1000
    await run.commit()
    assert (await lossy.store.acquire("r")).token > 1000


@cuts
async def test_a_new_run_of_unknown_outcome_begins_once(lossy: Lossy, cut: Cut) -> None:
    with lossy.cut(cut):
        lease = await lossy.store.acquire("r", create=new_run("r"))
    run = RunDriver(lossy.store, ManualClock(), "r", "flow")
    run.lease = lease
    await run.commit()
    assert [record.run_id for record in await lossy.seen.runs()] == ["r"]


@cuts
async def test_a_rewind_of_unknown_outcome_is_done_once(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    with lossy.cut(cut):
        await run.rewind("r@0", nonce="new")
    record = await lossy.seen.run("r")
    assert record is not None
    assert (record.head, record.nonce) == ("r@0", "new")


@cuts
async def test_a_command_of_unknown_outcome_is_posted_once(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    with lossy.cut(cut):
        (number,) = await run.post(command("a", "x", text_blob("part")))
    assert [(each.id, each.number) for each in await lossy.seen.inbox("r")] == [("a", number)]


@cuts
async def test_a_checkpoint_is_deleted_and_a_run_removed_once(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    with lossy.cut(cut):
        assert await lossy.store.delete("r@0") is True
    assert await lossy.store.delete("r@0") is False
    await run.release()
    with lossy.cut(cut):
        assert await lossy.store.remove("r") is True
    assert await lossy.store.remove("r") is False
    assert list(await lossy.seen.runs()) == []


@cuts
async def test_a_run_of_unknown_outcome_is_restored_once(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    await run.post(command("waits"))
    await run.release()
    archive = await lossy.store.archive("r")
    assert await lossy.store.remove("r")
    with lossy.cut(cut):
        await lossy.store.restore(archive)
    assert await lossy.seen.run("r") == archive.record
    archived = await lossy.seen.archive("r")
    assert replace(archived, inbox=()) == replace(archive, inbox=())
    assert [each.id for each in archived.inbox] == ["waits"]


@cuts
async def test_a_collection_of_unknown_outcome_is_done(lossy: Lossy, cut: Cut) -> None:
    run = await begun(lossy)
    await lossy.store.delete("r@0")
    with lossy.cut(cut):
        await lossy.store.collect()
    assert list(await lossy.seen.blobs([text_blob("0").hash])) == []
    assert list(await lossy.seen.blobs([text_blob("1").hash])) == [text_blob("1").hash]
    await run.commit()
