"""Several real processes on one PostgreSQL schema: who may write, and what becomes of the killed and the frozen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from tests import warm
from tests.postgres_server import needs_postgres, shared_server

from perdure.errors import RunBusyError
from perdure.storage import PostgresStore
from perdure.storage.postgres.database import PostgresDatabase
from perdure.storage.postgres.target import Target
from perdure.testing.stores import ManualClock, RunDriver, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Self

    from perdure.records import Lease

pytestmark = needs_postgres

CHILD = Path(__file__).with_name("postgres_child.py")
OK = {"ok": None}
LONG = 600.0
LOOK_SECONDS = 0.02


class Child:
    """A process with the store open."""

    def __init__(self, schema: str, lease_seconds: float, *, dsn: str | None = None) -> None:
        self._process = warm.start(
            str(CHILD), dsn or shared_server().dsn, schema, str(lease_seconds), stdin=PIPE, stdout=PIPE
        )

    def tell(self, do: str, **arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, do: str, **arguments: object) -> Any:
        self.tell(do, **arguments)
        return self.hear()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Let it come to its end by itself; its exit code."""
        self._process.communicate(timeout=60)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def schema() -> str:
    return shared_server().fresh_schema()


@pytest.fixture
async def store(schema: str) -> AsyncGenerator[PostgresStore]:
    store = PostgresStore(shared_server().dsn, schema=schema)
    yield store
    await store.close()


@pytest.fixture
def start(schema: str) -> Generator[Callable[..., Child]]:
    """Starts processes; each is ready to take orders."""
    with contextlib.ExitStack() as children:

        def start(*, lease_seconds: float = LONG) -> Child:
            child = children.enter_context(Child(schema, lease_seconds))
            assert child.hear() == "ready"
            return child

        yield start


async def lease_when_free(store: PostgresStore, run_id: str) -> Lease:
    while True:
        with contextlib.suppress(RunBusyError):
            return await store.acquire(run_id)
        await asyncio.sleep(LOOK_SECONDS)


async def test_processes_make_the_schema_at_once(start: Callable[..., Child], store: PostgresStore) -> None:
    children = [start() for _ in range(5)]
    for child in children:
        child.tell("ids")
    assert [child.hear() for child in children] == [{"ok": []}] * 5
    assert list(await store.ids()) == []


async def test_processes_commit_to_their_own_runs_at_once(start: Callable[..., Child], store: PostgresStore) -> None:
    children = {f"run {number}": start() for number in range(3)}
    for run_id, child in children.items():
        child.tell("claim", run=run_id)
        child.tell("commit", run=run_id, times=15)
    for child in children.values():
        assert [child.hear(), child.hear()] == [OK, OK]
    for run_id in children:
        manifests = await store.manifests(run_id=run_id)
        assert [manifest.position for manifest in manifests] == list(range(15))
        for manifest in manifests:
            assert set(manifest.toc.values()) == set(await store.blobs(manifest.toc.values()))


async def test_one_of_many_processes_begins_a_run(start: Callable[..., Child], store: PostgresStore) -> None:
    children = [start() for _ in range(4)]
    for number in range(5):
        for child in children:
            child.tell("claim", run=f"run {number}")
        answers = [child.hear() for child in children]
        assert [answer for answer in answers if answer == OK] == [OK]
        assert {answer["error"] for answer in answers if answer != OK} == {"RunBusyError"}
    assert list(await store.runs()) == []


async def test_the_run_of_a_killed_process_is_acquired_at_once(
    start: Callable[..., Child], store: PostgresStore
) -> None:
    for _ in range(3):
        child = start(lease_seconds=LONG)
        assert child.ask("claim", run="r") == OK
        assert child.ask("commit", run="r", times=1) == OK
        with pytest.raises(RunBusyError):
            await store.acquire("r")
        child.kill()
        await store.release(await store.acquire("r"))


async def test_the_run_of_a_process_that_ended_is_acquired_at_once(
    start: Callable[..., Child], store: PostgresStore
) -> None:
    child = start(lease_seconds=LONG)
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK
    assert child.end() == 0
    assert (await store.acquire("r")).attempts == 1


async def test_a_frozen_process_is_replaced_after_its_lease_and_can_write_nothing_when_it_thaws(
    start: Callable[..., Child], store: PostgresStore
) -> None:
    child = start(lease_seconds=2.0)
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK
    with pytest.raises(RunBusyError):
        await store.acquire("r")
    child.signal(signal.SIGSTOP)
    lease = await lease_when_free(store, "r")
    child.signal(signal.SIGCONT)
    assert child.ask("commit", run="r", times=1)["error"] == "LeaseLostError"
    assert list(await store.ids()) == ["r@0"]
    await store.release(lease)


