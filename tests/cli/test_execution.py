"""Commands that change a store or execute runs, each as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import filled
from tests.cli.shop import host_on, purchase, stock
from tests.cli.test_commands import PERDURE

from perdure.storage import open_storage

ROOT = Path(__file__).parents[2]
APP = ("--app", "tests.cli.shop:app")


def perdure(*arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PERDURE), *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store with a failed run, one that waits and one that is idle."""
    place = f"sqlite:///{tmp_path / 'runs.db'}"
    async with open_storage(place) as storage:
        await purchase().run("lamp", run_id="buy-1", checkpoint_storage=storage)
        await stock().run("lamp", run_id="stock-1", checkpoint_storage=storage)
    return place


async def test_a_form_asks_for_each_field_until_the_answer_fits(url: str) -> None:
    asked = perdure("answer", "approve lamp", "--form", "-s", url, given="perhaps\ny\nfine\n")
    assert asked.returncode == 0, asked.stderr
    assert "desk of run buy-1 asks" in asked.stderr
    async with open_storage(url) as storage, host_on(storage) as host:
        result = await (await host.run("buy-1")).result()
    assert result.get_outputs() == ["lamp: fine!"]


def test_an_answer_and_a_form_exclude_each_other(url: str) -> None:
    assert perdure("answer", "approve lamp", "-s", url).returncode == 2
    assert perdure("answer", "approve lamp", "{}", "--form", "-s", url).returncode == 2


async def test_a_fork_with_another_state_is_executed_through_the_program(url: str) -> None:
    changed = perdure("fork", "stock-1", "--at", "0", "--set", "extra=[1, 2]", "--set", "extra/1=5", *APP, SHOP=url)
    assert changed.returncode == 0, changed.stderr
    async with open_storage(url) as storage:
        (fork,) = await storage.runs(parent="stock-1")
        assert fork.checkpoint_id is not None
        state = (await storage.view(fork.checkpoint_id)).state
        assert (fork.status, state["extra"], state["last"]) == ("idle", [1, 5], "lamp")


async def test_a_fork_without_the_program_waits_for_a_host(url: str) -> None:
    made = perdure("fork", "buy-1", "-s", url)
    assert made.returncode == 0, made.stderr
    async with open_storage(url) as storage:
        (fork,) = await storage.runs(parent="buy-1")
        assert (fork.run_id, fork.status) == (made.stdout.strip(), "waiting")


async def test_an_editor_changes_the_state_of_a_fork(url: str, tmp_path: Path) -> None:
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import json, sys, pathlib\nfile = pathlib.Path(sys.argv[1])\nstate = json.loads(file.read_text())\n"
        "file.write_text(json.dumps({**state, 'last': 'chair'}))\n"
    )
    made = perdure("fork", "stock-1", "--edit", *APP, SHOP=url, VISUAL=f"{sys.executable} {editor}")
    assert made.returncode == 0, made.stderr
    async with open_storage(url) as storage:
        (fork,) = await storage.runs(parent="stock-1")
        assert fork.checkpoint_id is not None
        assert (await storage.view(fork.checkpoint_id)).state["last"] == "chair"
    assert perdure("fork", "stock-1", "--edit", *APP, SHOP=url, VISUAL="false").returncode == 1


async def test_a_cancelled_run_is_recovered_through_the_program(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.cancel("buy-1")
        await purchase().run(run_id="buy-1", checkpoint_storage=storage)
    assert perdure("recover", "buy-1", "-s", url).returncode == 1  # the program is needed
    assert perdure("recover", "buy-1", *APP, SHOP=url).returncode == 5  # and then it waits again


@pytest.mark.parametrize("app", ["tests.cli.shop", "tests.cli.nowhere:app", "tests.cli.shop:HUGE"])
def test_a_program_that_has_no_host_is_refused(url: str, app: str) -> None:
    assert perdure("serve", "--app", app, SHOP=url).returncode == 2


def test_a_directory_of_files_has_no_hosts(tmp_path: Path) -> None:
    refused = perdure("serve", *APP, SHOP=f"file:{tmp_path / 'runs'}")
    assert refused.returncode == 1
    assert "SQLite" in refused.stderr


async def test_a_worker_serves_and_reports_its_health_until_it_is_asked_to_end(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    worker = await asyncio.create_subprocess_exec(
        *(str(PERDURE), "serve", *APP, "--health-port", port),
        cwd=ROOT,
        env={**os.environ, "SHOP": url},
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with open_storage(url) as storage:
        await storage.respond("buy-1", {"approve lamp": {"ok": True, "note": "fine"}})
        async for event in storage.events("buy-1", follow=True):
            if event.type == "output":
                break
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert json.loads(body)["health"]["is_serving"] is True
    worker.send_signal(signal.SIGTERM)
    assert await worker.wait() == 0


@pytest.mark.parametrize("target", ["copy.db", "file:copy"])
def test_copies_show_everything_and_do_not_continue(tmp_path: Path, target: str) -> None:
    source = filled("sqlite")
    place = f"file:{tmp_path / 'copy'}" if target.startswith("file:") else str(tmp_path / target)
    assert perdure("copy", source, place).returncode == 0
    assert perdure("copy", source, place).returncode == 0
    found = json.loads(perdure("runs", "-s", place, "-o", "json", "--order", "oldest").stdout)["runs"]
    assert {each["status"] for each in found} == {"exported"}
    assert found[0]["error"].startswith("it is a copy of a run that was failed: LookupError")
    events = [perdure("events", "order-1", "-s", each, "-o", "jsonl").stdout for each in (source, place)]
    assert events[0].count("\n") == events[1].count("\n")
    assert perdure("recover", "order-1", "-s", place).returncode == 1
    assert perdure("store", "check", "-s", place).returncode == 0


@pytest.mark.parametrize("name", ["runs.db", "file:runs"])
def test_a_store_is_checked_backed_up_and_migrated(tmp_path: Path, name: str) -> None:
    scheme, _, path = name.rpartition(":")
    place = f"file:{tmp_path / path}" if scheme else str(tmp_path / path)
    url = place if scheme else f"sqlite:///{place}"

    async def use() -> None:
        async with open_storage(url) as storage:
            await stock().run("lamp", run_id="stock-1", checkpoint_storage=storage)

    asyncio.run(use())
    assert perdure("store", "migrate", "-s", place).returncode == 0
    assert perdure("store", "check", "-s", place).returncode == 0
    copy = tmp_path / "copy"
    assert perdure("store", "backup", str(copy), "-s", place).returncode == 0
    assert perdure("store", "backup", str(copy), "-s", place).returncode == 1
    assert json.loads(perdure("store", "info", "-s", str(copy), "-o", "json").stdout)["store"]["runs"] == {"idle": 1}
    assert perdure("doctor", "-s", str(copy)).returncode == 0
