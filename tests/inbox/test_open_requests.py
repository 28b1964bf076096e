"""A caller who resumes a run gets its open requests, after the inbox is applied."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.inbox.bureau import Offer, branch, office, warnings

from perdure import Agent, RunContext, WorkflowRunResult, WorkflowRunState, workflow
from perdure.orchestrations import AgentRequestInfoResponse, SequentialBuilder
from perdure.testing import ScriptedChatClient
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Storage

    from perdure import Workflow

IDLE, WAITING = WorkflowRunState.IDLE, WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


@workflow
async def inquiry(texts: list[str], ctx: RunContext) -> str:
    """Asks one after the other."""
    return ", ".join([await ctx.request_info(text, str, request_id=text) for text in texts])


def asking(storage: Storage) -> Workflow:
    """The same, in this storage."""
    return workflow(name="inquiry", checkpoint_storage=storage)(inquiry.func)


def reviewed(storage: Storage) -> Workflow:
    """Agents whose answers are looked at."""
    agents = [Agent(ScriptedChatClient([name]), name=name) for name in ("ada", "bob")]
    return SequentialBuilder(participants=agents, checkpoint_storage=storage).with_request_info().build()


SHAPES: dict[str, tuple[Callable[[Any], Workflow], Any, Any]] = {
    "graph": (office, ["a", "b"], "yes"),
    "sub-workflow": (branch, ["a", "b"], "yes"),
    "function": (asking, ["a", "b"], "yes"),
    "agents": (reviewed, "write", AgentRequestInfoResponse.approve()),
}


async def gone_on(definition: Workflow, *, stream: bool) -> WorkflowRunResult:
    """What a call tells, streamed or not."""
    if stream:
        return WorkflowRunResult.of([event async for event in definition.run(run_id="r", stream=True)])
    return await definition.run(run_id="r")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_loop_that_answers_through_the_store_is_asked_each_question_once(
    storage: Storage, shape: str, *, stream: bool
) -> None:
    build, message, answer = SHAPES[shape]
    result, asked = await build(storage).run(message, run_id="r"), list[str]()
    while requests := result.get_request_info_events():
        asked.append(requests[0].request_id)
        await storage.respond("r", {asked[-1]: answer})
        result = await gone_on(build(storage), stream=stream)
    assert len(asked) == len(set(asked)) == 2
    assert result.get_final_state() is IDLE


@pytest.mark.parametrize("stream", [False, True])
async def test_of_two_requests_the_one_that_is_open_is_told(storage: Storage, *, stream: bool) -> None:
    await office(storage).run(["a", "b"], run_id="r")
    await storage.respond("r", {"a": "yes"})
    result = await gone_on(office(storage), stream=stream)
    assert [event.request_id for event in result.get_request_info_events()] == ["b"]
    assert result.get_outputs() == ["a: 'yes'"]
    assert result.get_final_state() is WAITING


async def test_a_request_that_opens_again_since_its_answer_does_not_fit_is_told(storage: Storage) -> None:
    await office(storage, Offer).run(["a"], run_id="r")
    await storage.respond("r", {"a": {"item": "tea", "price": "dear"}})
    result = await gone_on(office(storage, Offer), stream=False)
    assert len(warnings(result)) == 1
    assert [event.request_id for event in result.get_request_info_events()] == ["a"]


async def test_a_request_whose_deadline_has_passed_is_not_told(storage: Storage) -> None:
    clock, terms = ManualClock(), {"deadline": timedelta(days=1), "default": "no"}
    await office(storage, clock=clock, **terms).run(["a"], run_id="r")
    clock.advance(timedelta(days=1))
    result = await gone_on(office(storage, clock=clock, **terms), stream=False)
    assert result.get_request_info_events() == []
    assert result.get_outputs() == ["a: 'no'"]
