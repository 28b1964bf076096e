"""`docs/guide/operating.md`, typed in by an operator: three workers on PostgreSQL and the command, nothing else.

PERDURE_SNAPSHOTS=write writes the output into the page. Times, processes and paths are replaced by fixed ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.test_snapshots import normalised
from tests.postgres_server import needs_postgres, shared_server

from perdure.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.storage import StoreStorage

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "operating.md"
BLOCK = re.compile(r"^```(?P<kind>python|console|sh)\n(?P<text>.*?)^```\n", re.DOTALL | re.MULTILINE)
WORKERS = 3


class Service:
    """The workers of a shop in a directory, and a shell in it."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        programs = str(Path(sys.executable).parent)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PERDURE_STORE": url,
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }
        self._workers: list[subprocess.Popen[bytes]] = []

    def deploy(self, command: str) -> None:
        """End the workers as a supervisor does, and start others. Return once they have done what they can."""
        self.stop()
        for _ in range(WORKERS):
            worker = subprocess.Popen(
                ["/bin/sh", "-c", f"exec env {command}"],
                cwd=self._directory,
                env=self._environment,
                stderr=subprocess.DEVNULL,
            )
            self._workers.append(worker)

    def stop(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            assert worker.wait(60) == 0
        self._workers.clear()

    async def settle(self, release: int) -> None:
        """Wait until all workers of a release are there, and no run moves any more."""
        async with open_storage(self._url, read_only=True) as storage:
            while not await self._is_settled(storage, release):  # noqa: ASYNC110 - nothing tells of a new host
                await asyncio.sleep(0.2)

    @staticmethod
    async def _is_settled(storage: StoreStorage, release: int) -> bool:
        hosts = [each.workflows["order"] for each in await storage.hosts()]
        runs = await storage.runs()
        is_tried = all(each.blocked is None or len(each.blocked) == WORKERS for each in runs)
        return hosts == [release] * WORKERS and is_tried and all(each.status != "running" for each in runs)

    def shell(self, command: str) -> str:
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        return ended.stdout


@contextlib.contextmanager
def service(directory: Path) -> Generator[Service]:
    found = Service(directory, shared_server().fresh_database())
    try:
        yield found
    finally:
        found.stop()


def typed_in(block: str, shop: Service) -> str:
    """Return a block of the page with the output that its commands have."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    text = "".join(f"{each}\n{normalised(shop.shell(each.removeprefix('$ ')))}" for each in commands)
    text = re.sub(r'File "[^"]*/shop.py"', 'File "/srv/shop/shop.py"', text)
    return re.sub(r"^(ok +versions +).*$", r"\1perdure 0.1.0, Python 3.13.1", text, flags=re.MULTILINE)


@needs_postgres
def test_an_operator_resolves_everything_with_the_command_alone(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    with service(tmp_path) as shop:

        def follow(found: re.Match[str]) -> str:
            text = found["text"]
            match found["kind"]:
                case "python":
                    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
                case "sh":
                    shop.deploy(text.splitlines()[-1])
                    asyncio.run(shop.settle(int(text.partition("RELEASE=")[2].split()[0])))
                case _:
                    text = typed_in(text, shop)
            return f"```{found['kind']}\n{text}```\n"

        followed = BLOCK.sub(follow, page)
    if os.environ.get("PERDURE_SNAPSHOTS") == "write":
        PAGE.write_text(followed, encoding="utf-8")
    assert followed == PAGE.read_text(encoding="utf-8")
