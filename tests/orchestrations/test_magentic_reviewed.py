"""Reviews of the turns of a Magentic team, before the manager gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.orchestrations.magentic_team import DONE, PROMPTS, STUCK, Model, ledger, members

from perdure import Agent, AgentExecutorResponse, SqliteCheckpointStorage
from perdure.orchestrations import AgentRequestInfoResponse, MagenticBuilder
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure import Workflow


def reviewed(
    model: Model, agents: Sequence[str] | None = None, storage: SqliteCheckpointStorage | None = None
) -> Workflow:
    boss = Agent(ScriptedChatClient(model), name="boss")
    builder = MagenticBuilder(participants=members(), manager_agent=boss, checkpoint_storage=storage, **PROMPTS)
    return builder.with_request_info(agents=agents).build()


async def test_a_turn_is_reviewed_in_another_process_before_the_manager_hears_of_it(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    model = Model(ledger("ada", "look it up"), DONE)
    result = await reviewed(model, storage=storage).run("tides", run_id="r")
    [request] = result.get_request_info_events()
    assert isinstance(request.data, AgentExecutorResponse)
    assert model.asked == ["FACTS?", "PLAN?", "PROGRESS?"]
    other = Model(DONE)
    again = AgentRequestInfoResponse.from_strings(["be short"])
    result = await reviewed(other, storage=storage).run(run_id="r", responses={request.request_id: again})
    [request] = result.get_request_info_events()
    assert "be short" in request.data.agent_response.text
    assert other.asked == []
    approved = {request.request_id: AgentRequestInfoResponse.approve()}
    result = await reviewed(other, storage=storage).run(run_id="r", responses=approved)
    assert [output.text for output in result.get_outputs()] == ["the answer"]
    assert other.asked == ["PROGRESS?", "ANSWER?"]


async def test_only_those_who_are_named_are_reviewed() -> None:
    workflow = reviewed(Model(ledger("ada"), ledger("bob"), DONE), agents=["bob"])
    result = await workflow.run("tides")
    [request] = result.get_request_info_events()
    assert request.data.executor_id == "bob"
    with pytest.raises(ValueError, match="carl"):
        reviewed(Model(), agents=["carl"])


async def test_a_reset_reaches_an_agent_that_is_reviewed() -> None:
    model = Model(ledger("ada", "first"), *[STUCK] * 4, ledger("ada", "second"), DONE)
    workflow = reviewed(model)
    result = await workflow.run("tides")
    turns: list[str] = []
    while requests := result.get_request_info_events():
        turns += [request.data.agent_response.text for request in requests]
        result = await workflow.run(
            responses={request.request_id: AgentRequestInfoResponse.approve() for request in requests}
        )
    assert [output.text for output in result.get_outputs()] == ["the answer"]
    assert "first" in turns[0]
    assert "second" in turns[-1]
    assert "first" not in turns[-1]
