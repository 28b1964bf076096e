"""A help desk: triage listens to the customer and hands over to a specialist. A person approves refunds.

Shows: handoff tools, allowed handoffs, requests to the customer, approval of a tool call after a handoff. Each answer
goes to a workflow that is built again, as another process would do.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perdure import Agent, SqliteCheckpointStorage, Workflow, WorkflowRunResult, tool
from perdure.orchestrations import HandoffAgentUserRequest, HandoffBuilder, TextMentioned
from perdure.testing import ScriptedChatClient, ToolCall

SCRIPT = {
    "triage": [["Refunds will help you.", ToolCall("handoff_to_refunds")]],
    "refunds": [
        "What is the number of your order?",
        ToolCall("refund", order=42, euros=20),
        "You get 20 euros back. Goodbye!",
    ],
}
CUSTOMER = ["Order 42."]


@tool(approval_mode="always_require")
def refund(order: int, euros: int) -> str:
    """Give money back for an order."""
    print(f"  refunding {euros} euros for order {order}")
    return "refunded"


def build_workflow(path: Path) -> Workflow:
    client = ScriptedChatClient(SCRIPT)
    triage = Agent(client, "You find out who can help.", name="triage")
    refunds = Agent(client, "You give money back.", name="refunds", description="Knows about money.", tools=[refund])
    returns = Agent(client, "You take things back.", name="returns", description="Knows about parcels.")
    builder = HandoffBuilder(
        name="help-desk",
        participants=[triage, refunds, returns],
        termination_condition=TextMentioned("Goodbye"),
        checkpoint_storage=SqliteCheckpointStorage(path),
    )
    builder.with_start_agent(triage)
    builder.add_handoff(triage, [refunds, returns]).add_handoff(refunds, [triage]).add_handoff(returns, [refunds])
    return builder.build()


def show(result: WorkflowRunResult) -> None:
    for event in result:
        if event.type == "output" and event.data.text:
            print(f"{event.executor_id}: {event.data.text}")
        elif event.type == "handoff_sent":
            print(f"  {event.data.source} hands over to {event.data.target}")


def answers_to(result: WorkflowRunResult, said: list[str]) -> dict[str, Any]:
    """Return the next words of the customer for a question, and an approval for a call."""
    answers: dict[str, Any] = {}
    for request in result.get_request_info_events():
        if isinstance(request.data, HandoffAgentUserRequest):
            text = said.pop(0)
            print(f"customer: {text}")
            answers[request.request_id] = request.data.create_response(text)
        else:
            call = request.data.function_call
            print(f"  may {call.name} be called with {call.parse_arguments()}? yes")
            answers[request.request_id] = request.data.to_function_approval_response(approved=True)
    return answers


async def main() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "runs.db")
        print("customer: My lamp is broken, I want my money back.")
        said = list(CUSTOMER)
        result = await build_workflow(path).run("My lamp is broken, I want my money back.", run_id="desk-1")
        show(result)
        while answers := answers_to(result, said):
            result = await build_workflow(path).run(run_id="desk-1", responses=answers)
            show(result)
        print(f"the conversation is over: {result.get_final_state().value}")


if __name__ == "__main__":
    asyncio.run(main())
