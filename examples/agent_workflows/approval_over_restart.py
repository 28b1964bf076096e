"""Ask a person about a mail; the answer comes the next day, in another process.

Shows: approval of a node's output, requests in the store, an answer from another process, a correction, a denial.
"""

import asyncio
import subprocess
import sys
from tempfile import TemporaryDirectory

from perdure import Agent
from perdure.agent_workflows import AgentWorkflow, Approval, GreaterThan, NodeApprovalRequest
from perdure.testing import ScriptedChatClient

SCHEMA = {
    "title": "Offer",
    "type": "object",
    "properties": {"price": {"type": "number"}, "text": {"type": "string"}},
    "required": ["price", "text"],
}


def build_workflow(database: str) -> AgentWorkflow:
    def offer(*_: object) -> str:
        print("  the model of 'offer' is asked")
        return '{"price": 900, "text": "Nine lamps"}'

    client = ScriptedChatClient({"seller": offer, "mailer": lambda messages, _: f"Sent: {messages[-1].text}"})
    approval = Approval("May this offer be sent?", when=GreaterThan("price", 500))
    return (
        AgentWorkflow.create()
        .with_name("Offers")
        .with_checkpointing()
        .with_sqlite_workflow_store(database)
        .add_agent("offer", Agent(client, name="seller"), structured_output=SCHEMA, approval=approval)
        .add_agent("mail", Agent(client, name="mailer"), template="{{text}} for {{price}}")
        .from_("offer")
        .to("mail")
        .build()
    )


async def ask(database: str) -> None:
    workflow = build_workflow(database)
    for execution_id in ("offer-1", "offer-2"):
        result = await workflow.run("Nine lamps, please.", execution_id=execution_id)
        for request in result.requests.values():
            print(f"  {execution_id} is {result.state}: {request.message} {dict(request.outputs)['price']}")


async def answer(database: str) -> None:
    workflow = build_workflow(database)
    for pending in await workflow.requests():
        is_first = pending.run_id == "offer-1"
        yes = NodeApprovalRequest.approve("not so greedy", resume_data={"price": 450})
        no = NodeApprovalRequest.deny("we have no lamps")
        await workflow.respond(pending.run_id, {pending.request_id: yes if is_first else no}, by="alice")
    for execution_id in ("offer-1", "offer-2"):
        result = await workflow.resume(execution_id)
        print(f"  {execution_id}: success {result.success}: {result}")


def main() -> None:
    with TemporaryDirectory() as directory:
        for day in ("ask", "answer"):
            print(day, flush=True)
            subprocess.run([sys.executable, __file__, day, f"{directory}/workflows.db"], check=True)  # noqa: S603


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask", database]:
            asyncio.run(ask(database))
        case ["answer", database]:
            asyncio.run(answer(database))
        case _:
            main()
