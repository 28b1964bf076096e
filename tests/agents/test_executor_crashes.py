"""Agents in a workflow that dies at any store call: side by side in one session, with a tool that needs an approval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.agents.talkers import Model, agent
from tests.workflow.nodes import node

from perdure import InMemoryCheckpointStorage, WorkflowBuilder
from perdure.agents import (
    Agent,
    AgentExecutor,
    AgentExecutorRequest,
    AgentSession,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)
from perdure.testing.crash import sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Workflow
    from perdure.storage import StoreStorage


class CallingModel(FunctionInvocationLayer[Any], Model):
    """A model that has tools."""


@tool(approval_mode="always_require", if_interrupted="rerun")
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def order_payment(messages: Sequence[Message]) -> list[Content] | str:
    results = [content for content in messages[-1].contents if content.type == "function_result"]
    if results:
        return f"done: {results[0].result}"
    return [Content.from_function_call(f"call {len(messages)}", "pay", arguments={"amount": len(messages)})]


def company(storage: Any) -> Workflow:
    """Two advisers at once, and a clerk that hears both and wants to pay; all have one session."""

    async def begin(message: str, ctx: Any) -> None:
        await ctx.send_message(message)

    async def gather(said: list[Any], ctx: Any) -> None:
        messages = [Message("user", [each.agent_response.text]) for each in said]
        await ctx.send_message(AgentExecutorRequest(messages))

    session, start, both = AgentSession(), node("start", begin), node("both", gather)
    left, right = (AgentExecutor(agent(name, Model()), session=session) for name in ("left", "right"))
    clerk = AgentExecutor(Agent(CallingModel(say=order_payment), name="clerk", tools=[pay]), session=session)
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage)
    builder.add_fan_out_edges(start, [left, right]).add_fan_in_edges([left, right], both).add_edge(both, clerk)
    return builder.build()


async def live(storage: StoreStorage) -> list[tuple[str | None, str]]:
    """The run to its end, with all that is asked in it approved; what was said and asked, as it is committed."""
    run = company(storage).start("go", run_id="r")
    await run.result()
    while run.requests:
        await run.respond(dict.fromkeys(run.requests, True))
        await run.result()
    told = [event async for event in storage.events("r")]
    said = [(event.executor_id, event.data.text) for event in told if event.type == "output"]
    return said + [(event.executor_id, event.data.id) for event in told if event.type == "request_info"]


async def test_agents_end_as_if_nothing_had_happened() -> None:
    known: dict[str, StoreStorage] = {}
    # The clerk is shown what both advisers have heard and said, and then what both have told it.
    expected = [("left", "1:go"), ("right", "1:go"), ("clerk", "done: paid 6"), ("clerk", "call 6")]
    swept = await sweep(
        live, storage=lambda name: known.setdefault(name, InMemoryCheckpointStorage()), expected=expected
    )
    assert swept.points > len(swept.calls)
