"""A workflow as JSON: write it by hand, build it, draw it, and load it from its store.

Shows: `from_json`, agents as data, `to_mermaid`, definitions that JSON can't express, `AgentWorkflow.load`.
"""

import asyncio
import json

from perdure import InMemoryCheckpointStorage
from perdure.agent_workflows import AgentWorkflow, AgentWorkflowBuildError, EdgeContext
from perdure.testing import ScriptedChatClient

DEFINITION = """
{
  "name": "Review",
  "agents": {
    "draft": {"agent": {"instructions": "You write one line."}, "output": {"type": "text", "key": "draft"}},
    "review": {"agent": {"instructions": "You say whether it is good."}, "input_key": "draft"},
    "print": {"agent": {"instructions": "You print."}, "template": "{{draft}} ({{review.answer}})"}
  },
  "edges": [
    {"from": ["draft"], "to": ["review"]},
    {"from": ["review"], "to": ["print"], "when": {"type": "contains", "key": "answer", "value": "good"}}
  ]
}
"""


def client() -> ScriptedChatClient:
    return ScriptedChatClient({"draft": ["Lamps last."], "review": ["It is good."], "print": ["Printed."]})


def is_short(context: EdgeContext) -> bool:
    return len(context.outputs["answer"]) < 20


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = AgentWorkflow.from_json(DEFINITION, client=client()).with_workflow_store(storage).build()
    print(workflow.to_mermaid())
    print((await workflow.run("Write about lamps.")).final_answer)

    found = await AgentWorkflow.load(storage, "Review", client=client())
    print(f"{found.name} from the store: {(await found.run('Write about lamps.')).final_answer}")

    builder = AgentWorkflow.from_json(DEFINITION, client=client()).from_("draft").to("print").when(is_short)
    exported = builder.build().to_config()
    for left_out in exported.left_out:
        print(f"left out: {left_out.partition(';')[0]}")
    try:
        AgentWorkflow.from_json(json.dumps(exported.config))
    except AgentWorkflowBuildError as error:
        print(str(error).partition(";")[0])


if __name__ == "__main__":
    asyncio.run(main())
