"""A tool that only the caller can execute: the model calls it, the workflow asks, and the answer is the result.

Shows: a tool without a function is a request of the workflow; the answer is a content, or plain data through the store.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, Content, FunctionTool, SqliteCheckpointStorage, Workflow, WorkflowBuilder
from perdure.testing import Script, ScriptedChatClient, ToolCall

where_is_the_user = FunctionTool(
    name="where_is_the_user",
    description="Where the user is, as their telephone knows it.",
    func=None,
    input_model={"type": "object", "properties": {"precision": {"type": "string"}}},
)

SCRIPT: Script = [
    ToolCall("where_is_the_user", precision="city"),
    lambda messages, _: f"Then take the tram; it stops everywhere in {messages[-1].contents[0].result}.",
]


def build_workflow(path: Path) -> Workflow:
    guide = Agent(ScriptedChatClient(SCRIPT), "You know the way.", name="guide", tools=[where_is_the_user])
    return WorkflowBuilder(name="way", start_executor=guide, checkpoint_storage=SqliteCheckpointStorage(path)).build()


async def main() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "runs.db")
        result = await build_workflow(path).run("How do I get to the station?", run_id="way-1")
        [request] = result.get_request_info_events()
        print(f"the model calls {request.data.name} with {request.data.parse_arguments()}")
        answer = Content.from_function_result(request.data.call_id, result="Oslo")
        result = await build_workflow(path).run(run_id="way-1", responses={request.request_id: answer})
        print(result.get_outputs()[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
