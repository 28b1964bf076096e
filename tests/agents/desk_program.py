"""A program that talks to a workflow as an agent, and dies in the middle of the second agent's answer if it is to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import FileCheckpointStorage, SqliteCheckpointStorage, WorkflowBuilder
from perdure.agents import Agent, AgentSession
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents import Message
    from perdure.workflows import WorkflowAgent

KIND, PLACE, FORM, WORDS = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]


def model(name: str) -> ScriptedChatClient:
    def say(messages: Sequence[Message], _: Any) -> str:
        with (PLACE / "asked").open("a") as asked:
            asked.write(f"{name}\n")
        to_die = PLACE / "die"
        if name == "second" and to_die.exists():
            to_die.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{len(messages)}:{messages[-1].text}"

    return ScriptedChatClient(say)


def inner(storage: Any = None) -> WorkflowAgent:
    first, second = (Agent(model(name), name=name) for name in ("first", "second"))
    builder = WorkflowBuilder(name="desk", start_executor=first, checkpoint_storage=storage)
    return builder.add_edge(first, second).build().as_agent()


async def talked(storage: Any) -> str:
    saved = PLACE / "session.json"
    session = AgentSession.from_dict(json.loads(saved.read_text())) if saved.exists() else AgentSession()
    saved.write_text(json.dumps(session.to_dict()))
    response = await inner(storage).run(WORDS, session=session)
    saved.write_text(json.dumps(session.to_dict()))
    return response.text


async def nested(storage: Any) -> str:
    workflow = WorkflowBuilder(name="house", start_executor=inner(), checkpoint_storage=storage).build()
    return "".join(output.text for output in (await workflow.run(WORDS, run_id="r")).get_outputs())


async def main() -> None:
    path = PLACE / "runs"
    async with SqliteCheckpointStorage(path) if KIND == "sqlite" else FileCheckpointStorage(path) as storage:
        sys.stdout.write(await (talked(storage) if FORM == "session" else nested(storage)))


asyncio.run(main())
