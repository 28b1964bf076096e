"""A `WorkflowExecutor` as a participant: an orchestration follows an agent, at the end of a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.chain_team import Team, team, told
from tests.orchestrations.magentic_team import DONE, Model, team as magentic

from perdure import SqliteCheckpointStorage, WorkflowBuilder, WorkflowExecutor
from perdure.orchestrations import (
    AgentRequestInfoResponse,
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffBuilder,
    MaxMessages,
    SequentialBuilder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from perdure import Message, Workflow


def count(messages: Sequence[Message], _: Any) -> str:
    return f"{len(messages) - 1} heard"


def inner_team() -> Team:
    return team(critic=count, editor=["Printed."])


def chat(cast: Team) -> Workflow:
    return GroupChatBuilder(
        participants=cast.agents, selection_func="round_robin", termination_condition=MaxMessages(4)
    ).build()


INNER: dict[str, tuple[Callable[[Team], Workflow], str]] = {
    "an agent": (lambda cast: WorkflowBuilder(start_executor=cast.agents[0]).build(), "2 heard"),
    "sequential": (lambda cast: SequentialBuilder(participants=cast.agents[:1]).build(), "2 heard"),
    "concurrent": (lambda cast: ConcurrentBuilder(participants=cast.agents).build(), "2 heardPrinted."),
    "concurrent, with an end": (
        lambda cast: ConcurrentBuilder(participants=cast.agents, termination_condition=MaxMessages(9)).build(),
        "2 heardPrinted.",
    ),
    "group chat": (chat, "The group chat has reached its termination condition."),
    "handoff": (
        lambda cast: (
            HandoffBuilder(participants=cast.agents, termination_condition=MaxMessages(3))
            .with_start_agent("critic")
            .build()
        ),
        "2 heard",
    ),
    "magentic": (lambda _: magentic(Model(DONE)), "the answer"),
}


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("kind", INNER)
async def test_a_workflow_at_the_end_of_a_sequence_hears_the_conversation_and_gives_the_output(
    kind: str, *, direct: bool
) -> None:
    make, output = INNER[kind]
    last = WorkflowExecutor(make(inner_team()), id="press", allow_direct_output=direct)
    workflow = SequentialBuilder(participants=[*team(writer=["A line."]).agents, last]).build()
    result = await workflow.run("Write.")
    assert told(result) == [("press", output)]
    assert not [event for event in result if event.type == "undelivered"]
    assert last.allow_direct_output is direct, "the given executor stays as it is"


async def test_a_group_chat_that_follows_an_agent_begins_with_the_conversation() -> None:
    cast = inner_team()
    workflow = SequentialBuilder(
        participants=[*team(writer=["A line."]).agents, WorkflowExecutor(chat(cast), id="press")]
    ).build()
    await workflow.run("Write.")
    assert cast.told("critic") == [["Write.", "A line."]]


async def test_a_review_inside_the_last_workflow_reaches_a_person_in_another_process(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")

    def built() -> Any:
        inner = SequentialBuilder(participants=inner_team().agents[:1]).with_request_info().build()
        participants = [*team(writer=["A line."]).agents, WorkflowExecutor(inner, id="press")]
        return SequentialBuilder(participants=participants, checkpoint_storage=storage).build()

    [request] = (await built().run("Write.", run_id="r")).get_request_info_events()
    answers = {request.request_id: AgentRequestInfoResponse.approve()}
    assert told(await built().run(run_id="r", responses=answers)) == [("press", "2 heard")]
