"""A process that saves versions of a definition and prints each number, until it is killed."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path
from typing import Any

from perdure import FileCheckpointStorage, SqliteCheckpointStorage
from perdure.agent_workflows import DefinitionStore


async def main(kind: str, directory: Path) -> None:
    is_file = kind == "file"
    storage = FileCheckpointStorage(directory / "store") if is_file else SqliteCheckpointStorage(directory / "store.db")
    definitions = DefinitionStore(storage)
    for number in itertools.count(1):
        config: dict[str, Any] = {"name": "review", "version": str(number), "agents": {"draft": {"agent": {}}}}
        print(await definitions.save(config), flush=True)  # noqa: T201 - the test reads it


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
