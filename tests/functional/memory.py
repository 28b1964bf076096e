"""A functional workflow whose agents remember things in its state, by tools. A script that is killed at a given note.

The tools set state in every way: by a step, in their own body, in a thread, by another agent inside of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import (
    Agent,
    FileCheckpointStorage,
    Retry,
    RunContext,
    SqliteCheckpointStorage,
    get_run_context,
    step,
    tool,
    workflow,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from perdure.storage import StoreStorage

NOTES = 19
"""One more than there are in a run that nothing disturbs."""
_notes_left = 0


def note() -> None:
    """A moment in which the process may die."""
    global _notes_left  # noqa: PLW0603 - a process dies as a whole
    _notes_left -= 1
    if _notes_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def remember(text: str) -> None:
    """Add to what is remembered."""
    context = get_run_context()
    assert context is not None
    note()
    context.set_state("all", [*context.get_state("all", []), text])
    note()


@step
async def keep(text: str) -> str:
    """Remember by a step."""
    remember(text)
    return text


@tool(approval_mode="never_require", if_interrupted="rerun")
async def by_step(text: str) -> str:
    """Remember by a step."""
    kept = await keep(text)
    note()
    return kept


@tool(approval_mode="never_require", if_interrupted="rerun")
async def itself(text: str) -> str:
    """Remember in the body of the tool."""
    remember(text)
    return text


@tool(approval_mode="never_require", if_interrupted="rerun")
def in_thread(text: str) -> str:
    """Remember in a thread."""
    remember(text)
    return text


_tried: list[str] = []


@tool(approval_mode="never_require", if_interrupted="rerun", retry=Retry(3, 0))
async def at_last(text: str) -> str:
    """Remember in the second attempt of each life; what the first one has set is not kept."""
    _tried.append(text)
    remember(text if len(_tried) > 1 else f"{text} that is forgotten")
    if len(_tried) == 1:
        raise ConnectionError("once")
    return text


helper = Agent(
    ScriptedChatClient([[ToolCall("by_step", text="of the helper"), ToolCall("itself", text="helped")], "kept"]),
    name="helper",
    tools=[by_step, itself],
)


@tool(approval_mode="never_require", if_interrupted="rerun")
async def let_help(text: str) -> str:
    """Let another agent remember."""
    return (await helper.run(text)).text


agent = Agent(
    ScriptedChatClient(
        [
            [ToolCall("by_step", text="a"), ToolCall("itself", text="b"), ToolCall("in_thread", text="c")],
            [ToolCall("let_help", text="help"), ToolCall("at_last", text="d")],
            "done",
        ]
    ),
    name="keeper",
    tools=[by_step, itself, in_thread, let_help, at_last],
)


@workflow
async def memory(_: str, ctx: RunContext) -> dict[str, Any]:
    """What is remembered: before anybody has, by the agent, and after it."""
    before = ctx.get_state("all", [])
    await agent.run("remember")
    seen = ctx.get_state("all")
    await keep("last")
    answer = await ctx.request_info("well?", str)
    return {"before": before, "seen": sorted(seen), "all": sorted(ctx.get_state("all")), "answer": answer}


def storage_of(kind: str, directory: Path) -> StoreStorage:
    """Where the run is kept."""
    return (
        SqliteCheckpointStorage(directory / "runs.db")
        if kind == "sqlite"
        else FileCheckpointStorage(directory / "runs")
    )


async def main(directory: Path, kind: str) -> None:
    """Begin the run or go on with it, answer it, and print what it returns."""
    async with storage_of(kind, directory) as storage:
        asked = await memory.run("go", run_id="r", checkpoint_storage=storage)
        if asked.get_request_info_events():
            asked = await memory.run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    sys.stdout.write(json.dumps(asked.get_outputs()))


if __name__ == "__main__":
    _notes_left = int(sys.argv[3])
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
