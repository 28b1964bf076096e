"""Costs of an execution, as counts of lengths, reads and bytes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.agent_workflows.building import Cast, review, writers
from tests.agent_workflows.conducting import defined, node
from typing_extensions import override

from perdure import InMemoryCheckpointStorage, Message
from perdure.agent_workflows import (
    AgentWorkflow,
    AgentWorkflowError,
    ConversationPolicies,
    NodeApprovalRequest,
    WorkflowAgentStartedEvent,
)
from perdure.agent_workflows.conductor import scheduling
from perdure.agent_workflows.graph import keep_waiting
from perdure.agent_workflows.plan import Plan
from perdure.threads import InMemorySessionStore

if TYPE_CHECKING:
    from perdure.agent_workflows import AgentWorkflowBuilder


def test_the_reason_of_a_skipped_node_does_not_grow_with_the_nodes_before_it() -> None:
    nodes, edges, before = [node("first", on_error="skip_dependents")], list[str](), ["first"]
    for layer in range(20):
        both = [f"a{layer}", f"b{layer}"]
        nodes += [node(each, reads="upstream") for each in both]
        edges += [f"{source}>{target}" for source in before for target in both]
        before = both
    plan = Plan(defined(nodes, *edges))
    move = scheduling.finish(plan, scheduling.begin(plan).progress, "first", "failed")
    assert move.progress.skipped["a0"] == "'first' has failed"
    assert (
        move.progress.skipped["b19"] == "'a18' was skipped: 'first' has failed; 'b18' was skipped: 'first' has failed"
    )


def test_the_reason_of_a_skipped_node_names_a_few_of_many_edges() -> None:
    sources = [f"n{number}" for number in range(300)]
    nodes = [node(each, on_error="skip_dependents") for each in sources]
    plan = Plan(defined([*nodes, node("join", reads="upstream")], *(f"{source}>join" for source in sources)))
    progress = scheduling.begin(plan).progress
    for each in sources:
        progress = scheduling.finish(plan, progress, each, "failed").progress
    reason = progress.skipped["join"]
    assert reason.startswith("'n0' has failed; 'n1' has failed; ")
    assert reason.endswith("; and the same with 295 more")


class Counted(InMemorySessionStore):
    """A session store that counts how often a thread is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    @override
    async def messages(self, session_id: str, thread_id: str, *, until: int | None = None) -> list[Message]:
        self.reads += 1
        return await super().messages(session_id, thread_id, until=until)


async def test_a_thread_is_read_by_who_is_told_what_was_said_in_it_and_once() -> None:
    threads, cast = Counted(), Cast(worker=lambda _messages, _options: "done")
    builder = AgentWorkflow.create().with_session_store(threads)
    for number in range(20):
        builder.add_agent(f"n{number}", cast["worker"])
    workflow = builder.with_conversation(ConversationPolicies.shared_thread(session_id="s")).build()
    await workflow.run("first")
    threads.reads = 0
    assert (await workflow.run("second")).success
    assert threads.reads == 20
    assert [len(call.messages) for call in cast.client.calls[20:]] == [41] * 20


async def test_what_a_node_has_done_does_not_keep_its_conversation() -> None:
    storage, threads = InMemoryCheckpointStorage(), InMemorySessionStore()
    await threads.append("s", "main", [Message("user", ["long ago " * 1000])])
    policy = ConversationPolicies.shared_thread(session_id="s")
    builder = review(writers()).with_session_store(threads).with_conversation(policy)
    workflow = builder.with_workflow_store(storage).with_checkpointing().build()
    result = await workflow.run("bees", execution_id="e")
    assert result.success
    report = await storage.size_report("e")
    assert report.size < 9000
    assert report.stored < 30_000
    assert not [each.name for each in report.entries if "private:draft" in each.name]


async def test_a_failing_subscriber_puts_no_texts_of_users_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("down")

    workflow = review(writers()).build()
    workflow.subscribe(WorkflowAgentStartedEvent, fail)
    workflow.subscribe_any(fail)
    with caplog.at_level(logging.ERROR):
        assert (await workflow.run("a secret")).success
    assert "a subscriber of an agent workflow failed at agent_started" in caplog.text
    assert "secret" not in caplog.text


def test_of_too_many_that_wait_the_one_that_has_waited_longest_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    waiting: dict[str, str] = {}
    for key in ("a", "b", "a", "c"):
        keep_waiting(waiting, key, f"what {key} is", "the execution", limit=2)
    assert list(waiting) == ["a", "c"]
    assert "the execution 'b' is dropped" in caplog.text


async def test_a_task_does_not_copy_what_was_said_before() -> None:
    stored: list[int] = []
    for length in (1, 200):
        storage, threads = InMemoryCheckpointStorage(), InMemorySessionStore()
        await threads.append("s", "main", [Message("user", [f"{number} is long ago"]) for number in range(length)])
        policy = ConversationPolicies.shared_thread(session_id="s")
        cast = writers()
        builder = review(cast).with_session_store(threads).with_conversation(policy)
        workflow = builder.with_workflow_store(storage).with_checkpointing().build()
        await workflow.run("bees", execution_id="e")
        assert [len(call.messages) for call in cast.client.calls] == [length + 1, length + 3]
        report = await storage.size_report("e")
        assert report.checkpoints > 4
        stored.append(report.stored)
    assert stored[1] - stored[0] < 1000


SHARED = ConversationPolicies.shared_thread(session_id="s")


def asks(cast: Cast, storage: InMemoryCheckpointStorage) -> AgentWorkflowBuilder:
    """A workflow of one node, which needs approval."""
    builder = AgentWorkflow.create().with_name("Asks").add_agent("draft", cast["drafter"], approval=True)
    return builder.with_workflow_store(storage).with_checkpointing()


async def test_a_node_says_what_is_missing_if_its_conversation_is_gone() -> None:
    cast, storage, threads = writers(), InMemoryCheckpointStorage(), InMemorySessionStore()
    await threads.append("s", "main", [Message("user", ["long ago"])])
    workflow = asks(cast, storage).with_session_store(threads).with_conversation(SHARED).build()
    [request_id] = (await workflow.run("bees", execution_id="e")).requests
    approved = {request_id: NodeApprovalRequest.approve()}
    with pytest.raises(AgentWorkflowError, match=r"thread 'main' .* has no session store any more"):
        await asks(cast, storage).build().resume("e", responses=approved)
    await threads.delete("s", "main")
    with pytest.raises(AgentWorkflowError, match=r"thread 'main' .* had 1 events .* and 0 of them are there"):
        await workflow.resume("e")


async def test_a_node_goes_on_with_its_conversation_though_the_policy_is_another_one() -> None:
    cast, storage, threads = writers(), InMemoryCheckpointStorage(), InMemorySessionStore()
    await threads.append("s", "main", [Message("user", ["long ago"])])
    workflow = asks(cast, storage).with_session_store(threads).with_conversation(SHARED).build()
    [request_id] = (await workflow.run("bees", execution_id="e")).requests
    later = asks(cast, storage).with_session_store(threads).build()
    ended = await later.resume("e", responses={request_id: NodeApprovalRequest.approve()})
    assert ended.final_answer == "A draft of bees"
    assert cast.asked == ["drafter"]
