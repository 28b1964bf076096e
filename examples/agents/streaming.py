"""Stream an agent in a workflow. When a turn is emitted again, it comes in one piece, and the model is not called.

Shows: updates are live and not stored; the AgentResponse is stored.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, AgentResponseUpdate, SqliteCheckpointStorage, WorkflowBuilder
from perdure.testing import ScriptedChatClient

POEM = "Slowly, silently, now the moon walks the night in her silver shoon."


async def listen(path: Path) -> None:
    client = ScriptedChatClient([POEM])
    poet = Agent(client, "You write one line.", name="poet")
    workflow = WorkflowBuilder(name="poem", start_executor=poet).build()
    storage = SqliteCheckpointStorage(path)
    # The id makes it one run: the second call finds it and emits its output again.
    async for event in workflow.run("The moon, please.", run_id="poem-1", checkpoint_storage=storage, stream=True):
        if event.type == "output" and isinstance(event.data, AgentResponseUpdate) and event.data.text:
            print(f"  {event.data.text!r}")
    print(f"  calls of the model: {len(client.calls)}")


async def main() -> None:
    with TemporaryDirectory() as directory:
        print("as it comes")
        await listen(Path(directory, "runs.db"))
        print("once more, from the store")
        await listen(Path(directory, "runs.db"))


if __name__ == "__main__":
    asyncio.run(main())
