"""Waiting and cancelling over the lives of real processes: killed while the run sleeps, cancelled from elsewhere."""

from __future__ import annotations

import ast
import asyncio
import signal
from subprocess import PIPE, TimeoutExpired
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm
from tests.waiting.lives import live
from tests.waiting.scenes import RUN_ID

from perdure import FileCheckpointStorage, SqliteCheckpointStorage
from perdure.errors import StepUnsettledError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KINDS = ["file", "sqlite"]
LOOK_SECONDS = 0.01


def command(kind: str, directory: Path, name: str) -> Sequence[str]:
    return ["-m", "tests.waiting.lives", kind, str(directory), name, "0"]


def die(kind: str, directory: Path, name: str) -> None:
    """A life that is killed."""
    ended = warm.run(*command(kind, directory, name), timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def lived(kind: str, directory: Path, name: str, hours: float) -> tuple[str, list[Any]]:
    """A life that ends by itself: how the run stands then, and its outputs."""
    return asyncio.run(live(kind, directory, name, hours))


def effects(directory: Path) -> list[str]:
    return (directory / "effects").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["sleeping", "sleeping_inside"])
def test_a_run_whose_process_died_in_its_sleep_wakes_in_another_when_it_is_time(
    kind: str, name: str, tmp_path: Path
) -> None:
    die(kind, tmp_path, name)
    assert lived(kind, tmp_path, name, 0.5) == ("SLEEPING", [])
    assert lived(kind, tmp_path, name, 1) == ("IDLE", [["FIRST", "SECOND"]])
    assert effects(tmp_path) == ["first", "second"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_delayed_message_outlasts_the_process_that_sent_it(kind: str, tmp_path: Path) -> None:
    die(kind, tmp_path, "delayed")
    assert lived(kind, tmp_path, "delayed", 0.5) == ("SLEEPING", [])
    assert lived(kind, tmp_path, "delayed", 3) == ("IDLE", ["SENT"])
    assert effects(tmp_path) == ["sent"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hours", [0.5, 2])
def test_what_had_finished_at_the_crash_is_not_done_again_though_a_sleeper_wakes_first(
    kind: str, hours: float, tmp_path: Path
) -> None:
    die(kind, tmp_path, "beside")
    assert effects(tmp_path) == ["worked", "worked"]
    lived(kind, tmp_path, "beside", hours)
    assert lived(kind, tmp_path, "beside", 3)[0] == "IDLE"
    assert sorted(effects(tmp_path)) == ["slept", "survived", "worked", "worked"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_another_process_drives_is_cancelled_with_the_store_alone(kind: str, tmp_path: Path) -> None:
    with warm.start(*command(kind, tmp_path, "stuck"), stdout=PIPE) as process:
        while not (tmp_path / "waiting").exists():
            with pytest.raises(TimeoutExpired):
                process.wait(LOOK_SECONDS)
        asyncio.run(_cancel(kind, tmp_path))
        told, _ = process.communicate(timeout=30)
    assert ast.literal_eval(told)[0] == "CANCELLED"
    assert sorted(effects(tmp_path)) == ["step", "worked"]
    assert lived(kind, tmp_path, "stuck", 1) == ("IDLE", ["WORKED", "STEP"])
    assert sorted(effects(tmp_path)) == ["step", "worked"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("decision", "outputs", "done"),
    [
        ({"action": "rerun"}, [["FIRST", "PAID"]], ["first", "paid"]),
        ({"action": "done", "result": "receipt"}, [["FIRST", "receipt"]], ["first"]),
        ({"action": "fail"}, None, ["first"]),
    ],
)
def test_a_payment_that_was_interrupted_is_settled_by_whoever_is_asked_with_the_store_alone(
    kind: str, decision: dict[str, str], outputs: list[Any] | None, done: list[str], tmp_path: Path
) -> None:
    die(kind, tmp_path, "paying")
    assert lived(kind, tmp_path, "paying", 1) == ("IDLE_WITH_PENDING_REQUESTS", [])
    asyncio.run(_decide(kind, tmp_path, decision))
    if outputs is None:
        with pytest.raises(StepUnsettledError, match="'pay'"):
            lived(kind, tmp_path, "paying", 2)
    else:
        assert lived(kind, tmp_path, "paying", 2) == ("IDLE", outputs)
    assert effects(tmp_path) == done


def _storage(kind: str, directory: Path) -> FileCheckpointStorage | SqliteCheckpointStorage:
    if kind == "file":
        return FileCheckpointStorage(directory / "runs")
    return SqliteCheckpointStorage(directory / "runs.db")


async def _cancel(kind: str, directory: Path) -> None:
    async with _storage(kind, directory) as storage:
        await storage.cancel(RUN_ID)


async def _decide(kind: str, directory: Path, decision: dict[str, str]) -> None:
    async with _storage(kind, directory) as storage:
        [request] = await storage.requests(RUN_ID)
        assert (request.executor_id, request.data.name) == ("node", "pay")
        await storage.respond(RUN_ID, {request.request_id: decision}, by="alice")
