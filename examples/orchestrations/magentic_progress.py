"""A team that gets stuck, resets, and finds another way. The stream shows each turn.

Shows: progress ledgers, a reset with a new plan, and a model that answers nonsense and is asked again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from perdure import Agent, Message
from perdure.orchestrations import MagenticBuilder, MagenticOrchestratorEvent, MagenticProgressLedger
from perdure.testing import ScriptedChatClient


def ledger(speaker: str, instruction: str, *, is_done: bool = False, gets_on: bool = True) -> dict[str, Any]:
    answers = {
        "is_request_satisfied": is_done,
        "is_in_loop": not gets_on,
        "is_progress_being_made": gets_on,
        "next_speaker": speaker,
        "instruction_or_question": instruction,
    }
    return {name: {"reason": "...", "answer": answer} for name, answer in answers.items()}


LEDGERS = [
    "Let Ada dig!",  # not a ledger: the model gets an error and is asked again
    ledger("ada", "Ada, dig here."),
    ledger("ada", "Ada, dig deeper.", gets_on=False),
    ledger("bob", "Bob, ask at the harbour."),
    ledger("bob", "", is_done=True),
]


class Manager:
    """Stand in for the manager's model."""

    def __init__(self) -> None:
        self._ledgers = iter(LEDGERS)

    def __call__(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        del options
        question = messages[-1].text
        if "can't be used" in question:
            print("the manager is told:", question.split(". ")[0])
        if "JSON" in question:
            return next(self._ledgers)
        if "write a new one" in question:
            return "Digging leads nowhere. Bob asks."
        return "Ada digs." if "write the plan" in question else "It is under the lighthouse."


async def main() -> None:
    client = ScriptedChatClient(
        {"manager": Manager(), "ada": ["Here is no treasure."], "bob": ["They say it is under the lighthouse."]}
    )
    workflow = MagenticBuilder(
        participants=[
            Agent(client, name="ada", description="digs"),
            Agent(client, name="bob", description="asks people"),
        ],
        manager_agent=Agent(client, "You lead a team.", name="manager"),
        max_stall_count=0,
        max_round_count=10,
    ).build()

    async for event in workflow.run("Find the treasure.", stream=True):
        if isinstance(event.data, MagenticOrchestratorEvent):
            content = event.data.content
            if isinstance(content, MagenticProgressLedger):
                print(f"{event.data.event_type.value}: gets on: {content.is_progress_being_made.answer}")
            else:
                print(f"{event.data.event_type.value}: {content.text.splitlines()[-1]}")
        elif event.type == "group_chat":
            print(f"  {type(event.data).__name__}: {event.data.participant_name}")
        elif event.type == "output":
            print(event.data.text)


if __name__ == "__main__":
    asyncio.run(main())
