"""A writer, a critic that is an executor and not an agent, and an editor: each gets the conversation so far.

Shows: agents and an executor in one sequence; the outputs of the others as intermediate outputs; an early end.
"""

import asyncio

from perdure import Agent, AgentExecutorResponse, AgentResponse, Executor, Message, Workflow, WorkflowContext, handler
from perdure.orchestrations import SequentialBuilder
from perdure.testing import Script, ScriptedChatClient

SCRIPTS: dict[str, Script] = {
    "writer": lambda messages, _: f"{messages[-1].text} are for people who read.",
    "editor": lambda messages, _: (
        f"I have heard {len(messages) - 1} messages. {messages[-1].text} Then let us print it."
    ),
}
WORDS_MAX = 7


class Critic(Executor):
    """Count the words. It gets an AgentExecutorResponse from an agent, and sends one to the next."""

    @handler
    async def judge(
        self, said: AgentExecutorResponse, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]
    ) -> None:
        words = len(said.agent_response.text.split())
        verdict = "It is short." if words <= WORDS_MAX else f"It is TOO LONG: {words} words."
        answer = AgentResponse(messages=[Message("assistant", [verdict], author_name=self.id)])
        await ctx.yield_output(answer)
        await ctx.send_message(AgentExecutorResponse(self.id, answer, [*said.full_conversation, *answer.messages]))


def is_refused(conversation: list[Message]) -> bool:
    return "TOO LONG" in conversation[-1].text


def build_workflow() -> Workflow:
    client = ScriptedChatClient(SCRIPTS)
    writer = Agent(client, "You write one line.", name="writer")
    editor = Agent(client, "You decide.", name="editor")
    return SequentialBuilder(
        participants=[writer, Critic("critic"), editor],
        termination_condition=is_refused,
        intermediate_output_from=["writer"],
    ).build()


async def main() -> None:
    for task in ("Lamps", "Lamps with a foot and a shade"):
        print(task)
        async for event in build_workflow().run(task, stream=True):
            if event.type in {"output", "intermediate"} and event.data.text:
                print(f"  {event.type} of {event.executor_id}: {event.data.text.strip()}")


if __name__ == "__main__":
    asyncio.run(main())
