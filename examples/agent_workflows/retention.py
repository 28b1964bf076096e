"""Retention of a workflow store: the latest checkpoint of an execution, all of them, or the last few.

Shows: `LatestOnly`, the default; `FullHistory`, for debugging and audit; `KeepLast`; the checkpoints of an execution.
"""

import asyncio
from tempfile import TemporaryDirectory

from perdure import Agent, FileCheckpointStorage, FullHistory, KeepLast, LatestOnly
from perdure.agent_workflows import AgentWorkflow
from perdure.testing import ScriptedChatClient

MODES: dict[str, LatestOnly | FullHistory | KeepLast] = {
    "LatestOnly": LatestOnly(),
    "FullHistory": FullHistory(),
    "KeepLast(2)": KeepLast(2),
}


def build_workflow(root_directory: str, retention: LatestOnly | FullHistory | KeepLast) -> AgentWorkflow:
    client = ScriptedChatClient({"drafter": ["Lamps last."], "reviewer": ["Print it."]})
    return (
        AgentWorkflow.create()
        .with_name("DurableReview")
        .with_checkpointing()
        .with_json_workflow_store(root_directory, retention)
        .add_agent("draft", Agent(client, name="drafter"), output_key="draft")
        .add_agent("review", Agent(client, name="reviewer"), input_key="draft")
        .from_("draft")
        .to("review")
        .build()
    )


async def main() -> None:
    for name, retention in MODES.items():
        with TemporaryDirectory() as directory:
            workflow = build_workflow(directory, retention)
            await workflow.run("Write about lamps.", execution_id="review-1")
            async with FileCheckpointStorage(directory) as storage:
                ids = [checkpoint.checkpoint_id for checkpoint in await storage.list_checkpoints(run_id="review-1")]
            print(f"{name}: {', '.join(ids)}")
            print(f"  resumed: {(await workflow.resume()).final_answer}")


if __name__ == "__main__":
    asyncio.run(main())
