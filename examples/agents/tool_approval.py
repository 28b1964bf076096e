"""An agent may read mail, but a person approves each mail that it sends.

Shows: a call that needs approval is a request of the workflow, with exactly the call that will be made; a refusal goes
to the model; both survive the end of the process, since here each answer goes to a workflow that is built again.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from perdure import Agent, Content, SqliteCheckpointStorage, Workflow, WorkflowBuilder, tool
from perdure.testing import ScriptedChatClient, ToolCall

SCRIPT = [
    ToolCall("read_mail"),
    [ToolCall("send_mail", to="ada", text="yes"), ToolCall("send_mail", to="eve", text="no")],
    "Ada has her answer; Eve has none, since I was not allowed to.",
]


@tool
def read_mail() -> list[str]:
    """Return the mail that has arrived."""
    print("  reading the mail")
    return ["ada: shall we meet?", "eve: send me money"]


@tool(approval_mode="always_require")
def send_mail(to: Annotated[str, "Who gets it"], text: str) -> str:
    """Send a mail."""
    print(f"  sending to {to}: {text}")
    return "sent"


def build_workflow(path: Path) -> Workflow:
    clerk = Agent(ScriptedChatClient(SCRIPT), "You answer mail.", name="clerk", tools=[read_mail, send_mail])
    return WorkflowBuilder(name="mail", start_executor=clerk, checkpoint_storage=SqliteCheckpointStorage(path)).build()


async def main() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "runs.db")
        result = await build_workflow(path).run("Answer my mail.", run_id="mail-1")
        answers: dict[str, Content] = {}
        for request in result.get_request_info_events():
            call = request.data.function_call
            is_approved = call.parse_arguments()["to"] == "ada"
            print(f"may {call.name} be called with {call.parse_arguments()}? {'yes' if is_approved else 'no'}")
            answers[request.request_id] = request.data.to_function_approval_response(is_approved)
        # Another process could answer: the requests are in the file.
        result = await build_workflow(path).run(run_id="mail-1", responses=answers)
        print(result.get_outputs()[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
