"""The time of an import."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from bench.peer import Durability, Installs, Store
from bench.work import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.peer import Peer
    from bench.work import Room

_STOPWATCH = """
import time
began = time.perf_counter()
{statement}
print(time.perf_counter() - began)
"""


@dataclass(frozen=True, slots=True)
class Import:
    """The names that a workflow is built with are imported, in a new process each time, where nothing else is."""

    key: str
    pythons: Mapping[str, Path] = field(hash=False)
    """By the name of a peer, the interpreter of the environment into which it alone was installed."""
    title: str = "import of the names that a workflow is built with"
    unit: str = "import"
    stores: Sequence[Store] = (Store.NONE,)

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return NONE: nothing is stored."""
        return Durability.NONE if peer.name in self.pythons and store is Store.NONE else None

    def small(self) -> Self:
        """It is small; the first time compiles what pip has not."""
        return self

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """The seconds of the import, without those in which the interpreter starts."""
        assert isinstance(peer, Installs), "others have no interpreter"
        process = await asyncio.create_subprocess_exec(
            self.pythons[peer.name],
            "-c",
            _STOPWATCH.format(statement=peer.imports),
            stdout=asyncio.subprocess.PIPE,
            cwd=room.place.directory,
            env=_environment(),
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise AssertionError(f"{peer.imports!r} failed in a new process; its error stands above")
        return Reading(float(output))


def _environment() -> dict[str, str]:
    """Ours, but byte code is kept, and what is importable here is not importable there."""
    left_out = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH"}
    return {name: value for name, value in os.environ.items() if name not in left_out}
