"""A workflow as an agent that asks: its request is a function call, and the answer is the function's result.

Shows: `request_info` as a function call; a person in the loop together with a session.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import (
    Agent,
    AgentExecutorResponse,
    Content,
    Executor,
    Message,
    SqliteCheckpointStorage,
    WorkflowAgent,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.testing import ScriptedChatClient


@dataclass
class Offer:
    text: str


class Manager(Executor):
    """Let a person see everything before it goes out."""

    @handler
    async def check(self, offer: AgentExecutorResponse, ctx: WorkflowContext) -> None:
        await ctx.request_info(Offer(offer.agent_response.text), bool)

    @response_handler
    async def decide(self, offer: Offer, is_good: bool, ctx: WorkflowContext[None, str]) -> None:  # noqa: FBT001
        await ctx.yield_output(offer.text if is_good else "We make no offer.")


def build_agent(path: Path) -> WorkflowAgent:
    clerk = Agent(ScriptedChatClient(["A lamp for 20 euros."]), "You make offers.", name="clerk")
    manager = Manager("manager")
    builder = WorkflowBuilder(
        name="offers", start_executor=clerk, checkpoint_storage=SqliteCheckpointStorage(path), output_from=[manager]
    )
    return builder.add_edge(clerk, manager).build().as_agent(name="offers")


async def main() -> None:
    with TemporaryDirectory() as directory:
        agent = build_agent(Path(directory, "runs.db"))
        session = agent.create_session()
        response = await agent.run("What does a lamp cost?", session=session)
        [call] = [each for message in response.messages for each in message.contents if each.type == "function_call"]
        asked = WorkflowAgent.RequestInfoFunctionArgs.from_dict(call.parse_arguments() or {})
        print(f"{call.name}: {asked.request_event.data}")
        answer = Message("tool", [Content.from_function_result(asked.request_id, result=True)])
        response = await agent.run(answer, session=session)
        print(response.text)


if __name__ == "__main__":
    asyncio.run(main())
