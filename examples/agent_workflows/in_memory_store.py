"""A workflow with its store in memory, for tests and short runs, and without a store.

Shows: the in-memory workflow store, its content, and the error of `resume` without a store.
"""

import asyncio

from perdure import Agent
from perdure.agent_workflows import AgentWorkflow, AgentWorkflowBuilder, AgentWorkflowError
from perdure.testing import ScriptedChatClient


def builder() -> AgentWorkflowBuilder:
    client = ScriptedChatClient({"drafter": ["Lamps last."], "reviewer": ["Print it."]})
    return (
        AgentWorkflow.create()
        .with_name("DurableReview")
        .add_agent("draft", Agent(client, name="drafter"), output_key="draft")
        .add_agent("review", Agent(client, name="reviewer"), input_key="draft")
        .from_("draft")
        .to("review")
    )


async def main() -> None:
    workflow = builder().with_checkpointing().with_in_memory_workflow_store().build()
    result = await workflow.run("Write about lamps.", execution_id="review-1")
    print(f"{result.final_answer} {dict(result.outputs)}")
    for execution in await workflow.executions():
        print(f"kept: {execution.run_id} of {execution.workflow_name}, {execution.status}")

    forgetful = builder().build()
    print((await forgetful.run("Write about lamps.")).final_answer)
    try:
        await forgetful.resume()
    except AgentWorkflowError as error:
        print(f"refused: {str(error).partition(':')[0]}")


if __name__ == "__main__":
    asyncio.run(main())
