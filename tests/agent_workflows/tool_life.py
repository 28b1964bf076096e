"""One process of a workflow whose agent has another workflow as a tool; it may kill itself inside that one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perdure import Agent
from perdure.agent_workflows import AgentWorkflow, NodeApprovalRequest
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Message
    from perdure.testing import Reply


def built(directory: Path, *, is_kept: bool, asks: bool, dies: bool) -> AgentWorkflow:
    def note(who: str) -> None:
        with (directory / "asked").open("a") as told:
            told.write(f"{who}\n")

    def first(*_: object) -> str:
        note("first")
        return "one"

    def second(*_: object) -> str:
        note("second")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return "two"

    def boss(messages: Sequence[Message], _: object) -> Reply:
        note("boss")
        told = messages[-1].contents[0]
        return f"done: {told.result}" if told.type == "function_result" else ToolCall("Inner", input="work")

    client = ScriptedChatClient({"first": first, "second": second, "boss": boss})
    inner = AgentWorkflow.create().with_name("Inner")
    inner.add_agent("first", Agent(client, name="first"), approval="May it?" if asks else None)
    inner.add_agent("second", Agent(client, name="second")).from_("first").to("second")
    if is_kept:
        inner.with_checkpointing().with_sqlite_workflow_store(directory / "inner.db")
    tool = inner.build().as_tool(approval_mode="never_require")
    outer = AgentWorkflow.create().with_name("Outer").with_checkpointing()
    outer.with_sqlite_workflow_store(directory / "outer.db")
    return outer.add_agent("boss", Agent(client, name="boss", tools=[tool])).build()


async def main(directory: Path, what: str, *options: str) -> None:
    workflow = built(directory, is_kept="kept" in options, asks="asks" in options, dies="dies" in options)
    if what == "run":
        result = await workflow.run("go", execution_id="one")
    elif what == "resume":
        result = await workflow.resume("one")
    else:
        answer = NodeApprovalRequest.approve() if what == "approve" else NodeApprovalRequest.deny("not this one")
        [request] = await workflow.requests("one")
        result = await workflow.resume("one", responses={request.request_id: answer})
    print(f"{result.state}|{result.final_answer}")  # noqa: T201 - the test reads it


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
