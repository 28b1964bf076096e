"""Two experts in parallel, and a person who reviews both answers before they are combined. One pays with a tool.

Shows: several open requests, answered one after the other; approval of a tool call; a restart between answers.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perdure import Agent, AgentExecutorResponse, SqliteCheckpointStorage, Workflow, WorkflowEvent, tool
from perdure.orchestrations import AgentRequestInfoResponse, ConcurrentBuilder
from perdure.testing import Script, ScriptedChatClient, ToolCall

SCRIPTS: dict[str, Script] = {
    "law": ["Lamps are legal, I think.", "Lamps are legal: I have looked it up."],
    "market": [ToolCall("buy_report", topic="lamps"), "The report says that people want lamps."],
}


@tool(approval_mode="always_require")
def buy_report(topic: str) -> str:
    """Buy a report about a topic."""
    print(f"  buying a report about {topic}")
    return f"People want {topic}."


def build_workflow(path: Path) -> Workflow:
    client = ScriptedChatClient(SCRIPTS)
    law = Agent(client, "You know the law.", name="law")
    market = Agent(client, "You know the market.", name="market", tools=[buy_report])
    builder = ConcurrentBuilder(participants=[law, market], checkpoint_storage=SqliteCheckpointStorage(path))
    return builder.with_request_info().build()


def answer(request: WorkflowEvent[Any]) -> Any:
    """Approve reports. Ask an expert again who only thinks something."""
    if not isinstance(request.data, AgentExecutorResponse):
        print(f"{request.source_executor_id} wants to call {request.data.function_call.name}: yes")
        return True
    text = request.data.agent_response.text
    is_sure = "I think" not in text
    print(f"{request.source_executor_id}: {text} -> {'good' if is_sure else 'look it up'}")
    return AgentRequestInfoResponse.from_strings([] if is_sure else ["Look it up."])


async def main() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "runs.db")
        result = await build_workflow(path).run("Shall we sell lamps?", run_id="lamps")
        waiting = {request.request_id: request for request in result.get_request_info_events()}
        while waiting:
            request = min(waiting.values(), key=lambda each: each.source_executor_id or "")
            del waiting[request.request_id]
            # Only one request is answered. The others wait in the file.
            result = await build_workflow(path).run(run_id="lamps", responses={request.request_id: answer(request)})
            waiting |= {request.request_id: request for request in result.get_request_info_events()}
        print(*(message.text for output in result.get_outputs() for message in output.messages))


if __name__ == "__main__":
    asyncio.run(main())
