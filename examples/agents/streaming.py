"""An agent in a workflow, as it speaks. A turn that is told again is told as a whole, and the model is not asked.

Shows: updates are live and are not kept; what is kept is the AgentResponse.
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
    # The id makes it one run: the second time it is found, and tells what it has said.
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
