"""Every orchestration: waiting for people, and killed in the middle of a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Agent, AgentExecutorResponse, Workflow, tool
from perdure.orchestrations import (
    AgentOrchestrationOutput,
    AgentRequestInfoResponse,
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffAgentUserRequest,
    HandoffBuilder,
    MagenticBuilder,
    MagenticPlanReviewRequest,
    MaxMessages,
    SequentialBuilder,
    TextMentioned,
)
from perdure.testing import ScriptedChatClient, ToolCall

from .agents import look
from .world import Place, Scenario, answer_all, heard, noted, world

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import Message


@tool(approval_mode="always_require")
def refund(order: int) -> str:
    """Give the money for an order back."""
    world.did(f"refund {order}")
    return f"order {order} is refunded"


def team(names: Mapping[str, Any]) -> list[Agent[Any]]:
    """Make agents with a script each, and a tool for those who take their time."""
    scripts: dict[str, Any] = {
        name: script if callable(script) else noted(name, *script) for name, script in names.items()
    }
    client = ScriptedChatClient(scripts)
    return [
        Agent(
            client, f"You are {name}.", name=name, description=f"the {name}", tools=[look] if callable(script) else None
        )
        for name, script in names.items()
    ]


def slowly(name: str, reply: Any) -> Any:
    """Make a script that calls a tool first; the answer after that may be killed, and counts when it is given."""

    async def answer(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        if messages[-1].role != "tool":
            world.did(f"model of {name}, first")
            return ToolCall("look", where=name)
        await world.reach(f"model of {name}")
        world.did(f"model of {name}")
        return reply(messages, options) if callable(reply) else reply

    return answer


def sequence(place: Place) -> Workflow:
    """Build a sequence with a person in it, and a condition."""
    agents = team({"writer": ["draft", "better draft"], "critic": [heard], "editor": [heard]})
    return (
        SequentialBuilder(
            participants=agents,
            checkpoint_storage=place.storage,
            name="sequence",
            intermediate_output_from="all_other",
            termination_condition=TextMentioned("STOP"),
        )
        .with_request_info(agents=["writer"])
        .build()
    )


def sequence_unnamed(place: Place) -> Workflow:
    """Build a sequence whose name follows from its graph."""
    agents = team({"first": ["one"], "second": slowly("second", heard)})
    return SequentialBuilder(participants=agents, checkpoint_storage=place.storage).build()


def count(results: list[AgentExecutorResponse]) -> str:
    """Aggregate, in a step."""
    world.did("count")
    return " + ".join(each.agent_response.text for each in results)


def concurrent(place: Place) -> Workflow:
    """Build three side by side, of whom one is killed."""
    agents = team({"law": ["legal"], "cost": ["cheap"], "market": slowly("market", "wanted")})
    return (
        ConcurrentBuilder(participants=agents, checkpoint_storage=place.storage, name="concurrent")
        .with_aggregator(count)
        .build()
    )


def concurrent_reviewed(place: Place) -> Workflow:
    """Build two side by side, with people."""
    agents = team({"north": ["cold", "very cold"], "south": ["warm", "very warm"]})
    return (
        ConcurrentBuilder(
            participants=agents,
            checkpoint_storage=place.storage,
            name="reviewed",
            termination_condition=MaxMessages(20),
        )
        .with_request_info()
        .build()
    )


def chat(place: Place) -> Workflow:
    """Build a group chat in which a person looks at turns."""
    agents = team({"writer": ["lamps", "all lamps", "more lamps"], "reviewer": [heard, "APPROVED"]})
    return (
        GroupChatBuilder(
            participants=agents,
            selection_func="round_robin",
            termination_condition=TextMentioned("APPROVED", by="reviewer"),
            checkpoint_storage=place.storage,
            name="chat",
            intermediate_output_from="all",
        )
        .with_request_info(agents=["writer"])
        .build()
    )


def led_chat(place: Place) -> Workflow:
    """Build a group chat that an agent leads; a participant is killed."""

    def asks(name: str) -> AgentOrchestrationOutput:
        return AgentOrchestrationOutput(terminate=False, reason="their turn", next_speaker=name)

    end = AgentOrchestrationOutput(terminate=True, reason="good", final_message="Print it.")
    agents = team({"writer": ["lamps"], "reviewer": slowly("reviewer", "good")})
    (host,) = team({"host": [asks("the writer"), asks("writer"), asks("reviewer"), end]})
    return GroupChatBuilder(
        participants=agents,
        orchestrator_agent=host,
        max_rounds=9,
        checkpoint_storage=place.storage,
        name="led",
        intermediate_output_from="all",
    ).build()


def handoff(place: Place) -> Workflow:
    """Build a help desk that asks the user, and for an approval."""
    scripts: dict[str, Sequence[Any]] = {
        "triage": [["Refunds will help.", ToolCall("handoff_to_refunds")]],
        "refunds": ["Which order?", ToolCall("refund", order=42), "Done. Goodbye!"],
    }
    client = ScriptedChatClient({name: noted(name, *script) for name, script in scripts.items()})
    triage = Agent(client, "You sort.", name="triage")
    refunds = Agent(client, "You refund.", name="refunds", tools=[refund])
    return (
        HandoffBuilder(
            name="handoff",
            participants=[triage, refunds],
            termination_condition=TextMentioned("Goodbye"),
            checkpoint_storage=place.storage,
        )
        .with_start_agent(triage)
        .build()
    )


def handoff_reviewed(place: Place) -> Workflow:
    """Build a help desk whose turns are looked at."""
    agents = team(
        {
            "entry": [ToolCall("handoff_to_far"), ["Near will help.", ToolCall("handoff_to_near")]],
            "near": ["Done. Goodbye!"],
            "far": ["Never."],
        }
    )
    return (
        HandoffBuilder(
            name="handoff-reviewed",
            participants=agents,
            termination_condition=TextMentioned("Goodbye"),
            checkpoint_storage=place.storage,
        )
        .with_start_agent("entry")
        .with_request_info(agents=["entry"])
        .build()
    )


PROMPTS: Mapping[str, Any] = {
    "task_ledger_facts_prompt": "FACTS? {task}",
    "task_ledger_plan_prompt": "PLAN? {team}",
    "task_ledger_full_prompt": "{task} / {facts} / {plan}",
    "task_ledger_facts_update_prompt": "NEW FACTS? {old_facts}",
    "task_ledger_plan_update_prompt": "NEW PLAN? {team}",
    "progress_ledger_prompt": "PROGRESS? {names}",
    "final_answer_prompt": "ANSWER? {task}",
}


def manage(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
    """Answer as a manager: what is said depends on the conversation alone."""
    question = messages[-1].text
    spoke = [message.author_name for message in messages]
    world.did(f"manager: {question.partition('?')[0]} after {spoke.count('ada')} {spoke.count('bob')}")
    if not question.startswith("PROGRESS?"):
        return f"my {question.partition('?')[0].lower()}"
    answers = {
        "is_request_satisfied": "bob" in spoke,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": "bob" if "ada" in spoke else "ada",
        "instruction_or_question": "go on",
    }
    return {name: {"reason": "so it is", "answer": answer} for name, answer in answers.items()}


def magentic(place: Place) -> Workflow:
    """Build a team whose plan is reviewed."""
    return _magentic(place, name="magentic", enable_plan_review=True)


def magentic_killed(place: Place) -> Workflow:
    """Build a team one of whom is killed."""
    return _magentic(place, name="magentic-killed")


def _magentic(place: Place, **more: Any) -> Workflow:
    agents = team({"ada": ["facts found"], "bob": slowly("bob", heard)})
    manager = Agent(ScriptedChatClient(manage), name="boss")
    return MagenticBuilder(
        participants=agents,
        manager_agent=manager,
        max_round_count=9,
        checkpoint_storage=place.storage,
        intermediate_output_from="all",
        **PROMPTS,
        **more,
    ).build()


class People:
    """Answer as people do: send each turn or plan back once, then let it pass."""

    def __init__(self) -> None:
        self._has_objected = False

    def __call__(self, data: Any) -> Any:
        objects, self._has_objected = not self._has_objected, True
        match data:
            case MagenticPlanReviewRequest():
                return data.revise("shorter") if objects else data.approve()
            case HandoffAgentUserRequest():
                return data.create_response("Order 42.")
            case AgentExecutorResponse():
                return (
                    AgentRequestInfoResponse.from_strings(["again"]) if objects else AgentRequestInfoResponse.approve()
                )
            case _:
                return data.to_function_approval_response(approved=True)


def scenario(name: str, build: Any, run: str, kill_at: str | None = None) -> Scenario:
    """Make a scenario of a run that is answered to its end."""
    return Scenario(
        name,
        lambda place: build(place).run("the task", run_id=run),
        lambda place: answer_all(place, build, run, People()),
        (run,),
        kill_at,
    )


SCENARIOS = [
    scenario("sequence with a person", sequence, "sequence"),
    scenario("sequence killed, with a name that follows from it", sequence_unnamed, "unnamed", "model of second"),
    scenario("concurrent agents killed", concurrent, "concurrent", "model of market"),
    scenario("concurrent agents with people", concurrent_reviewed, "reviewed"),
    scenario("group chat with a person", chat, "chat"),
    scenario("group chat led by an agent, killed", led_chat, "led", "model of reviewer"),
    scenario("handoff that asks the user", handoff, "handoff"),
    scenario("handoff with a person", handoff_reviewed, "handoff-reviewed"),
    scenario("magentic team whose plan is reviewed", magentic, "magentic"),
    scenario("magentic team killed", magentic_killed, "magentic-killed", "model of bob"),
]
