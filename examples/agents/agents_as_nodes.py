"""Two agents as nodes of a workflow: one writes, the other reviews.

Shows: an agent is a node; the next one gets the conversation so far; the output of a turn is an AgentResponse. Replace
the scripted model by `OpenAIChatClient()` to use a real one.
"""

import asyncio

from perdure import Agent, Workflow, WorkflowBuilder
from perdure.testing import Script, ScriptedChatClient

SCRIPTS: dict[str, Script] = {
    "writer": ["Owls hear a mouse under the snow."],
    "reviewer": lambda messages, _: f"Of {len(messages)} messages I know; the last is good: {messages[-1].text}",
}


def build_workflow() -> Workflow:
    client = ScriptedChatClient(SCRIPTS)
    writer = Agent(client, "You write one sentence.", name="writer")
    reviewer = Agent(client, "You review what was written.", name="reviewer")
    return WorkflowBuilder(name="owls", start_executor=writer).add_edge(writer, reviewer).build()


async def main() -> None:
    result = await build_workflow().run("Write about owls.")
    for response in result.get_outputs():
        print(f"{response.messages[-1].author_name}: {response.text}")


if __name__ == "__main__":
    asyncio.run(main())
