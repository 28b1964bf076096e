"""A Magentic team of two agents and a manager for tests, and helpers to read its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from perdure import Agent, Message
from perdure.orchestrations import (
    MagenticBuilder,
    MagenticContext,
    MagenticManagerBase,
    MagenticOrchestratorEvent,
    MagenticProgressLedger,
)
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure import Workflow, WorkflowEvent

PROMPTS: Mapping[str, Any] = {
    "task_ledger_facts_prompt": "FACTS? {task}",
    "task_ledger_plan_prompt": "PLAN? {team}",
    "task_ledger_full_prompt": "{task} / {facts} / {plan}",
    "task_ledger_facts_update_prompt": "NEW FACTS? {old_facts}",
    "task_ledger_plan_update_prompt": "NEW PLAN? {team}",
    "progress_ledger_prompt": "PROGRESS? {names}",
    "final_answer_prompt": "ANSWER? {task}",
}


def ledger(
    speaker: Any = "ada", instruction: Any = "go on", *, done: Any = False, loops: Any = False, moves: Any = True
) -> dict[str, Any]:
    """A progress ledger as a model writes it."""
    answers = {
        "is_request_satisfied": done,
        "is_in_loop": loops,
        "is_progress_being_made": moves,
        "next_speaker": speaker,
        "instruction_or_question": instruction,
    }
    return {name: {"reason": "so it is", "answer": answer} for name, answer in answers.items()}


DONE = ledger(done=True)
STUCK = ledger(moves=False)


class Model:
    """Scripted answers of the manager's model: a list for each kind of question. The last one repeats."""

    def __init__(self, *ledgers: Any, **others: Sequence[Any]) -> None:
        self._answers: dict[str, list[Any]] = {
            "FACTS?": ["the facts"],
            "PLAN?": ["the plan"],
            "NEW FACTS?": ["new facts"],
            "NEW PLAN?": ["a new plan"],
            "PROGRESS?": list(ledgers or [ledger(), DONE]),
            "ANSWER?": ["the answer"],
            **{f"{kind.replace('_', ' ').upper()}?": list(answers) for kind, answers in others.items()},
        }
        self.asked: list[str] = []
        """The kinds of questions, in order."""
        self.seen: list[list[Message]] = []
        """The messages of each question."""

    def __call__(self, messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        self.seen.append(list(messages))
        kind = next(
            kind
            for message in reversed(messages)
            for kind in sorted(self._answers, key=len, reverse=True)
            if message.role == "user" and message.text.startswith(kind)
        )
        self.asked.append(kind)
        answers = self._answers[kind]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def heard(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    """All that an agent knows."""
    return "|".join(message.text for message in messages if message.role != "system")


def members(script: Any = heard, **more: Any) -> list[Agent[Any]]:
    """Ada and Bob."""
    client = ScriptedChatClient(script)
    return [Agent(client, name=name, description=f"{name} helps", **more) for name in ("ada", "bob")]


def team(model: Any = None, *, participants: Sequence[Any] | None = None, **more: Any) -> Workflow:
    """Ada, Bob and a manager with short prompts."""
    if "manager" not in more:
        more = {**PROMPTS, "manager_agent": Agent(ScriptedChatClient(model or Model()), name="boss"), **more}
    return MagenticBuilder(participants=participants or members(), **more).build()


def told(events: Iterable[WorkflowEvent[Any]]) -> list[str]:
    """Return the orchestrator's events about plans and ledgers."""
    return [event.data.event_type.value for event in events if isinstance(event.data, MagenticOrchestratorEvent)]


class CountingManager(MagenticManagerBase):
    """A manager without a model, which counts its ledgers and is content with the third."""

    def __init__(self, speakers: Sequence[Any] = ("ada",), plans: Sequence[str] = ("a plan",), **limits: Any) -> None:
        super().__init__(**limits)
        self.speakers = speakers
        self.plans = plans
        self.count = 0
        self.contexts: list[MagenticContext] = []

    @override
    async def plan(self, magentic_context: MagenticContext) -> Message:
        """One of the plans after the other."""
        self.contexts.append(magentic_context)
        text = self.plans[min(len(self.contexts), len(self.plans)) - 1]
        return Message("assistant", [text] if text else [])

    @override
    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Another plan."""
        self.contexts.append(magentic_context)
        return Message("assistant", ["another plan"])

    @override
    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Count."""
        self.contexts.append(magentic_context)
        self.count += 1
        speaker = self.speakers[min(self.count, len(self.speakers)) - 1]
        return MagenticProgressLedger.from_dict(ledger(speaker, f"number {self.count}", done=self.count > 2))

    @override
    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """Say the count."""
        self.contexts.append(magentic_context)
        return Message("assistant", [f"after {self.count}"])

    @override
    def on_checkpoint_save(self) -> dict[str, Any]:
        """The count."""
        return {"count": self.count}

    @override
    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """The count."""
        self.count = state["count"]
