"""Draft and review a text, stored as JSON files. The process is killed half-way, and another one continues.

Shows: checkpointing, the workflow store, `resume` by execution id and of the latest execution, in a new process.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from perdure import Message
from perdure.agent_workflows import AgentConfig, AgentWorkflow
from perdure.testing import Script, ScriptedChatClient


def build_workflow(root_directory: str, *, dies: bool) -> AgentWorkflow:
    def draft(_: Sequence[Message], __: Mapping[str, Any]) -> str:
        print("  the model of 'draft' is asked")
        return "Lamps last."

    def review(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
        print("  the model of 'review' is asked", flush=True)
        if dies:
            os._exit(9)  # Like kill -9.
        return f"I have read {messages[-1].text!r}: print it."

    scripts: dict[str, Script] = {"draft": draft, "review": review}
    draft_config = AgentConfig(instructions="You write one line.")
    review_config = AgentConfig(instructions="You say whether a text is good.")
    return (
        AgentWorkflow.create()
        .with_name("DurableReview")
        .with_checkpointing()
        .with_json_workflow_store(root_directory)
        .with_chat_client(ScriptedChatClient(scripts))
        .add_agent("draft", draft_config, output_key="draft")
        .add_agent("review", review_config, input_key="draft")
        .from_("draft")
        .to("review")
        .build()
    )


async def first_life(directory: str) -> None:
    await build_workflow(directory, dies=True).run("Write about lamps.", execution_id="review-1")


async def second_life(directory: str) -> None:
    workflow = build_workflow(directory, dies=False)
    result = await workflow.resume()  # The latest execution. workflow.resume("review-1") does the same here.
    print(f"  {result.execution_id}: {result.final_answer}")
    again = await workflow.resume("review-1")
    print(f"  told again, and nobody was asked: {again.final_answer}")


def main() -> None:
    with TemporaryDirectory() as directory:
        for life in ("first", "second"):
            print(f"the {life} process", flush=True)
            ended = subprocess.run(  # noqa: S603
                [sys.executable, __file__, life, f"{directory}/workflows"], check=False
            )
            print(f"  it has ended with {ended.returncode}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["first", directory]:
            asyncio.run(first_life(directory))
        case ["second", directory]:
            asyncio.run(second_life(directory))
        case _:
            main()