async def test_a_process_that_is_frozen_while_it_writes_holds_nobody_up_for_long(
    start: Callable[..., Child], schema: str
) -> None:
    store = PostgresStore(shared_server().dsn, schema=schema, lease_seconds=1.0)
    child = start(lease_seconds=1.0)
    assert child.ask("claim", run="r") == OK
    child.tell("commit on and on", run="r")
    told = [child.hear() for _ in range(5)]
    child.signal(signal.SIGSTOP)
    await store.release(await lease_when_free(store, "r"))
    await store.collect()
    assert list(await store.ids())[: len(told)] == told
    await store.close()


def free_runs(schema: str) -> int:
    """How many runs nobody has locked."""
    query = sql.SQL("SELECT 1 FROM {} FOR UPDATE SKIP LOCKED").format(sql.Identifier(schema, "runs"))
    with contextlib.closing(shared_server().connect()) as connection:
        return len(connection.execute(query).fetchall())


async def test_writer_frozen_in_a_pipeline_does_not_block_others_for_long(
    schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server has read half of what it was asked, and waits for the rest: for it that is nobody who is idle."""
    store = PostgresStore(shared_server().dsn, schema=schema, lease_seconds=1.0)
    run = await RunDriver.start(store, ManualClock(), "r")
    head = await run.commit({"a": text_blob("A")})
    await run.release()
    target = Target.of(shared_server().dsn, schema, lease_seconds=LONG)
    frozen = PostgresDatabase(target, pool_size=1, patience_seconds=0.0)

    async def lease_meanwhile() -> None:
        with frozen.transaction(pipelined=True):
            frozen.execute("run_for_change", tenant="", run_id="r")
            while free_runs(schema):
                pass
            await store.acquire("r")

    with pytest.raises(psycopg.OperationalError):
        await lease_meanwhile()
    assert list(await store.ids()) == [head]
    assert "held locks and was silent for more than 5 seconds: it was ended" in caplog.text
    frozen.close()
    await store.close()


async def test_runs_of_dead_owners_are_due(start: Callable[..., Child], store: PostgresStore) -> None:
    child = start()
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK
    assert list(await store.due(at="2000", workflow_names=["flow"], limit=9)) == []
    child.kill()
    while not (due := await store.due(at="2000", workflow_names=["flow"], limit=9)):
        pass
    assert [each.record.run_id for each in due] == ["r"]


async def test_a_forked_child_is_another_owner_and_does_its_parent_no_harm(
    start: Callable[..., Child], store: PostgresStore
) -> None:
    child = start()
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK
    orders = [{"do": "claim", "run": "r"}, {"do": "claim", "run": "s"}, {"do": "commit", "run": "s", "times": 1}]
    refused, *others = child.ask("fork", then=orders)["ok"]
    assert refused["error"] == "RunBusyError"
    assert others == [OK, OK]
    assert child.ask("commit", run="r", times=1) == OK
    with pytest.raises(RunBusyError):
        await store.acquire("r")
    await store.acquire("s")
    child.kill()
    await store.acquire("r")


def test_parent_writes_what_waited_during_a_fork(start: Callable[..., Child]) -> None:
    child = start()
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK
    orders = [{"do": "claim", "run": "s"}, {"do": "commit", "run": "s", "times": 1}, {"do": "ids"}]
    answers, head = child.ask("fork while a commit waits", run="r", then=orders)
    assert answers["ok"] == [OK, OK, {"ok": ["r@0", "s@0"]}]
    assert head == "r@1"


async def test_blobs_of_a_commit_are_never_collected(schema: str) -> None:
    """State A, B, A: the part of the third commit is there from the first, and nobody needs it in between."""
    stores = [PostgresStore(shared_server().dsn, schema=schema) for _ in range(2)]
    run = await RunDriver.start(stores[0], ManualClock(), "r")
    for number in range(40):
        blob = raw_blob(b"A" * 3000) if number % 2 else text_blob("B")
        head, _ = await asyncio.gather(run.commit({"a": blob}), stores[1].collect())
        assert list(await stores[1].blobs([blob.hash])) == [blob.hash]
        if number:
            await stores[0].delete(f"r@{number - 1}")
        assert head == f"r@{number}"
    for each in stores:
        await each.close()
