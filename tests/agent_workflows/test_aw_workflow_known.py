"""Results of executions that have not ended, that began elsewhere, or that a node stopped."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.building import Cast, review, writers
from tests.soak import MEMORY

from perdure import ChatClientException, CheckpointStorage, Host, InMemoryCheckpointStorage
from perdure.agent_workflows import (
    END,
    START,
    AgentWorkflow,
    NodeApprovalRequest,
    WorkflowAgentCompletedEvent,
    fallback,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure.agent_workflows import AgentWorkflowBuilder
    from perdure.storage import StoreStorage


def two_askers(cast: Cast) -> AgentWorkflowBuilder:
    """Two that ask and one that does not, side by side; then one that reads them."""
    return (
        AgentWorkflow.create()
        .with_name("Askers")
        .add_agent("a", cast["one"], approval="a?")
        .add_agent("b", cast["two"], approval="b?", on_error="isolate")
        .add_agent("c", cast["three"])
        .add_agent("join", cast["joiner"], reads="upstream")
        .from_("a", "b", "c")
        .to("join")
    )


def four() -> Cast:
    return Cast(one=["A"], two=["B"], three=["C"], joiner=lambda messages, _: f"joined {len(messages)}")


def by_node(requests: dict[str, Any]) -> dict[str, str]:
    return {request.node_id: request_id for request_id, request in requests.items()}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_was_answered_with_respond_is_not_asked_again(
    storage: CheckpointStorage,
    is_streamed: bool,  # noqa: FBT001
) -> None:
    cast = four()
    workflow = two_askers(cast).with_checkpointing().with_workflow_store(storage).build()
    ids = by_node(dict((await workflow.run("go", execution_id="one")).requests))
    await workflow.respond("one", {ids["b"]: {"approved": True}}, by="alice")
    assert [request.request_id for request in await workflow.requests("one")] == [ids["a"]]
    assert [request.request_id for request in await workflow.requests()] == [ids["a"]]
    if is_streamed:
        stream = workflow.resume("one", stream=True)
        assert [event.request_id async for event in stream if event.type == "request_info"] == [ids["a"]]
        result = await stream.get_final_response()
    else:
        result = await workflow.resume("one")
    assert list(result.requests) == [ids["a"]]


async def test_a_result_that_waits_says_what_is_known_in_every_process(storage: CheckpointStorage) -> None:
    cast = four()

    def built() -> AgentWorkflow:
        return two_askers(cast).with_checkpointing().with_workflow_store(storage).build()

    first = await built().run("go", execution_id="one")
    assert (first.state, dict(first.outputs)) == ("waiting", {"c.answer": "C"})
    ids = by_node(dict(first.requests))
    second = await built().resume("one", responses={ids["b"]: NodeApprovalRequest.deny("bad")})
    assert dict(second.outputs) == {"b.error": "bad", "c.answer": "C"}
    assert dict(second.failed) == {"b": "bad"}
    assert second.duration > 0
    last = await built().resume("one", responses={ids["a"]: NodeApprovalRequest.approve()})
    assert last.success
    assert dict(last.outputs) == {"a.answer": "A", **second.outputs, "join.answer": "joined 1"}


async def test_a_result_that_waits_says_what_is_known_without_a_store() -> None:
    clock = ManualClock()
    workflow = AgentWorkflow.create(clock=clock).include(two_askers(four()).build().definition).build()
    first = await workflow.run("go")
    clock.advance(timedelta(minutes=1))
    ids = by_node(dict(first.requests))
    second = await workflow.resume(responses={ids["a"]: NodeApprovalRequest.approve()})
    assert (dict(second.outputs), second.duration) == ({"a.answer": "A", "c.answer": "C"}, 60.0)
    assert list(second.requests) == [ids["b"]]


async def test_who_was_skipped_and_who_stood_in_is_known_while_it_waits() -> None:
    cast = Cast(worker=[ChatClientException("down")], spare=["in its place"], other=["never"], last=["L"])
    workflow = (
        AgentWorkflow.create()
        .add_agent("work", cast["worker"], output_key="work", on_error=fallback("spare"))
        .add_agent("spare", cast["spare"])
        .add_agent("other", cast["other"])
        .add_agent("last", cast["last"], approval=True)
        .from_("work")
        .to("other")
        .when_contains("work", "nothing")
        .to("last")
        .as_default()
        .build()
    )
    result = await workflow.run("go")
    assert dict(result.outputs) == {"work.answer": "in its place", "work.work": "in its place"}
    assert dict(result.failed) == {"work": "ChatClientException: down"}
    assert list(result.skipped) == ["other"]


async def test_what_is_decided_anew_in_a_loop_is_not_known_any_more() -> None:
    cast = Cast(writer=lambda messages, _: "two" if messages[-1].text == "one" else "one", polisher=["never"])
    workflow = (
        AgentWorkflow.create()
        .add_agent("write", cast["writer"], template="{{write.answer?}}", approval=True)
        .add_agent("polish", cast["polisher"])
        .from_(START)
        .to("write")
        .from_("write")
        .to("write")
        .when_equals("answer", "one")
        .to("polish")
        .when_equals("answer", "three")
        .to(END)
        .as_default()
        .build()
    )
    first = await workflow.run("go")
    [request_id] = first.requests
    second = await workflow.resume(responses={request_id: NodeApprovalRequest.approve()})
    assert (second.state, dict(second.outputs), dict(second.skipped)) == ("waiting", {"write.answer": "one"}, {})
    [request_id] = second.requests
    last = await workflow.resume(responses={request_id: NodeApprovalRequest.approve()})
    assert (last.final_answer, list(last.skipped)) == ("two", ["polish"])


async def test_why_an_execution_was_cancelled_is_said_and_what_it_has_done() -> None:
    never = asyncio.Event()

    async def slow(*_: object) -> str:
        await never.wait()
        return "never"

    storage = InMemoryCheckpointStorage()
    cast = Cast(drafter=["A draft"], reviewer=slow)
    workflow = review(cast).with_checkpointing().with_workflow_store(storage).build()
    result = await workflow.run("lamps", execution_id="one", timeout=timedelta(milliseconds=200))
    assert (result.state, dict(result.outputs)) == ("cancelled", {"draft.draft": "A draft"})
    assert "its time was up (the deadline of the run" in (result.error or "")

    running = workflow.run("lamps", execution_id="two", stream=True)
    async for event in running:
        if event.type == "executor_invoked" and event.executor_id == "review":
            await storage.cancel("two", reason="no lamps today", by="alice")
    cancelled = await running.get_final_response()
    assert "it was cancelled by alice (no lamps today)" in (cancelled.error or "")


@pytest.mark.parametrize("is_denied", [False, True])
async def test_an_execution_that_was_begun_as_an_agent_has_a_result(
    storage: CheckpointStorage,
    is_denied: bool,  # noqa: FBT001
) -> None:
    workflow = review(writers()).with_checkpointing().with_workflow_store(storage).build()
    if is_denied:
        cast = Cast(drafter=["A draft"], reviewer=["never"])
        builder = AgentWorkflow.create().with_name("Review").add_agent("draft", cast["drafter"])
        builder.add_agent("review", cast["reviewer"]).from_("draft").to("review").when_equals("answer", "none")
        workflow = builder.with_checkpointing().with_workflow_store(storage).build()
    answer = await workflow.as_agent("helper").run("lamps")
    [info] = await workflow.executions()
    result = await workflow.resume(info.run_id)
    assert (result.execution_id, result.success, result.state) == (info.run_id, not is_denied, "completed")
    assert str(result) == answer.text
    streamed = await workflow.resume(info.run_id, stream=True).get_final_response()
    assert (streamed.success, streamed.outputs, str(streamed)) == (result.success, result.outputs, answer.text)
    assert streamed.duration == result.duration


async def test_an_execution_that_a_host_began_is_gone_on_with_and_known() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = two_askers(four()).with_checkpointing().with_workflow_store(storage).build()
    host = Host(storage)
    host.register(workflow.as_workflow)
    async with host:
        await (await host.start("Askers", "go", run_id="one")).result()
    result = await workflow.resume("one")
    assert (result.execution_id, result.state, dict(result.outputs)) == ("one", "waiting", {"c.answer": "C"})


async def test_each_node_that_stops_the_execution_is_told_with_its_own_error() -> None:
    cast = Cast(one=[ChatClientException("f1")], two=[ChatClientException("f2")])
    workflow = AgentWorkflow.create().add_agent("a", cast["one"]).add_agent("b", cast["two"]).build()
    told: list[WorkflowAgentCompletedEvent] = []
    workflow.subscribe(WorkflowAgentCompletedEvent, told.append)
    with pytest.raises(ChatClientException):
        await workflow.run("go")
    assert {event.node_id: event.error for event in told} == {
        "a": "ChatClientException: f1",
        "b": "ChatClientException: f2",
    }


async def test_a_node_that_stops_a_resumed_execution_is_told_with_the_numbers_of_all_of_it(
    storage: CheckpointStorage,
) -> None:
    cast = Cast(drafter=["A draft"], reviewer=[ChatClientException("down"), ChatClientException("still down")])

    def built() -> AgentWorkflow:
        return review(cast).with_checkpointing().with_workflow_store(storage).build()

    with pytest.raises(ChatClientException):
        await built().run("lamps", execution_id="one")
    workflow = built()
    told: list[WorkflowAgentCompletedEvent] = []
    workflow.subscribe(WorkflowAgentCompletedEvent, told.append)
    with pytest.raises(ChatClientException):
        await workflow.resume("one")
    [failed] = told
    assert (failed.node_id, failed.error, failed.progress) == ("review", "ChatClientException: still down", 1.0)


async def test_events_of_an_execution_are_read_from_the_workflow(storage: CheckpointStorage) -> None:
    workflow = review(writers()).with_checkpointing().with_workflow_store(storage).build()
    await workflow.run("lamps", execution_id="one")
    every = [event async for event in workflow.events("one")]
    assert [event.data.node_id for event in every if event.type == "agent_completed"] == ["draft", "review"]
    rest = [event async for event in workflow.events("one", from_seq=5)]
    assert [event.seq for event in rest] == [event.seq for event in every[4:]]


@pytest.mark.parametrize("open_storage", ["sqlite", *MEMORY], indirect=True)  # Hosts do not run on files.
async def test_a_fork_that_waits_says_what_was_known_before_it(storage: StoreStorage) -> None:
    cast = Cast(first=[ChatClientException("down")], spare=["S"], one=["A"], two=["B"], idle=["never"])

    def built() -> AgentWorkflow:
        return (
            AgentWorkflow.create()
            .with_name("Forked")
            .with_checkpointing()
            .with_workflow_store(storage)
            .add_agent("first", cast["first"], output_key="text", on_error=fallback("spare"))
            .add_agent("spare", cast["spare"])
            .add_agent("idle", cast["idle"])
            .add_agent("a", cast["one"], approval="a?")
            .add_agent("b", cast["two"], approval="b?", on_error="isolate")
            .from_("first")
            .to("idle")
            .when_equals("text", "none")
            .to("a", "b")
            .as_default()
            .build()
        )

    original = await built().run("go", execution_id="one")
    host = Host(storage)
    host.register(built().as_workflow)
    between = await host.fork("one")
    fork = (await between.fork()).run_id
    # What happens to those that it comes from is nothing to it.
    for other in ("one", between.run_id):
        ids = by_node(dict((await built().resume(other)).requests))
        later = await built().resume(other, responses={ids["a"]: NodeApprovalRequest.approve()})
        assert dict(later.outputs) == {**original.outputs, "a.answer": "A"}
    forked = await built().resume(fork)
    assert (forked.execution_id, forked.state, len(forked.requests)) == (fork, "waiting", 2)
    assert forked.outputs == original.outputs == {"first.answer": "S", "first.text": "S"}
    assert (forked.failed, forked.skipped) == (original.failed, original.skipped)
    assert list(forked.skipped) == ["idle"]
    assert forked.duration >= original.duration
    ids = by_node(dict(forked.requests))
    later = await built().resume(fork, responses={ids["b"]: NodeApprovalRequest.deny("bad")})
    assert dict(later.outputs) == {**original.outputs, "b.error": "bad"}
    assert dict(later.failed) == {**original.failed, "b": "bad"}
