"""What other processes advance: it is neither due nor removed while they live."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from test_processes import OK, Child

from perdure.errors import RunBusyError
from perdure.storage import FileStore, SqliteStore
from perdure.testing.stores import command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence
    from pathlib import Path

    from perdure.storage import TenantStore

SOME_TIME = "2024-05-01T10:00:00+00:00"


@pytest.fixture(params=["sqlite", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Path:
    return tmp_path / ("runs.db" if kind == "sqlite" else "runs")


@pytest.fixture
async def store(kind: str, place: Path) -> AsyncGenerator[TenantStore]:
    store = SqliteStore(place) if kind == "sqlite" else FileStore(place)
    yield store
    await store.close()


@pytest.fixture
def start(kind: str, place: Path) -> Generator[Callable[[], Child]]:
    with contextlib.ExitStack() as children:
        yield lambda: children.enter_context(Child(kind, place))


async def due(store: TenantStore) -> Sequence[str]:
    assert isinstance(store, SqliteStore)
    return [each.record.run_id for each in await store.due(at=SOME_TIME, workflow_names=["flow"], limit=9)]


def at_work(owner: Child) -> Child:
    """One who holds a run that has a checkpoint."""
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    return owner


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_runs_of_a_living_process_are_not_due(start: Callable[[], Child], store: TenantStore) -> None:
    owner = at_work(start())
    await store.post("r", command("a"))
    assert await due(store) == []
    assert owner.ask("release", run="r") == OK
    assert await due(store) == ["r"]


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_runs_of_a_killed_process_are_due(start: Callable[[], Child], store: TenantStore) -> None:
    owner = at_work(start())
    assert await due(store) == []
    owner.kill()
    assert await due(store) == ["r"]
    lease = await store.acquire("r")
    assert await due(store) == []
    await store.release(lease)


async def test_each_process_that_dies_of_a_run_is_counted(start: Callable[[], Child], store: TenantStore) -> None:
    owner = at_work(start())
    for attempts in (1, 2, 3):
        owner.kill()
        owner = start()
        assert owner.ask("claim", run="r") == OK
        record = await store.run("r")
        assert record is not None
        assert record.attempts == attempts
    owner.kill()
    assert (await store.acquire("r")).attempts == 4


async def test_a_run_is_not_removed_under_the_hands_of_another_process(
    start: Callable[[], Child], store: TenantStore
) -> None:
    owner = at_work(start())
    with pytest.raises(RunBusyError, match=f"process {owner.pid} on "):
        await store.remove("r")
    assert owner.ask("commit", run="r", times=1) == OK
    assert list(await store.ids()) == ["r@0", "r@1"]


async def test_takeover_removes_a_run_of_another_process(start: Callable[[], Child], store: TenantStore) -> None:
    owner = at_work(start())
    assert await store.remove("r", takeover=True) is True
    assert owner.ask("commit", run="r", times=1)["error"] in {"StaleHeadError", "LeaseLostError"}
    assert owner.ask("note", run="r", keys=["a"], durable=True)["error"] in {"StaleHeadError", "LeaseLostError"}
    assert (await store.run("r"), list(await store.ids())) == (None, [])


async def test_the_run_of_a_killed_process_is_removed_at_once(start: Callable[[], Child], store: TenantStore) -> None:
    owner = at_work(start())
    owner.kill()
    assert await store.remove("r") is True
    assert await store.run("r") is None


async def test_a_token_from_elsewhere_replaces_a_living_process(start: Callable[[], Child], store: TenantStore) -> None:
    owner = at_work(start())
    lease = await store.acquire("r", token=1_000_000)
    assert owner.ask("commit", run="r", times=1)["error"] == "LeaseLostError"
    await store.release(lease)
    assert owner.ask("claim", run="r") == OK


async def test_a_run_can_be_archived_while_another_process_advances_it(
    start: Callable[[], Child], store: TenantStore
) -> None:
    owner = at_work(start())
    archive = await store.archive("r")
    assert (archive.record.head, archive.record.owner) == ("r@0", None)
    assert owner.ask("commit", run="r", times=1) == OK
