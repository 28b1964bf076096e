from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosting.flows import fail, office, pass_on, row, shout, until

from perdure import Host, SqliteCheckpointStorage

PERDURE = Path(sys.executable).with_name("perdure")


def perdure(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PERDURE), *arguments, "-s", str(store)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A store with a failed run, one that waits for a person, and one that is idle."""
    path = tmp_path / "runs.db"
    async with SqliteCheckpointStorage(path) as storage:
        host = Host(storage)
        for factory in (row("boom", pass_on, fail), office, row("ok", shout)):
            host.register(factory)
        async with host:
            await host.start("boom", "sku\x1b[31m\u202e[red]", run_id="bad-1", tags={"customer": "acme"})
            await host.start("office", "rent", run_id="ask-1")
            await host.start("ok", "x", run_id="ok-1")
            for run_id, status in (("bad-1", "failed"), ("ask-1", "waiting"), ("ok-1", "idle")):
                await until(host, run_id, status)  # pyright: ignore[reportArgumentType] - a literal
    return path


async def test_listing_filters_and_is_stable_json(store: Path) -> None:
    found = json.loads(perdure(store, "runs", "-o", "json", "--tag", "customer=acme").stdout)
    assert found["schema"] == 1
    assert [(run["run_id"], run["status"]) for run in found["runs"]] == [("bad-1", "failed")]
    lines = perdure(store, "runs", "-o", "jsonl", "--order", "oldest", "--fields", "run_id").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"run_id": each} for each in ("bad-1", "ask-1", "ok-1")]


async def test_why_shows_the_traceback_and_neutralises_hostile_text(store: Path) -> None:
    told = perdure(store, "why", "bad-1")
    assert told.returncode == 0
    assert "LookupError: no sku\\x1b[31m\\u202e[red]" in told.stdout
    assert "in fail" in told.stdout
    assert "\x1b" not in told.stdout + told.stderr
    assert "\u202e" not in told.stdout + told.stderr


async def test_why_names_the_next_command_and_the_answer_is_stored(store: Path) -> None:
    assert "perdure answer ask-1 'about rent' VALUE" in perdure(store, "why", "ask-1").stdout
    assert perdure(store, "answer", "ask-1", "about rent", "42").returncode == 1  # the schema asks for a string
    assert perdure(store, "answer", "ask-1", "about rent", "pay it", "--by", "ann").returncode == 0
    (request,) = json.loads(perdure(store, "requests", "-o", "json").stdout)["requests"]
    assert (request["request_id"], request["answered_by"]) == ("about rent", "ann")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("wait", "ok-1"), 0),
        (("wait", "bad-1"), 4),
        (("wait", "ask-1"), 5),
        (("show", "nope"), 3),
        (("answer", "ask-1", "nope", "x"), 3),
        (("runs", "--status", "odd"), 2),
        (("runs", "--tag", "odd"), 2),
        (("export", "ok-1", "file"), 2),
    ],
)
async def test_exit_codes(store: Path, arguments: tuple[str, ...], code: int) -> None:
    ended = perdure(store, *arguments)
    assert ended.returncode == code, ended.stderr


@pytest.mark.parametrize("command", ["show", "why", "events", "checkpoints", "tree", "store size"])
async def test_reading_commands_print_json(store: Path, command: str) -> None:
    found = json.loads(perdure(store, *command.split(), "bad-1", "-o", "json").stdout)
    assert found["schema"] == 1


def test_a_missing_store_is_not_made(tmp_path: Path) -> None:
    assert perdure(tmp_path / "none.db", "runs").returncode == 1
    assert not list(tmp_path.iterdir())


def test_a_project_file_can_not_choose_a_server(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.perdure]\nstore = "postgresql://elsewhere/x"\n')
    ended = subprocess.run([str(PERDURE), "runs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "local path" in ended.stderr
