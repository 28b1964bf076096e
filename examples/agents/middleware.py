"""Three kinds of middleware: around an agent's turn, around each model call, around each tool call.

Shows: the order of the three, and a middleware that answers itself instead of making the call.
"""

import asyncio
from collections.abc import Awaitable, Callable

from perdure import Agent, AgentContext, ChatContext, FunctionInvocationContext, WorkflowBuilder, tool
from perdure.testing import ScriptedChatClient, ToolCall

CallNext = Callable[[], Awaitable[None]]


@tool
def transfer(euros: int) -> str:
    """Send money."""
    print(f"      sending {euros} euros")
    return f"{euros} euros are sent"


async def tells_turns(context: AgentContext, call_next: CallNext) -> None:
    print(f"turn of {context.agent.name} begins")
    await call_next()
    print(f"turn of {context.agent.name} ends")


async def tells_models(context: ChatContext, call_next: CallNext) -> None:
    print(f"  the model is shown {len(context.messages)} messages")
    await call_next()


async def sets_a_limit(context: FunctionInvocationContext, call_next: CallNext) -> None:
    print(f"    {context.function.name} is called")
    if context.arguments["euros"] > 100:
        context.result = "refused: more than 100 euros"
    else:
        await call_next()


async def main() -> None:
    script = [ToolCall("transfer", euros=5000), ToolCall("transfer", euros=50), "I could send 50 euros only."]
    cashier = Agent(
        ScriptedChatClient(script),
        "You handle money.",
        name="cashier",
        tools=[transfer],
        middleware=[tells_turns, tells_models, sets_a_limit],
    )
    result = await WorkflowBuilder(name="cash", start_executor=cashier).build().run("Send 5000 euros, or what you can.")
    print(result.get_outputs()[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
