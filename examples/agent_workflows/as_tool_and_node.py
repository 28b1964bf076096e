"""An agent workflow as a tool that needs approval, and as a node of a graph.

Shows: `as_tool` with approval, `as_executor` in a `WorkflowBuilder` graph, `as_agent`.
"""

import asyncio

from perdure import Agent, Executor, WorkflowBuilder, WorkflowContext, handler
from perdure.agent_workflows import AgentWorkflow
from perdure.testing import ScriptedChatClient, ToolCall


def review() -> AgentWorkflow:
    client = ScriptedChatClient(
        {
            "drafter": lambda messages, _: f"{messages[-1].text} last.",
            "reviewer": lambda messages, _: f"{messages[-1].text} (reviewed)",
        }
    )
    return (
        AgentWorkflow.create()
        .with_name("Review")
        .with_description("Writes a line about something, and has it reviewed.")
        .add_agent("draft", Agent(client, name="drafter"))
        .add_agent("review", Agent(client, name="reviewer"))
        .from_("draft")
        .to("review")
        .build()
    )


async def as_tool() -> None:
    client = ScriptedChatClient([ToolCall("Review", input="Lamps"), "Here you are."])
    editor = Agent(client, name="editor", tools=[review().as_tool()])
    session = editor.create_session()
    asking = await editor.run("A line about lamps, please.", session=session)
    [request] = asking.user_input_requests
    call = request.function_call
    print(f"may it be called? {call and call.name}({call and call.arguments})")
    answer = await editor.run(request.to_function_approval_response(approved=True), session=session)
    print(f"the model was told: {client.calls[-1].messages[-1].contents[0].result}")
    print(answer.text)


class Shout(Executor):
    @handler
    async def shout(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(text.upper())


async def as_node() -> None:
    node = review().as_executor("review")
    graph = WorkflowBuilder(start_executor=node).add_edge(node, Shout("shout")).build()
    print((await graph.run("Lamps")).get_outputs())


async def as_agent() -> None:
    agent = review().as_agent("colleague")
    print((await agent.run("Tables")).text)


async def main() -> None:
    await as_tool()
    await as_node()
    await as_agent()


if __name__ == "__main__":
    asyncio.run(main())
