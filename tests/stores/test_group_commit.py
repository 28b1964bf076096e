"""Writes that wait are written together: in how many statements, what of it is synced, and who hears of the end."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from perdure.errors import LeaseLostError, StaleHeadError, WorkflowCheckpointException
from perdure.records import Halt, LatestOnly, Retention
from perdure.storage import SqliteDatabase, SqliteStore
from perdure.storage.retention import PRUNED_BEFORE_COLLECTION_MIN
from perdure.testing.stores import ManualClock, RunDriver, command, events, finished, new_run, text_blob

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import Durability

COMMENT = re.compile(r"^(--.*(\n|$))+")
EXPORTED = Halt("exported", "2024-01-01T00:00:00+00:00", "for a test")


class Traced(SqliteDatabase):
    """A database that remembers what was asked of it."""

    said: list[str]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._connection.set_trace_callback(self.said.append)


class Scene:
    """A store whose statements are known."""

    def __init__(self, path: Path, *, durability: Durability = "commit") -> None:
        said: list[str] = []

        class Fresh(Traced):
            pass

        Fresh.said = self._said = said
        self.store = SqliteStore(path / "runs.db", database=Fresh, durability=durability)

    async def runs(self, *names: str) -> list[RunDriver]:
        """Runs that have begun."""
        runs = [await RunDriver.start(self.store, ManualClock(), name) for name in names]
        for run in runs:
            await run.commit({"a": text_blob("0")})
        self._said.clear()
        return runs

    def said(self) -> list[str]:
        """The first words of what was asked since this was called last, but for what triggers do."""
        asked = [COMMENT.sub("", each) for each in self._said]
        self._said.clear()
        return [each.split()[0] for each in asked if each]

    def pragmas(self) -> list[str]:
        return [each for each in self._said if each.startswith("PRAGMA synchronous")]


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_commit_of_a_known_run_is_three_statements_in_one_transaction(scene: Scene) -> None:
    (run,) = await scene.runs("r")
    for number in range(3):
        await run.commit(events=events(f"{number}"))
        assert scene.said() == ["BEGIN", "UPDATE", "INSERT", "INSERT", "COMMIT"]
    await scene.store.close()


async def test_runs_that_commit_at_once_share_a_transaction(scene: Scene) -> None:
    runs = await scene.runs(*(f"run {number}" for number in range(50)))
    for number in range(3):
        await asyncio.gather(*(run.commit(events=events(f"{number}")) for run in runs))
        said = scene.said()
        assert (said.count("BEGIN"), said.count("COMMIT"), said.count("UPDATE")) == (1, 1, 50)
        assert said.count("SELECT") == 0
    assert len(await scene.store.ids()) == 200
    await scene.store.close()


async def test_refused_write_in_a_group_does_not_affect_the_others(scene: Scene) -> None:
    stale, lost, doubled, sound = await scene.runs("stale", "lost", "doubled", "sound")
    before = stale.next_commit({"a": text_blob("of the stale one")})
    await stale.commit()
    await scene.store.acquire("lost", takeover=True)
    await sound.commit(checkpoint_id="mine")
    scene.said()
    ends = await asyncio.gather(
        stale.write(before),
        lost.commit(),
        doubled.commit(checkpoint_id="mine"),
        sound.commit({"a": text_blob("written")}),
        return_exceptions=True,
    )
    assert [type(end) for end in ends[:3]] == [StaleHeadError, LeaseLostError, WorkflowCheckpointException]
    assert "'mine'" in str(ends[2])
    said = scene.said()
    assert (said.count("BEGIN"), said.count("COMMIT"), said.count("ROLLBACK")) == (1, 1, 0)
    assert (await sound.record()).head == "sound@2"
    assert (await doubled.record()).head == "doubled@0"
    assert list(await scene.store.blobs([text_blob("of the stale one").hash])) == []
    await doubled.commit()
    await scene.store.close()


async def test_two_in_a_group_that_want_the_same_name_have_it_once(scene: Scene) -> None:
    one, other, third = await scene.runs("one", "other", "third")
    ends = await asyncio.gather(
        one.commit(checkpoint_id="mine"), other.commit(checkpoint_id="mine"), third.commit(), return_exceptions=True
    )
    assert [isinstance(end, WorkflowCheckpointException) for end in ends] == [False, True, False]
    assert (await scene.store.manifest("mine")).run_id == "one"
    assert (await other.record()).head == "other@0"
    await other.commit()
    await scene.store.close()


@pytest.mark.parametrize("is_known", [True, False])
async def test_checkpoint_id_of_another_commit_in_the_group_is_refused(scene: Scene, *, is_known: bool) -> None:
    one, other = await scene.runs("one", "other")
    if not is_known:
        # Whoever has just come back to a run reads it first.
        await scene.store.close()
    ends = await asyncio.gather(one.commit(), other.commit(checkpoint_id="one@1"), return_exceptions=True)
    assert ends[0] == "one@1"
    assert isinstance(ends[1], WorkflowCheckpointException)
    assert "'one@1'" in str(ends[1])
    assert list(await scene.store.ids()) == ["one@0", "other@0", "one@1"]
    assert (await other.record()).head == "other@0"
    await scene.store.close()


async def test_checkpoint_id_that_looks_like_that_of_another_run_is_found(scene: Scene) -> None:
    one, other = await scene.runs("one", "other")
    await one.commit(checkpoint_id="other@1")
    with pytest.raises(WorkflowCheckpointException, match="'other@1'"):
        await other.commit()
    assert (await scene.store.manifest("other@1")).run_id == "one"
    with pytest.raises(WorkflowCheckpointException, match="'other@0'"):
        await one.commit(checkpoint_id="other@0")
    assert (await scene.store.manifest("other@0")).run_id == "other"
    await scene.store.close()


async def test_a_fork_of_a_checkpoint_with_a_name_keeps_its_run(scene: Scene) -> None:
    (run,) = await scene.runs("r")
    await run.commit(checkpoint_id="mine")
    await run.commit()
    await run.release()
    await scene.store.acquire("fork", create=new_run("fork", parent="mine"))
    with pytest.raises(WorkflowCheckpointException, match="'fork', a fork of it"):
        await scene.store.remove("r")
    await scene.store.close()


async def test_records_and_a_commit_of_one_run_come_in_their_order(scene: Scene) -> None:
    (run,) = await scene.runs("r")
    notes = [run.note(finished(f"{number}", "", text_blob(f"{number}")), durable=False) for number in range(20)]
    await asyncio.gather(*notes, run.commit())
    said = scene.said()
    assert (said.count("BEGIN"), said.count("COMMIT")) == (1, 1)
    assert list(await scene.store.journal("r")) == []
    await run.note(finished("a", "next"))
    assert await run.noted() == ["a=next"]
    await scene.store.close()


async def test_commit_returns_the_newest_waiting_command(scene: Scene) -> None:
    (run,) = await scene.runs("r")
    (first, second) = await run.post(command("a"), command("b"))
    await run.commit(consumed=("a",))
    assert run.waiting == second > first
    await run.commit(consumed=("b",))
    assert run.waiting == 0
    await scene.store.close()


async def test_caller_cancelled_before_its_turn_writes_nothing(scene: Scene) -> None:
    run, other = await scene.runs("r", "other")
    task = asyncio.create_task(run.commit())
    await asyncio.sleep(0)
    task.cancel()
    await other.commit()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(await scene.store.ids()) == ["r@0", "other@0", "other@1"]
    await scene.store.close()


async def test_write_during_a_close_is_finished_and_reported(scene: Scene) -> None:
    (run,) = await scene.runs("r")
    task = asyncio.create_task(run.commit())
    await asyncio.sleep(0)
    await scene.store.close()
    assert await task == "r@1"


async def test_all_waiting_writers_get_the_error_of_a_store_that_does_not_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    runs = [await RunDriver.start(store, ManualClock(), name) for name in "ab"]
    await store.close()
    (tmp_path / "runs.db").unlink()
    (tmp_path / "runs.db").mkdir()
    ends = await asyncio.gather(*(run.commit() for run in runs), return_exceptions=True)
    assert [str(tmp_path / "runs.db") in str(end) for end in ends] == [True, True]


class Startless(threading.Thread):
    """A thread for which the system has no room."""

    @override
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


async def test_all_waiting_writers_get_the_error_if_no_thread_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    runs = [await RunDriver.start(store, ManualClock(), name) for name in "ab"]
    await store.close()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Startless)
        ends = await asyncio.gather(*(run.commit() for run in runs), return_exceptions=True)
    assert [str(end) for end in ends] == ["can't start new thread"] * 2
    assert [await run.commit() for run in runs] == ["a@0", "b@0"]
    await store.close()


async def test_commit_is_reported_as_written_although_no_collection_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "runs.db", retention=Retention(checkpoints=LatestOnly()), durability="os")
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    monkeypatch.setattr(threading, "Thread", Startless)
    for number in range(1, 2 * PRUNED_BEFORE_COLLECTION_MIN):
        assert await run.commit() == f"r@{number}"
    monkeypatch.undo()
    await store.close()


def test_several_event_loops_write_to_one_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db", durability="os")

    def in_a_loop(name: str) -> None:
        asyncio.run(advance(name))

    async def advance(name: str) -> None:
        runs = [await RunDriver.start(store, ManualClock(), f"{name} {number}") for number in range(5)]
        for _ in range(10):
            await asyncio.gather(*(run.commit() for run in runs))

    threads = [threading.Thread(target=in_a_loop, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(asyncio.run(store.ids())) == 150
    asyncio.run(store.close())


@pytest.mark.parametrize(("durability", "mode"), [("commit", "FULL"), ("os", "NORMAL")])
async def test_durability_chooses_the_sync_but_an_export_is_always_synced(
    tmp_path: Path, durability: Durability, mode: str
) -> None:
    scene = Scene(tmp_path, durability=durability)
    (run,) = await scene.runs("r")
    await run.note(finished("a"), durable=False)
    await run.commit()
    await run.post(command("a"))
    expected = ["NORMAL", "FULL"] if mode == "FULL" else []
    assert scene.pragmas() == [f"PRAGMA synchronous = {each}" for each in expected]
    await run.release(halt=EXPORTED)
    assert scene.pragmas()[-1] == "PRAGMA synchronous = FULL"
    await scene.store.close()


def test_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'never'"):
        SqliteStore(tmp_path / "runs.db", durability="never")  # pyright: ignore[reportArgumentType] - refused
