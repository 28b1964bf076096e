"""A Magentic team in its own process, which can die during a question to the manager."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.orchestrations.magentic_team import Model, team

from perdure import FileCheckpointStorage, SqliteCheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import Message

KIND, PLACE = sys.argv[1], Path(sys.argv[2])


class NotedModel(Model):
    """Notes each question in a file, and dies once if the file `die` names the question."""

    def __call__(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        answer = super().__call__(messages, options)
        with (PLACE / "asked").open("a") as asked:
            asked.write(f"{self.asked[-1]}\n")
        to_die = PLACE / "die"
        if to_die.exists() and to_die.read_text() == self.asked[-1]:
            to_die.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


async def main() -> None:
    storage = SqliteCheckpointStorage(PLACE / "runs") if KIND == "sqlite" else FileCheckpointStorage(PLACE / "runs")
    async with storage:
        # The script of this life begins anew: what was recorded is not asked for, so the first ledger says all.
        workflow = team(NotedModel(), checkpoint_storage=storage, name="crew")
        first, *later = sys.argv[3:] or [""]
        result = await workflow.run(*filter(None, [first]), run_id="r")
        for task in later:
            result = await workflow.run(task)
        sys.stdout.write("".join(output.text for output in result.get_outputs()))


asyncio.run(main())
