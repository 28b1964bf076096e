"""Agents that work without a user: each continues by itself until it hands over, or its turns are used up.

Shows: autonomous mode with prompts and limits, a stream of the responses, and a resume that calls no model again: here
the writer's connection fails, and a workflow that is built again continues. It first emits the committed responses,
each in one piece.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, FileCheckpointStorage, Workflow
from perdure.orchestrations import HandoffBuilder, SpeakerWas
from perdure.testing import ScriptedChatClient, ToolCall

RESEARCH = ["Owls hunt at night.", "They hear a mouse under snow.", ["I know enough.", ToolCall("handoff_to_writer")]]


def build_workflow(path: Path, *, is_line_good: bool) -> tuple[Workflow, ScriptedChatClient]:
    article = "Owls: night hunters with good ears."
    client = ScriptedChatClient(
        {"researcher": RESEARCH, "writer": [article if is_line_good else ConnectionError("the line broke")]}
    )
    researcher = Agent(client, "You find out.", name="researcher")
    writer = Agent(client, "You write.", name="writer", description="Writes when enough is known.")
    builder = HandoffBuilder(name="article", participants=[researcher, writer]).with_start_agent(researcher)
    builder.with_autonomous_mode(
        agents=[researcher], prompts={"researcher": "Find out more."}, turn_limits={"researcher": 5}
    )
    builder.with_termination_condition(SpeakerWas("writer")).with_checkpointing(FileCheckpointStorage(path))
    return builder.build(), client


async def life(path: Path, *, is_line_good: bool) -> None:
    workflow, client = build_workflow(path, is_line_good=is_line_good)
    try:
        stream = workflow.run("Owls", run_id="owls-1", stream=True)
        async for event in stream:
            if event.type == "output" and event.data.text:
                print(f"  {event.executor_id}: {event.data.text}")
            elif event.type == "handoff_sent":
                print(f"  {event.data.source} hands over to {event.data.target}")
    except ConnectionError as error:
        print(f"  {error}")
    print(f"  asked: {' '.join(call.agent for call in client.calls)}")


async def main() -> None:
    with TemporaryDirectory() as directory:
        for number, is_line_good in enumerate([False, True], start=1):
            print(f"life {number}")
            await life(Path(directory), is_line_good=is_line_good)


if __name__ == "__main__":
    asyncio.run(main())
