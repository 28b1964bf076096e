"""Agents that are none of ours: a turn of theirs is recorded as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.talkers import Model, Stranger, agent
from tests.workflow.nodes import node

from perdure import WorkflowBuilder, WorkflowContext, handler
from perdure.agents import AgentExecutor
from perdure.errors import BudgetExceededError

if TYPE_CHECKING:
    from perdure import Workflow


class FallingError(Exception):
    """What an executor raises until it is mended."""


class Falling(AgentExecutor):
    """Lets an agent answer, and then falls, as long as it is to."""

    def __init__(self, talker: Any, *, falls: bool) -> None:
        super().__init__(talker)
        self._falls = falls

    @handler
    async def from_str(self, text: str, ctx: WorkflowContext[Any, Any]) -> None:
        await super().from_str(text, ctx)
        if self._falls:
            raise FallingError


def watched(talker: Any, storage: Any, *, falls: bool) -> Workflow:
    return WorkflowBuilder(name="w", start_executor=Falling(talker, falls=falls), checkpoint_storage=storage).build()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_turn_that_came_back_is_not_taken_again(storage: Any, streams: bool) -> None:  # noqa: FBT001
    stranger = Stranger()
    with pytest.raises(FallingError):
        await watched(stranger, storage, falls=True).run("hi", run_id="r")
    again = watched(stranger, storage, falls=False)
    if streams:
        told = [event.data.text async for event in again.run(run_id="r", stream=True) if event.type == "output"]
    else:
        told = [output.text for output in (await again.run(run_id="r")).get_outputs()]
    assert (stranger.runs, told) == ([["hi"]], ["stranger hears hi in turn 1"])
    await again.run("ho")
    assert stranger.runs == [["hi"], ["ho"]]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_model_is_not_asked_again_for_a_turn_that_came_back(storage: Any, streams: bool) -> None:  # noqa: FBT001
    model = Model()
    with pytest.raises(FallingError):
        await watched(agent("agent", model), storage, falls=True).run("hi", run_id="r")
    again = watched(agent("agent", model), storage, falls=False)
    if streams:
        told = [event.data.text async for event in again.run(run_id="r", stream=True) if event.type == "output"]
    else:
        told = [output.text for output in (await again.run(run_id="r")).get_outputs()]
    assert (model.shown, told) == ([["hi"]], ["1:hi"])


async def test_a_stranger_streams_its_updates() -> None:
    workflow = WorkflowBuilder(start_executor=Stranger("ann")).build()
    told = [event.data.text async for event in workflow.run("hi", stream=True) if event.type == "output"]
    assert told == ["ann ", "hears ", "hi ", "in ", "turn ", "1 "]


async def test_the_session_of_a_stranger_goes_on(storage: Any) -> None:
    workflow = WorkflowBuilder(name="w", start_executor=Stranger("ann"), checkpoint_storage=storage).build()
    await workflow.run("hi", run_id="r")
    fresh = WorkflowBuilder(name="w", start_executor=Stranger("ann"), checkpoint_storage=storage).build()
    run = fresh.start(run_id="r")
    await run.result()
    await run.send("ho")
    assert [output.text for output in (await run.result()).get_outputs()][-1] == "ann hears ho in turn 2"


async def test_what_a_stranger_has_spent_is_counted(storage: Any) -> None:
    one, other = Stranger("one", tokens=7), Stranger("other", tokens=7)
    builder = WorkflowBuilder(name="w", start_executor=one, checkpoint_storage=storage)
    workflow = builder.add_edge(one, other).build()
    with pytest.raises(BudgetExceededError):
        await workflow.run("hi", run_id="r", budget={"input_tokens": 7})
    assert other.runs == []
    result = await workflow.run(run_id="r", budget={"input_tokens": 8})
    assert (result.get_spent(), len(one.runs), len(other.runs)) == ({"input_tokens": 14, "total_tokens": 14}, 1, 1)


class Visitor(Stranger):
    """Has a session that nobody knows how to keep."""

    def create_session(self, *, session_id: str | None = None) -> Any:
        del session_id
        return Visit()


class Visit:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {}


async def test_a_session_of_another_kind_is_handed_on_as_it_is() -> None:
    caught: list[Any] = []

    async def catch(message: Any, _: Any) -> None:
        caught.append(message.agent_response.text)

    visitor = Visitor("vic")
    workflow = WorkflowBuilder(start_executor=visitor).add_edge(visitor, node("catch", catch)).build()
    await workflow.run("hi")
    await workflow.run("ho")
    assert caught == ["vic hears hi in turn 1", "vic hears ho in turn 2"]
