"""An agent leads the chat: it chooses the next speaker, and concludes. The first attempt fails half-way.

Shows: an agent as orchestrator; a response that names nobody, which is reported to its model; a second attempt that
calls no model again that has answered.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, SqliteCheckpointStorage, Workflow
from perdure.orchestrations import AgentOrchestrationOutput, GroupChatBuilder
from perdure.testing import Reply, ScriptedChatClient


def asks(name: str) -> AgentOrchestrationOutput:
    return AgentOrchestrationOutput(terminate=False, reason="it is their turn", next_speaker=name)


def ends(last_word: str) -> AgentOrchestrationOutput:
    return AgentOrchestrationOutput(terminate=True, reason="all is said", final_message=last_word)


SCRIPTS: dict[str, list[Reply]] = {
    "host": [asks("the historian"), asks("historian"), asks("biologist"), ends("Owls are old, and hear well.")],
    "historian": ["Owls stood on Greek coins."],
    "biologist": ["Owls hear a mouse under the snow."],
}


def build_workflow(client: ScriptedChatClient, storage: SqliteCheckpointStorage) -> Workflow:
    return GroupChatBuilder(
        participants=[
            Agent(client, "You know history.", name="historian", description="Knows what was."),
            Agent(client, "You know animals.", name="biologist", description="Knows what lives."),
        ],
        orchestrator_agent=Agent(client, "You lead a talk.", name="host"),
        max_rounds=10,
        checkpoint_storage=storage,
        name="talk",
    ).build()


async def life(path: Path, *, is_failing: bool) -> None:
    scripts = dict(SCRIPTS)
    if is_failing:
        scripts["biologist"] = [ConnectionError("the biologist is not to be reached")]
    client = ScriptedChatClient(scripts)
    async with SqliteCheckpointStorage(path) as storage:
        try:
            result = await build_workflow(client, storage).run("Talk about owls.", run_id="owls-1")
            print(f"  {result.get_outputs()[-1].text}")
        except ConnectionError as error:
            print(f"  {error}")
    print("  asked:", *(call.agent for call in client.calls))


async def main() -> None:
    with TemporaryDirectory() as directory:
        for number, is_failing in enumerate((True, False), start=1):
            print(f"life {number}")
            await life(Path(directory, "runs.db"), is_failing=is_failing)


if __name__ == "__main__":
    asyncio.run(main())
