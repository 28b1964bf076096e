"""Three agents in parallel, and one that combines their answers.

Shows: fan-out and fan-in with agents; the answers come in the order of the edges, not of completion.
"""

import asyncio

from perdure import (
    Agent,
    AgentExecutorRequest,
    AgentExecutorResponse,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from perdure.testing import Script, ScriptedChatClient

SCRIPTS: dict[str, Script] = {
    "market": ["People want lamps."],
    "law": ["Lamps are legal."],
    "money": ["Lamps are cheap."],
    "summary": lambda messages, _: f"In short: {messages[-1].text}",
}


@executor(id="dispatch")
async def dispatch(question: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
    await ctx.send_message(AgentExecutorRequest([Message("user", [question])]))


@executor(id="gather")
async def gather(answers: list[AgentExecutorResponse], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
    told = " ".join(answer.agent_response.text for answer in answers)
    await ctx.send_message(AgentExecutorRequest([Message("user", [told])]))


def build_workflow() -> Workflow:
    client = ScriptedChatClient(SCRIPTS)
    experts = [Agent(client, f"You know about {name}.", name=name) for name in ("market", "law", "money")]
    summary = Agent(client, "You are brief.", name="summary")
    return (
        WorkflowBuilder(name="experts", start_executor=dispatch, output_from=[summary])
        .add_fan_out_edges(dispatch, experts)
        .add_fan_in_edges(experts, gather)
        .add_edge(gather, summary)
        .build()
    )


async def main() -> None:
    result = await build_workflow().run("Shall we sell lamps?")
    print(*(response.text for response in result.get_outputs()))


if __name__ == "__main__":
    asyncio.run(main())
