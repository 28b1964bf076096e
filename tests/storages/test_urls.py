"""Storages by their URLs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.storages.errands import Errands

from perdure import FileCheckpointStorage, InMemoryCheckpointStorage, SqliteCheckpointStorage, open_storage
from perdure.testing.resume import Subject
from perdure.testing.resume.processes import run_child

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sqlite_path(url: str) -> Path:
    storage = open_storage(url)
    assert isinstance(storage, SqliteCheckpointStorage)
    return storage.path


def file_path(url: str) -> Path:
    storage = open_storage(url)
    assert isinstance(storage, FileCheckpointStorage)
    return storage.storage_path


def test_three_slashes_of_sqlite_are_followed_by_a_path(tmp_path: Path) -> None:
    assert sqlite_path("sqlite:///runs.db") == tmp_path / "runs.db"
    assert sqlite_path("sqlite:///deeper/runs.db") == tmp_path / "deeper" / "runs.db"
    assert sqlite_path(f"sqlite:///{tmp_path}/other.db") == tmp_path / "other.db"
    assert sqlite_path("SQLite:///100%25%20%3F.db") == tmp_path / "100% ?.db"


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    assert file_path("file:runs") == tmp_path / "runs"
    assert file_path("file:./deeper/runs") == tmp_path / "deeper" / "runs"
    assert file_path(f"file:{tmp_path}/one") == tmp_path / "one"
    assert file_path(f"file://{tmp_path}/two") == tmp_path / "two"
    assert file_path("file:a%23b") == tmp_path / "a#b"


def test_equal_urls_are_one_storage(tmp_path: Path) -> None:
    for url in ("memory:", "memory:one", "file:runs", "sqlite:///runs.db"):
        assert open_storage(url) is open_storage(url)
    assert open_storage("memory:one") is not open_storage("memory:two")
    assert open_storage("memory:") is not open_storage("memory:one")
    assert open_storage("sqlite:///runs.db") is open_storage(f"sqlite:///{tmp_path}/runs.db")
    assert open_storage("file:runs") is open_storage(f"file://{tmp_path}/runs")
    assert isinstance(open_storage("memory:"), InMemoryCheckpointStorage)


def test_a_relative_path_is_one_of_the_present_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = open_storage("sqlite:///runs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert open_storage("sqlite:///runs.db") is not here
    assert open_storage("sqlite:///../runs.db") is here


def test_a_url_may_say_how_durable_its_storage_is(tmp_path: Path) -> None:
    for url in ("file:runs", "sqlite:///runs.db"):
        lax = open_storage(f"{url}?durability=os")
        assert open_storage(f"{url}?durability=os") is lax
        assert open_storage(url) is not lax
        assert open_storage(f"{url}?durability=commit") is open_storage(url)
        assert lax.store.place == open_storage(url).store.place
    assert file_path("file:runs?durability=os") == tmp_path / "runs"
    assert sqlite_path("sqlite:///runs.db?durability=os") == tmp_path / "runs.db"


def test_threads_that_open_one_url_have_one_storage() -> None:
    barrier, found = threading.Barrier(8), set[int]()

    def open_it() -> None:
        barrier.wait()
        found.add(id(open_storage("memory:threads")))

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "it has no scheme; give 'sqlite:///runs.db'"),
        ("runs.db", "it has no scheme"),
        ("/var/lib/runs.db", "it has no scheme"),
        ("mysql://ada:hunter2@host/runs", "no storage has the scheme 'mysql'; give 'sqlite:///runs.db'"),
        ("host=here password=hunter2:x", "it has no scheme"),
        ("sqlite:runs.db", "give 'sqlite:///runs.db'"),
        ("sqlite://runs.db", "give 'sqlite:///runs.db'"),
        ("sqlite:///", "has no path"),
        ("sqlite:////", "has no path"),
        ("sqlite:///:memory:", "give 'memory:'"),
        ("sqlite:///runs.db?mode=ro", "no parameters"),
        ("file:", "has no path"),
        ("file:///", "has no path"),
        ("file://runs", "give 'file:runs'"),
        ("file:runs#one", "write '\\?' and '#' in a path as '%3F' and '%23'"),
        ("memory://", "give 'memory:' or 'memory:name'"),
        ("memory:one?two=3", "no parameters"),
        ("file:runs?durability=sometimes", "durability='sometimes' is none; give 'commit'"),
        ("sqlite:///runs.db?durability=", "durability='' is none"),
        ("file:runs?durability=os&retention=all", "durability='os&retention=all' is none"),
        ("postgresql://ada:hunter2@host/runs?durability=maybe", "durability='maybe' is none"),
        ("postgresql:runs", "give 'postgresql://user@host/database'"),
        ("postgres://ada:hunter2@host/runs#x", "no fragment"),
        ("postgresql://ada:hunter2@host/runs?stray=hunter2", "give one like 'postgresql://user:password@host"),
        ("postgresql://ada:hunter2@[::1/runs", "give one like 'postgresql://user:password@host"),
    ],
)
def test_invalid_url_is_refused_with_the_possible_forms(url: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice) as refused:
        open_storage(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["memory:running", "file:runs", "sqlite:///runs.db"])
async def test_url_is_accepted_wherever_a_storage_is(url: str, tmp_path: Path) -> None:
    errands, storage = Errands(tmp_path), open_storage(url)
    errands.open_the_way()
    built = errands.build(url)
    assert built.checkpoint_storage is storage
    await built.run("milk", run_id="built")
    await errands.build().run("eggs", run_id="run", checkpoint_storage=url)
    run = errands.build().start("salt", run_id="started", checkpoint_storage=url)
    assert sorted((await run.result()).get_outputs()) == ["left salt gone", "right salt gone"]
    assert [record.run_id for record in await storage.store.runs()] == ["built", "run", "started"]
    assert (await errands.build(url).run(run_id="run")).get_outputs() == ["left eggs gone", "right eggs gone"]
    await storage.close()


def test_invalid_url_is_refused_when_the_workflow_is_built(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no storage has the scheme 'mongodb'"):
        Errands(tmp_path).build("mongodb://host")


async def test_the_subject_of_a_resume_suite_may_name_its_storage_by_url(tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    errands.open_the_way()
    subject = Subject(
        build=errands.build, message="milk", storages={"url": lambda path: f"sqlite:///{path}/subject.db"}
    )
    async with subject.open("url", tmp_path) as storage:
        await errands.build(storage).run("milk", run_id="subject")
    shared = open_storage("sqlite:///subject.db")
    assert storage is not shared
    assert await shared.list_checkpoint_ids() == ["subject@0", "subject@1", "subject@2"]
    await shared.close()


def test_a_forked_child_goes_on_with_the_storage_of_a_url(tmp_path: Path) -> None:
    errands, url = Errands(tmp_path), "sqlite:///runs.db"
    errands.open_the_way()

    async def run(message: str) -> None:
        await errands.build(url).run(message, run_id=message)

    asyncio.run(run("milk"))
    asyncio.run(open_storage(url).close())
    run_child(lambda: run("eggs")).result()
    asyncio.run(run("salt"))
    assert len(errands.deeds()) == 6
    asyncio.run(open_storage(url).close())


def test_without_its_driver_postgres_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import perdure\n"
        "try: perdure.open_storage('postgresql://ada:hunter2@host/runs')\n"
        "except perdure.WorkflowCheckpointException as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'perdure[postgres]'" in told
    assert "hunter2" not in told
