"""A writer and a critic repeat until the critic is content, within a limit.

Shows: an edge that goes back, reading the output of a later node, the limit of a loop, and what happens at the limit.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from perdure import Agent, Message
from perdure.agent_workflows import END, START, AgentWorkflow, IterationLimitError, WorkflowAgentCompletedEvent
from perdure.testing import Script, ScriptedChatClient


class Verdict(BaseModel):
    good: bool
    remark: str


def write(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    text = messages[-1].text
    return "Lamps" + " last" * (text.count("longer") + text.count("last"))


def judge(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    text = messages[-1].text
    is_good = text.count("last") >= 2
    return Verdict(good=is_good, remark="good" if is_good else f"longer than {text!r}").model_dump_json()


def build_workflow(limit: int) -> AgentWorkflow:
    scripts: dict[str, Script] = {"writer": write, "critic": judge}
    client = ScriptedChatClient(scripts)
    return (
        AgentWorkflow.create()
        .with_name("Writing")
        .with_max_iterations(limit)
        .add_agent("write", Agent(client, name="writer"), template="{{input}} {{critic.remark?}}")
        .add_agent("critic", Agent(client, name="critic"), structured_output=Verdict)
        .from_(START)
        .to("write")
        .from_("write")
        .to("critic")
        .from_("critic")
        .to("write")
        .when_equals("good", False)  # noqa: FBT003
        .to(END)
        .as_default()
        .build()
    )


def tell(event: WorkflowAgentCompletedEvent) -> None:
    print(f"  pass {event.iteration}, {event.node_id}: {event.outputs.get('answer') or event.outputs['remark']}")


async def main() -> None:
    for limit in (5, 2):
        print(f"at most {limit} passes")
        workflow = build_workflow(limit)
        workflow.subscribe(WorkflowAgentCompletedEvent, tell)
        try:
            print(f"  {(await workflow.run('About lamps.')).outputs['write.answer']}")
        except IterationLimitError as error:
            print(f"  {type(error).__name__}: {str(error).partition(':')[0]}")


if __name__ == "__main__":
    asyncio.run(main())
