from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosting.flows import fail, office, pass_on, row, shout, until

from perdure import FileCheckpointStorage, Host, SqliteCheckpointStorage

PERDURE = Path(sys.executable).with_name("perdure")


def perdure(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return execute(str(PERDURE), *arguments, "-s", str(store))


def execute(*command: str) -> subprocess.CompletedProcess[str]:
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
    assert "perdure answer 'about rent' VALUE --run ask-1" in perdure(store, "why", "ask-1").stdout
    assert (
        perdure(store, "answer", "about rent", "42", "--run", "ask-1").returncode == 1
    )  # the schema asks for a string
    assert perdure(store, "answer", "about rent", "pay it", "--by", "ann").returncode == 0
    (request,) = json.loads(perdure(store, "requests", "-o", "json").stdout)["requests"]
    assert (request["request_id"], request["answered_by"]) == ("about rent", "ann")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("wait", "ok-1"), 0),
        (("wait", "bad-1"), 4),
        (("wait", "ask-1"), 5),
        (("show", "nope"), 3),
        (("doctor",), 0),
        (("answer", "nope", "x"), 3),
        (("answer", "nope", "x", "--run", "ask-1"), 3),
        (("state", "ok-1", "--at", "99"), 3),
        (("wait", "no-1"), 3),
        (("restore", "ok-1", "--at", "0"), 2),
        (("delete", "ok-1"), 2),
        (("delete",), 2),
        (("delete", "--older-than", "soon"), 2),
        (("runs", "--status", "odd"), 2),
        (("runs", "--tag", "odd"), 2),
        (("export", "ok-1", "file"), 2),
        (("events", "ok-1", "--follow", "-o", "json"), 2),
        (("runs", "--watch"), 2),
        (("fork", "ok-1", "--set", "x=1"), 2),
        (("graph", "nope"), 3),
        (("calls", "nope"), 3),
    ],
)
async def test_exit_codes(store: Path, arguments: tuple[str, ...], code: int) -> None:
    ended = perdure(store, *arguments)
    assert ended.returncode == code, ended.stderr


@pytest.mark.parametrize("command", ["show", "why", "events", "graph", "calls", "state", "store size"])
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


async def test_why_shows_the_frames_of_the_program_alone(store: Path) -> None:
    shown = perdure(store, "why", "bad-1").stdout
    assert "engine/" not in shown
    assert "perdure recover bad-1" in shown


async def test_state_and_differences_are_shown_without_the_program(store: Path) -> None:
    found = json.loads(perdure(store, "state", "ask-1", "-o", "json").stdout)["checkpoint"]
    assert found["requests"]["about rent"]["executor"]
    first, last = f"ask-1@{0}", found["checkpoint_id"]
    changes = json.loads(perdure(store, "diff", first, last, "-o", "json").stdout)["diff"]["changes"]
    assert {"request/about%20rent", "request/about rent"} & {change["path"] for change in changes}
    assert "differ from superstep 0" in perdure(store, "diff", "ask-1", "ok-1").stdout


async def test_a_failed_run_is_recovered_and_fails_again_under_a_host(store: Path) -> None:
    assert perdure(store, "recover", "bad-1").returncode == 0
    assert perdure(store, "wait", "bad-1", "--timeout", "0.1").returncode == 124  # no host is there
    async with SqliteCheckpointStorage(store) as storage:
        assert (await storage.run("bad-1")).status == "blocked"
        host = Host(storage)
        host.register(row("boom", pass_on, fail))
        async with host:
            await until(host, "bad-1", "failed")
    assert "nothing to recover" in perdure(store, "recover", "ok-1").stderr


async def test_a_run_goes_back_to_an_older_checkpoint(store: Path) -> None:
    assert perdure(store, "restore", "ok-1", "--at", "0", "--yes").returncode == 0
    async with SqliteCheckpointStorage(store) as storage:
        assert (await storage.run("ok-1")).checkpoint_id == "ok-1@0"
        host = Host(storage)
        host.register(row("ok", shout))
        async with host:
            await until(host, "ok-1", "idle")


async def test_runs_are_deleted_after_a_dry_run(store: Path) -> None:
    chosen = ("delete", "--status", "failed", "--older-than", "0s")
    assert "bad-1" in perdure(store, *chosen, "--dry-run").stdout
    assert perdure(store, "show", "bad-1").returncode == 0
    assert perdure(store, *chosen, "--yes").returncode == 0
    assert perdure(store, "show", "bad-1").returncode == 3
    assert perdure(store, "show", "ok-1").returncode == 0


async def test_no_user_code_is_imported(store: Path) -> None:
    program = (
        "import sys; from perdure.cli import main; sys.argv = ['perdure', 'why', 'bad-1', '-s', sys.argv[1]]\n"
        "try: main()\n"
        "finally: print(any(name.startswith('tests') for name in sys.modules), file=sys.stderr)"
    )
    ended = execute(sys.executable, "-c", program, str(store))
    assert "LookupError" in ended.stdout
    assert ended.stderr.strip() == "False"


async def test_a_directory_of_files_is_a_store_too(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path / "runs") as storage:
        await row("ok", shout)().run("x", run_id="ok-1", checkpoint_storage=storage)
    assert "ok-1" in perdure(tmp_path / "runs", "runs").stdout
    assert perdure(tmp_path / "runs", "wait", "ok-1").returncode == 0
    assert json.loads(perdure(tmp_path / "runs", "state", "ok-1", "-o", "json").stdout)["schema"] == 1
