"""A person between two agents rejects the first answer and accepts the second, each time in a new process.

Shows: with_request_info; the request has the whole conversation; the next agent also gets the person's words.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, SqliteCheckpointStorage, Workflow
from perdure.orchestrations import AgentRequestInfoResponse, SequentialBuilder
from perdure.testing import ScriptedChatClient

WRITER = ["Our lamp is bright.", "Our lamp is bright, and lasts for ten years."]
APPROVED = AgentRequestInfoResponse.approve()


def build_workflow(path: Path) -> Workflow:
    writer = Agent(ScriptedChatClient(WRITER), "You write one line.", name="writer")
    translator = Agent(
        ScriptedChatClient(lambda messages, _: f"(in German, after {len(messages) - 1} messages)"),
        "You translate.",
        name="translator",
    )
    builder = SequentialBuilder(participants=[writer, translator], checkpoint_storage=SqliteCheckpointStorage(path))
    return builder.with_request_info(agents=["writer"]).build()


async def main() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "runs.db")
        result = await build_workflow(path).run("A line for our lamp.", run_id="lamp")
        for answer in (AgentRequestInfoResponse.from_strings(["How long will it last?"]), APPROVED):
            (request,) = result.get_request_info_events()
            print(f"{request.source_executor_id}: {request.data.agent_response.text}")
            print(f"  the person: {' '.join(message.text for message in answer.messages) or 'good'}")
            # Build the workflow again, as another process would.
            result = await build_workflow(path).run(run_id="lamp", responses={request.request_id: answer})
        print(*(output.text for output in result.get_outputs()))


if __name__ == "__main__":
    asyncio.run(main())
