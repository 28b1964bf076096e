"""Errors of calls, in terms of executions instead of runs."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.building import review, writers

from perdure import AlreadyAnsweredError, Message, RunExistsError, UnknownRequestError
from perdure.agent_workflows import AgentWorkflow, AgentWorkflowError, ExecutionNotFoundError, NodeApprovalRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import CheckpointStorage
    from perdure.agent_workflows import AgentWorkflowBuilder


def asking() -> AgentWorkflowBuilder:
    return AgentWorkflow.create().with_name("Ask").add_agent("draft", writers()["drafter"], approval=True)


@pytest.mark.parametrize("request_", [None, 5, b"lamps", ("lamps",), [5], {1: 2}, MappingProxyType({"topic": "x"})])
async def test_what_is_no_request_is_refused_at_once(request_: Any) -> None:
    with pytest.raises(TypeError, match=r"request|begins with"):
        await review(writers()).build().run(request_)


@pytest.mark.parametrize("request_", ["", "  ", []])
async def test_a_request_without_a_word_is_refused(request_: str | list[str]) -> None:
    with pytest.raises(ValueError, match="an agent workflow begins with a request"):
        await review(writers()).build().run(request_)


@pytest.mark.parametrize("request_", ["lamps", Message("user", ["lamps"]), ["lamps"], {"topic": "lamps"}])
async def test_what_says_something_is_a_request(request_: str | Message | list[str] | Mapping[str, str]) -> None:
    assert (await review(writers()).build().run(request_)).success


async def test_an_id_is_a_text_that_is_not_empty() -> None:
    workflow = review(writers()).build()
    wrong: Any = 5
    with pytest.raises(TypeError, match="an execution_id is a text, not 5"):
        await workflow.run("lamps", execution_id=wrong)
    with pytest.raises(ValueError, match="leave it out to have one made"):
        await workflow.run("lamps", execution_id="")
    with pytest.raises(ValueError, match="leave it out"):
        await workflow.resume("")


@pytest.mark.parametrize("responses", [[1], "x", 5], ids=repr)
async def test_answers_are_given_by_the_ids_of_requests(responses: Any) -> None:
    workflow = review(writers()).with_in_memory_workflow_store().with_checkpointing().build()
    result = await workflow.run("lamps")
    with pytest.raises(TypeError, match="responses are answers by the id of the request"):
        await workflow.resume(result.execution_id, responses=responses)


async def test_errors_about_executions_speak_of_resume(storage: CheckpointStorage) -> None:
    workflow = asking().with_checkpointing().with_workflow_store(storage).build()
    [request_id] = (await workflow.run("lamps", execution_id="one")).requests
    with pytest.raises(RunExistsError, match=r"continue with resume\('one'\) without a message, or choose"):
        await workflow.run("tables", execution_id="one")
    other = review(writers(), "Other").with_checkpointing().with_workflow_store(storage).build()
    with pytest.raises(RunExistsError, match=r"execution 'one' exists and is one of workflow 'Ask'"):
        await other.run("lamps", execution_id="one")
    with pytest.raises(UnknownRequestError, match=f"pending are '{request_id}'"):
        await workflow.resume("one", responses={"zz": NodeApprovalRequest.approve()})
    with pytest.raises(UnknownRequestError, match="use one of these ids"):
        await workflow.respond("one", {"zz": {"approved": True}})
    await workflow.resume("one", responses={request_id: NodeApprovalRequest.approve()})
    with pytest.raises(AlreadyAnsweredError, match=r"of execution 'one' was answered .* continue with resume\('one'\)"):
        await workflow.resume("one", responses={request_id: NodeApprovalRequest.deny()})
    with pytest.raises(AlreadyAnsweredError, match=r"continue with resume\('one'\)") as refused:
        await workflow.respond("one", {request_id: {"approved": False}})
    assert (refused.value.request_id, refused.value.run_id) == (request_id, "one")


async def test_without_a_store_those_that_wait_are_named() -> None:
    workflow = asking().build()
    for execution_id in ("one", "two"):
        await workflow.run("lamps", execution_id=execution_id)
    with pytest.raises(
        AgentWorkflowError, match="several executions of workflow 'Ask' wait, name one of them: 'one', "
    ):
        await workflow.resume()
    with pytest.raises(ExecutionNotFoundError, match="'nine' is none of those that wait in this process: 'one', 'two'"):
        await workflow.resume("nine")
