"""Two agents with one session: each knows the messages of the other.

Shows: executors that get the same session share it, also in a workflow that is built again.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perdure import (
    Agent,
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentSession,
    Message,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunResult,
    executor,
)
from perdure.testing import ScriptedChatClient


def known(messages: Sequence[Message], _: Any) -> str:
    return f"I know of {len([each for each in messages if each.role != 'system'])} messages"


@executor(id="quiet")
async def quiet(_: AgentExecutorResponse, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
    # Nothing is passed on: the second agent knows the conversation from the session.
    await ctx.send_message(AgentExecutorRequest([Message("user", ["Your turn."])]))


def build_workflow(storage: SqliteCheckpointStorage) -> Workflow:
    client, session = ScriptedChatClient(known), AgentSession()
    first = AgentExecutor(Agent(client, "You speak first.", name="first"), session=session)
    second = AgentExecutor(Agent(client, "You speak second.", name="second"), session=session)
    return (
        WorkflowBuilder(name="talk", start_executor=first, checkpoint_storage=storage)
        .add_chain([first, quiet, second])
        .build()
    )


def tell(result: WorkflowRunResult) -> None:
    print("a turn, in a workflow built anew")
    for response in result.get_outputs()[-2:]:
        print(f"  {response.messages[-1].author_name}: {response.text}")


async def main() -> None:
    with TemporaryDirectory() as directory:
        storage = SqliteCheckpointStorage(Path(directory, "runs.db"))
        tell(await build_workflow(storage).run("Hello.", run_id="talk-1"))
        # The next turn: a message for the run, and a new workflow object that gets only the run id.
        await storage.send("talk-1", "And now?")
        tell(await build_workflow(storage).run(run_id="talk-1"))


if __name__ == "__main__":
    asyncio.run(main())
