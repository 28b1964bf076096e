"""What a program waits for before it can begin."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Durability

if TYPE_CHECKING:
    from pathlib import Path

    from bench.peer import Peer

_STOPWATCH = """
import time
began = time.perf_counter()
{statement}
print(time.perf_counter() - began)
"""


@dataclass(frozen=True, slots=True)
class Import:
    """The names that a workflow is built with are imported, in a new process each time."""

    title: str = "import"
    unit: str = "import"

    def durability(self, peer: Peer) -> Durability | None:
        """There is nothing to be kept."""
        return None if peer.imports is None else Durability.NONE

    async def seconds(self, peer: Peer, directory: Path) -> float:
        """The seconds of the import, without those in which the interpreter starts."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _STOPWATCH.format(statement=peer.imports),
            stdout=asyncio.subprocess.PIPE,
            cwd=directory,
            env=_environment(),
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise AssertionError(f"{peer.imports!r} failed in a new process; its error stands above")
        return float(output)


def _environment() -> dict[str, str]:
    """Ours, but byte code is kept: pip has compiled the peers, and the first round compiles a checkout of perdure."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
