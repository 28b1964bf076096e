"""A team with a manager: its plan waits for a person, and another process continues with the answer.

python magentic_plan_review.py                                          both, on files and on SQLite
python magentic_plan_review.py plan file checkpoints                    the first process
python magentic_plan_review.py approve file checkpoints                 another
python magentic_plan_review.py revise file checkpoints "Be brief"       or this one
"""

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from perdure import (
    Agent,
    CheckpointStorage,
    FileCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowRunState,
)
from perdure.orchestrations import MagenticBuilder, MagenticPlanReviewRequest, MagenticPlanReviewResponse
from perdure.testing import ScriptedChatClient

TASK = "Draft a brief on the beta launch."


def manage(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
    """Stand in for the manager's model: the question tells what is needed."""
    del options
    question = messages[-1].text
    print("    the manager is asked", flush=True)
    if "GIVEN FACTS" in question:
        return "1. GIVEN FACTS: there will be a beta."
    if "same four headings" in question:
        wishes = [message.text for message in messages if message.role == "user"][1:-1]
        return f"1. GIVEN FACTS: there will be a beta. Wanted: {'; '.join(wishes)}"
    if "write the plan" in question:
        return "- ResearcherAgent collects\n- WriterAgent writes"
    if "write a new one" in question:
        return "- WriterAgent writes two lines"
    if "Write the answer" in question:
        return next(message.text for message in reversed(messages) if message.author_name == "WriterAgent")
    return ledger(messages)


def ledger(messages: Sequence[Message]) -> Mapping[str, Any]:
    spoke = {message.author_name for message in messages}
    is_short = any("two lines" in message.text for message in messages)
    speaker = "WriterAgent" if is_short or "ResearcherAgent" in spoke else "ResearcherAgent"
    answers = {
        "is_request_satisfied": "WriterAgent" in spoke,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": speaker,
        "instruction_or_question": f"{speaker}, it is your turn.",
    }
    return {name: {"reason": "it is in the plan", "answer": answer} for name, answer in answers.items()}


def research(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    del messages, options
    return "The beta has forty users."


def write(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    del options
    known = [message.text for message in messages if message.author_name == "ResearcherAgent"]
    return " ".join(["Brief:", *known, "We launch on Monday."])


def build_workflow(storage: CheckpointStorage) -> Workflow:
    client = ScriptedChatClient({"MagenticManager": manage, "ResearcherAgent": research, "WriterAgent": write})
    researcher = Agent(client, "You gather facts.", name="ResearcherAgent", description="Collects facts.")
    writer = Agent(client, "You write briefs.", name="WriterAgent", description="Writes the brief.")
    manager = Agent(client, "You coordinate a team.", name="MagenticManager", description="Leads the team.")
    return MagenticBuilder(
        participants=[researcher, writer],
        enable_plan_review=True,
        checkpoint_storage=storage,
        manager_agent=manager,
        max_round_count=10,
    ).build()


def open_store(kind: str, place: str) -> CheckpointStorage:
    return FileCheckpointStorage(place) if kind == "file" else SqliteCheckpointStorage(place)


async def plan(kind: str, place: str) -> None:
    """Run until the plan needs a review, and end."""
    workflow = build_workflow(open_store(kind, place))
    async for ev in workflow.run(TASK, stream=True):
        if ev.type == "request_info" and isinstance(ev.data, MagenticPlanReviewRequest):
            print("    the plan:", *ev.data.plan.text.splitlines()[-2:], flush=True)
        if ev.state == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
            break


async def answer(kind: str, place: str, wish: str | None) -> None:
    """Continue from the newest checkpoint: approve the plan, or ask for a change and approve the new plan."""
    storage = open_store(kind, place)
    workflow = build_workflow(storage)
    checkpoint = await storage.get_latest(workflow_name=workflow.name)
    assert checkpoint is not None, "the first process has left one"
    [waiting] = checkpoint.pending_request_info_events.values()
    request: MagenticPlanReviewRequest = waiting.data
    reply: MagenticPlanReviewResponse = request.revise(wish) if wish else request.approve()
    result = await workflow.run(checkpoint_id=checkpoint.checkpoint_id, responses={request.request_id: reply})
    for event in result.get_request_info_events():
        print("    the new plan:", *event.data.plan.text.splitlines()[-1:], flush=True)
        result = await workflow.run(responses={event.request_id: event.data.approve()})
    print("   ", *[output.text for output in result.get_outputs()], flush=True)


def main() -> None:
    with TemporaryDirectory() as directory:
        for kind, reply in (("file", ["approve"]), ("sqlite", ["revise", "Be brief"])):
            for word, *more in (["plan"], reply):
                print(f"{kind}, a process to {word}", flush=True)
                command = [sys.executable, __file__, word, kind, f"{directory}/{kind}", *more]
                subprocess.run(command, check=True)  # noqa: S603 - this very file


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["plan", ("file" | "sqlite") as kind, place]:
            asyncio.run(plan(kind, place))
        case ["approve", ("file" | "sqlite") as kind, place]:
            asyncio.run(answer(kind, place, None))
        case ["revise", ("file" | "sqlite") as kind, place, wish]:
            asyncio.run(answer(kind, place, wish))
        case _:
            sys.exit(__doc__)
