"""A workflow as an agent, and a session of two messages, the second one in another process.

Shows: a session is plain data that can be saved; the workflow continues the conversation.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perdure import Agent, AgentSession, Message, SqliteCheckpointStorage, WorkflowAgent, WorkflowBuilder
from perdure.testing import ScriptedChatClient


def remembers(messages: Sequence[Message], _: Any) -> str:
    words = [message.text for message in messages if message.role == "user"]
    return f"You said {words[-1]!r}, and {words[0]!r} at first."


def build_agent(directory: Path) -> WorkflowAgent:
    host = Agent(ScriptedChatClient(remembers), "You remember.", name="host")
    storage = SqliteCheckpointStorage(directory / "runs.db")
    return WorkflowBuilder(name="talk", start_executor=host, checkpoint_storage=storage).build().as_agent(name="talk")


async def life(directory: Path, words: str) -> None:
    saved = directory / "session.json"
    agent = build_agent(directory)
    session = AgentSession.from_dict(json.loads(saved.read_text())) if saved.exists() else agent.create_session()
    response = await agent.run(words, session=session)
    print(f"  {response.text}")
    saved.write_text(json.dumps(session.to_dict()))


async def main() -> None:
    with TemporaryDirectory() as directory:
        for number, words in enumerate(("Good morning.", "Do you know me?"), start=1):
            print(f"life {number}: {words}")
            await life(Path(directory), words)


if __name__ == "__main__":
    asyncio.run(main())
