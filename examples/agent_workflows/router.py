"""A router chooses who answers, and a condition on an edge sends hard cases to a person.

Shows: a router agent with handoffs and a default, structured output, conditions, skipped nodes and the reasons.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from perdure import Agent, Message
from perdure.agent_workflows import AgentWorkflow, WorkflowAgentSkippedEvent, WorkflowEdgeTraversedEvent
from perdure.testing import Reply, Script, ScriptedChatClient, ToolCall


class Refund(BaseModel):
    amount: float
    reason: str


def choose(messages: Sequence[Message], _: Mapping[str, Any]) -> Reply:
    text = messages[-1].text
    return ToolCall("handoff_to_billing") if "money" in text else ToolCall("handoff_to_help")


def refund(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    text = messages[-1].text
    return Refund(amount=900 if "all" in text else 9, reason="It broke.").model_dump_json()


SCRIPTS: dict[str, Script] = {
    "router": choose,
    "billing": refund,
    "help": ["Have you turned it off and on?"],
    "clerk": lambda messages, _: f"Paid out: {messages[-1].text}",
    "boss": lambda messages, _: f"I have to think about it: {messages[-1].text}",
}


def build_workflow() -> AgentWorkflow:
    client = ScriptedChatClient(SCRIPTS)
    return (
        AgentWorkflow.create()
        .with_name("Support")
        .add_router_agent("router", Agent(client, name="router"))
        .with_handoff("billing", "It is about money.")
        .with_handoff("help", "Anything else.")
        .with_default_handoff("help")
        .add_agent("billing", Agent(client, name="billing"), reads="request", structured_output=Refund)
        .add_agent("help", Agent(client, name="help"), reads="request")
        .add_agent("clerk", Agent(client, name="clerk"), template="{{amount}} because: {{reason}}")
        .add_agent("boss", Agent(client, name="boss"), template="{{amount}} because: {{reason}}")
        .from_("billing")
        .to("clerk")
        .when_at_most("amount", 100)
        .to("boss")
        .as_default()
        .build()
    )


async def main() -> None:
    workflow = build_workflow()
    workflow.subscribe(WorkflowEdgeTraversedEvent, lambda e: print(f"  {e.source} -> {e.target}: {e.condition}"))
    workflow.subscribe(WorkflowAgentSkippedEvent, lambda e: print(f"  not {e.node_id}"))
    for request in ("It does not work.", "I want my money back.", "I want all my money back."):
        print(request)
        print(f"  {(await workflow.run(request)).final_answer}")


if __name__ == "__main__":
    asyncio.run(main())
