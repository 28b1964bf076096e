"""A workflow as an agent, with checkpoints: it fails in the middle of a turn, and continues from the last checkpoint.

Shows: `checkpoint_storage` and `checkpoint_id` of `run`; a recorded response is not asked for again.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, SqliteCheckpointStorage, WorkflowAgent, WorkflowBuilder
from perdure.testing import Script, ScriptedChatClient

WRITER = ["Tides come twice a day."]
CHECKER: Script = [ConnectionError("the model of the checker is not to be reached"), "Right: twice."]


def build_agent(client: ScriptedChatClient) -> WorkflowAgent:
    writer = Agent(client, "You write.", name="writer")
    checker = Agent(client, "You check.", name="checker")
    return WorkflowBuilder(name="tides", start_executor=writer).add_edge(writer, checker).build().as_agent(name="tides")


async def main() -> None:
    with TemporaryDirectory() as directory:
        storage = SqliteCheckpointStorage(Path(directory, "runs.db"))
        client = ScriptedChatClient({"writer": WRITER, "checker": CHECKER})
        try:
            await build_agent(client).run("Tides, please.", checkpoint_storage=storage)
        except ConnectionError as error:
            print(f"failed: {error}")
        print("asked:", *(call.agent for call in client.calls))

        saved = await storage.list_checkpoints(workflow_name="tides")
        print(f"{len(saved)} checkpoints; from the last one, with an agent built anew:")
        response = await build_agent(client).run(checkpoint_id=saved[-1].checkpoint_id, checkpoint_storage=storage)
        print(f"  {response.text}")
        print("asked:", *(call.agent for call in client.calls))


if __name__ == "__main__":
    asyncio.run(main())
