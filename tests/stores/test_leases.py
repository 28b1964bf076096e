"""Leases of real processes: who is frozen loses its runs when its lease is over, who lives never does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm

from perdure.errors import LeaseLostError, RunBusyError
from perdure.storage import FileStore, MemoryStore, SqliteStore
from perdure.testing.stores import ManualClock, RunDriver, halted, new_run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self

    from perdure.records import Lease
    from perdure.storage import TenantStore

HOLDER = Path(__file__).with_name("holder.py")
LEASE_SECONDS = 0.5
LOOK_SECONDS = 0.02
OK = {"ok": None}
IN_A_WHILE = "2100-01-01T00:00:00+00:00"


class Holder:
    """A process with the store open, whose lease is short."""

    def __init__(self, kind: str, path: Path, lease_seconds: float) -> None:
        self._process = warm.start(str(HOLDER), kind, str(path), str(lease_seconds), stdin=PIPE, stdout=PIPE)

    def tell(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def ask(self, do: str, **arguments: object) -> Any:
        self.tell(json.dumps({"do": do, **arguments}))
        return self.hear()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=["sqlite", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Path:
    return tmp_path / ("runs.db" if kind == "sqlite" else "runs")


@pytest.fixture
def owners(kind: str, place: Path) -> Path:
    """Where the lock files of processes are."""
    return place.with_name("runs.db-owners") if kind == "sqlite" else place / ".perdure" / "owners"


@pytest.fixture
def store(kind: str, place: Path) -> TenantStore:
    return SqliteStore(place) if kind == "sqlite" else FileStore(place)


@pytest.fixture
def start(kind: str, place: Path) -> Generator[Callable[..., Holder]]:
    with contextlib.ExitStack() as holders:

        def start(lease_seconds: float = LEASE_SECONDS) -> Holder:
            return holders.enter_context(Holder(kind, place, lease_seconds))

        yield start


async def acquired_when_it_can_be(store: TenantStore, run_id: str) -> Lease:
    while True:
        with contextlib.suppress(RunBusyError):
            return await store.acquire(run_id)
        await asyncio.sleep(LOOK_SECONDS)


async def due_when_any_are(store: SqliteStore) -> list[str]:
    while True:
        if due := await store.due(at=IN_A_WHILE, workflow_names=["flow"], limit=10):
            return [each.record.run_id for each in due]
        await asyncio.sleep(LOOK_SECONDS)


def only_lock(owners: Path) -> Path:
    (lock,) = owners.glob("*.lock")
    return lock


def seconds_since_touched(path: Path, now: Path) -> float:
    """By the clock of the file system."""
    now.touch()
    return now.stat().st_mtime - path.stat().st_mtime


async def test_a_frozen_owner_is_replaced_when_its_lease_is_over_and_not_before(
    start: Callable[..., Holder], store: TenantStore, owners: Path, tmp_path: Path
) -> None:
    frozen = start()
    assert frozen.ask("claim", run="r") == OK
    assert frozen.ask("commit", run="r", times=1) == OK
    lock = only_lock(owners)
    frozen.freeze()
    await acquired_when_it_can_be(store, "r")
    assert seconds_since_touched(lock, tmp_path / "now") > LEASE_SECONDS
    await store.close()


async def test_a_thawed_owner_that_was_replaced_cannot_write(start: Callable[..., Holder], store: TenantStore) -> None:
    frozen = start()
    assert frozen.ask("claim", run="r") == OK
    assert frozen.ask("commit", run="r", times=1) == OK
    frozen.freeze()
    await acquired_when_it_can_be(store, "r")
    frozen.thaw()
    assert frozen.ask("commit", run="r", times=1)["error"] == "LeaseLostError"
    assert frozen.ask("note", run="r", keys=["late"], durable=True)["error"] == "LeaseLostError"
    record = await store.run("r")
    assert record is not None
    assert (record.head, list(await store.journal("r"))) == ("r@0", [])
    await store.close()


async def test_a_thawed_owner_that_was_not_replaced_goes_on(start: Callable[..., Holder], store: TenantStore) -> None:
    frozen = start()
    for run_id in ("r", "s"):
        assert frozen.ask("claim", run=run_id) == OK
        assert frozen.ask("commit", run=run_id, times=1) == OK
    frozen.freeze()
    await acquired_when_it_can_be(store, "s")
    frozen.thaw()
    assert frozen.ask("commit", run="r", times=1) == OK
    await store.close()


async def test_a_killed_owner_is_replaced_at_once_however_long_its_lease(
    start: Callable[..., Holder], store: TenantStore
) -> None:
    owner = start(3600.0)
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    with pytest.raises(RunBusyError):
        await store.acquire("r")
    owner.kill()
    assert (await store.acquire("r")).attempts == 1
    await store.close()


async def test_a_blocked_event_loop_costs_no_lease(start: Callable[..., Holder], store: TenantStore) -> None:
    blocked, frozen = start(), start()
    for run_id, owner in {"blocked": blocked, "frozen": frozen}.items():
        assert owner.ask("claim", run=run_id) == OK
        assert owner.ask("commit", run=run_id, times=1) == OK
    assert blocked.ask("block the event loop") == "blocked"
    frozen.freeze()
    # Others could have let their leases end in the time in which this one has.
    await acquired_when_it_can_be(store, "frozen")
    with pytest.raises(RunBusyError):
        await store.acquire("blocked")
    blocked.tell("go on")
    assert blocked.hear() == {"ok": "go on\n"}
    assert blocked.ask("commit", run="blocked", times=1) == OK
    await store.close()


async def test_a_forked_child_keeps_a_lease_of_its_own(start: Callable[..., Holder], store: TenantStore) -> None:
    parent, frozen = start(), start()
    assert parent.ask("claim", run="parent's") == OK
    assert parent.ask("hold in a fork", run="child's") == OK
    assert frozen.ask("claim", run="frozen") == OK
    assert frozen.ask("commit", run="frozen", times=1) == OK
    frozen.freeze()
    await acquired_when_it_can_be(store, "frozen")
    for run_id in ("parent's", "child's"):
        with pytest.raises(RunBusyError):
            await store.acquire(run_id, create=new_run(run_id))
    await store.close()


async def test_a_process_that_copies_its_own_store_keeps_its_leases(
    start: Callable[..., Holder], store: TenantStore, owners: Path, tmp_path: Path
) -> None:
    owner = start(3600.0)
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    assert owner.ask("copy", directory=str(owners), to=str(tmp_path / "backup")) == OK
    with pytest.raises(RunBusyError):
        await store.acquire("r")
    await store.close()


async def test_closing_one_of_several_storages_costs_no_lease(start: Callable[..., Holder], store: TenantStore) -> None:
    owner = start(3600.0)
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    assert owner.ask("open and close another storage", run="s") == OK
    with pytest.raises(RunBusyError):
        await store.acquire("r")
    assert owner.ask("close") == OK
    with pytest.raises(RunBusyError):
        await store.acquire("r")
    assert owner.ask("commit", run="r", times=1) == OK
    assert owner.ask("release", run="r") == OK
    await store.acquire("r")
    await store.close()


async def test_a_forked_child_does_not_keep_its_dead_parent_alive(
    start: Callable[..., Holder], store: TenantStore
) -> None:
    parent = start(3600.0)
    assert parent.ask("claim", run="parent's") == OK
    assert parent.ask("commit", run="parent's", times=1) == OK
    assert parent.ask("hold in a fork", run="child's") == OK
    with pytest.raises(RunBusyError):
        await store.acquire("parent's")
    parent.kill()
    await store.acquire("parent's")
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_runs_of_a_frozen_owner_are_due_when_its_lease_has_expired(
    start: Callable[..., Holder], place: Path
) -> None:
    frozen, living = start(), start()
    for run_id, owner in {"frozen": frozen, "living": living}.items():
        assert owner.ask("claim", run=run_id) == OK
        assert owner.ask("commit", run=run_id, times=1) == OK
    frozen.freeze()
    store = SqliteStore(place)
    assert await due_when_any_are(store) == ["frozen"]
    await store.close()


async def test_a_lost_lease_names_who_holds_it_now() -> None:
    store = MemoryStore()
    run = await RunDriver.start(store, ManualClock(), "r", commits=1)
    await run.release()
    with pytest.raises(LeaseLostError, match="has lost its lease, which nobody holds now"):
        await run.commit()
    await store.acquire("r")
    with pytest.raises(LeaseLostError, match="taken over by another call of this process"):
        await run.commit()
    with pytest.raises(RunBusyError, match="another call of this process"):
        await store.close_run("r", halt=halted())
