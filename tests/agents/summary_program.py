"""A program that is killed while its model answers, after the conversation was summarized."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perdure import Agent, Message, SqliteCheckpointStorage, SummarizationStrategy, WorkflowBuilder
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Sequence


async def main(folder: Path, *, is_killed: bool) -> None:
    """Answer a long conversation, or die in the model call."""

    def summarize(_messages: Sequence[Message], _options: object) -> str:
        with (folder / "summaries").open("a") as log:
            log.write("made\n")
        return "a summary"

    def answer(messages: Sequence[Message], _options: object) -> str:
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return messages[0].text

    strategy = SummarizationStrategy(client=ScriptedChatClient(summarize), target_count=2)
    agent = Agent(ScriptedChatClient(answer), name="agent", compaction_strategy=strategy)
    storage = SqliteCheckpointStorage(str(folder / "runs.db"))
    workflow = WorkflowBuilder(name="long", start_executor=agent, checkpoint_storage=storage).build()
    history = [Message("user", [str(number)]) for number in range(10)]
    result = await workflow.run(history if is_killed else None, run_id="r")
    sys.stdout.write(result.get_outputs()[-1].text)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), is_killed=sys.argv[2] == "killed"))
