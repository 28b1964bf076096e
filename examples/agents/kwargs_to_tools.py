"""Give tools values that no model should see: the user, a connection, a token.

Shows: `function_invocation_kwargs` reach tools as `**kwargs` or through their context, for all agents or for one.
"""

import asyncio
from typing import Any

from perdure import Agent, FunctionInvocationContext, Workflow, WorkflowBuilder, tool
from perdure.testing import ScriptedChatClient, ToolCall


@tool
def find_orders(year: int, **kwargs: Any) -> str:
    """List the orders of the customer."""
    return f"{kwargs['customer']} has ordered 3 lamps in {year}"


@tool
def points(ctx: FunctionInvocationContext) -> str:
    """Return the points that the customer has collected."""
    return f"{ctx.kwargs['customer']} has {ctx.kwargs.get('points', 'no')} points"


def said_by_tools(messages: Any, _: Any) -> str:
    results = [content.result for message in messages for content in message.contents if content.result is not None]
    return "; ".join(results)


def build_workflow() -> Workflow:
    client = ScriptedChatClient([[ToolCall("find_orders", year=2026), ToolCall("points")], said_by_tools])
    clerk = Agent(client, "You know the customers.", name="clerk", tools=[find_orders, points])
    return WorkflowBuilder(name="customers", start_executor=clerk).build()


async def main() -> None:
    print("the model is told of", [list(each.parameters().get("properties", {})) for each in (find_orders, points)])
    for kwargs in ({"customer": "Ada"}, {"clerk": {"customer": "Grace", "points": 12}}):
        result = await build_workflow().run("What do you know of me?", function_invocation_kwargs=kwargs)
        print(result.get_outputs()[0].text)


if __name__ == "__main__":
    asyncio.run(main())
