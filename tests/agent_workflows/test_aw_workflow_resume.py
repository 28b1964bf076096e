"""Going on: from the store, by id or the latest, with answers, after a failure, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.building import Cast, review, writers

from perdure import (
    Agent,
    AnswerTypeError,
    ChatClientException,
    CheckpointStorage,
    Content,
    FullHistory,
    InMemoryCheckpointStorage,
    LatestOnly,
    SqliteCheckpointStorage,
    UnknownRequestError,
    WorkflowCheckpoint,
    tool,
)
from perdure.agent_workflows import (
    END,
    START,
    AgentWorkflow,
    AgentWorkflowError,
    ConversationPolicies,
    ExecutionNotFoundError,
    IterationLimitError,
    NodeApprovalRequest,
)
from perdure.testing import ToolCall
from perdure.threads import InMemorySessionStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from perdure.agent_workflows import AgentWorkflowBuilder


def asking(cast: Cast) -> AgentWorkflowBuilder:
    """A draft that a person has to approve, then its review."""
    return (
        AgentWorkflow.create()
        .with_name("Review")
        .add_agent("draft", cast["drafter"], output_key="draft", approval="May it be used?")
        .add_agent("review", cast["reviewer"], input_key="draft")
        .from_("draft")
        .to("review")
    )


async def test_an_execution_that_has_ended_tells_its_result_again_and_runs_nothing(
    open_on_disk: Callable[..., Any],
) -> None:
    cast = writers()
    first = await review(cast).with_checkpointing().with_workflow_store(open_on_disk()).build().run("lamps")
    other = writers()
    workflow = review(other).with_checkpointing().with_workflow_store(open_on_disk()).build()
    assert await workflow.resume(first.execution_id) == first
    assert await workflow.resume() == first
    assert other.asked == []


async def test_the_latest_is_the_one_that_was_advanced_last(storage: CheckpointStorage) -> None:
    workflow = asking(writers()).with_checkpointing().with_workflow_store(storage).build()
    one = await workflow.run("lamps", execution_id="one")
    await workflow.run("tables", execution_id="two")
    assert (await workflow.resume()).execution_id == "two"
    [request_id] = one.requests
    await workflow.resume("one", responses={request_id: NodeApprovalRequest.approve()})
    assert (await workflow.resume()).final_answer == "A draft of lamps, reviewed"


@pytest.mark.parametrize("retention", [LatestOnly(), FullHistory()], ids=repr)
async def test_an_execution_waits_in_the_store_for_its_answer(
    tmp_path: Path, retention: LatestOnly | FullHistory
) -> None:
    def built(cast: Cast) -> AgentWorkflow:
        store = tmp_path / "workflows.db"
        return asking(cast).with_checkpointing().with_sqlite_workflow_store(store, retention).build()

    first, second, third = writers(), writers(), writers()
    waiting = await built(first).run("lamps", execution_id="one")
    assert (waiting.success, waiting.state, waiting.is_waiting, waiting.final_answer) == (False, "waiting", True, None)
    assert "resume(responses=" in str(waiting)
    [(request_id, request)] = waiting.requests.items()
    assert request == NodeApprovalRequest("draft", "drafter", "May it be used?", {"draft": "A draft of lamps"})

    again = await built(second).resume("one")
    assert (again.state, again.requests) == ("waiting", waiting.requests)
    [pending] = await built(second).requests("one")
    assert (pending.request_id, pending.data, pending.executor_id) == (request_id, request, "draft")

    workflow = built(third)
    await workflow.respond("one", {request_id: {"approved": True, "resume_data": {"draft": "Mine"}}}, by="alice")
    assert (await workflow.resume("one")).final_answer == "Mine, reviewed"
    assert await workflow.requests() == []
    assert (first.asked, second.asked, third.asked) == (["drafter"], [], ["reviewer"])


async def test_what_is_asked_can_be_answered_in_the_same_process_without_a_store() -> None:
    workflow = asking(writers()).build()
    one, two = await workflow.run("lamps"), await workflow.run("tables")
    [first], [second] = one.requests, two.requests
    denied = await workflow.resume(two.execution_id, responses={second: NodeApprovalRequest.deny("no tables")})
    assert (denied.success, denied.state) == (False, "completed")
    assert "no tables" in (denied.error or "")
    with pytest.raises(UnknownRequestError):
        await workflow.resume(one.execution_id, responses={"other": NodeApprovalRequest.approve()})
    with pytest.raises(AnswerTypeError):
        await workflow.resume(responses={first: 3})
    approved = await workflow.resume(responses={first: NodeApprovalRequest.approve()})
    assert approved.final_answer == "A draft of lamps, reviewed"
    with pytest.raises(AgentWorkflowError, match="keeps no executions, so there is nothing to resume"):
        await workflow.resume(one.execution_id)


async def test_a_node_that_has_failed_is_tried_again_and_nobody_else(storage: CheckpointStorage) -> None:
    replies: list[Any] = [ChatClientException("no model today"), "Lamps last."]
    cast = Cast(drafter=["A draft"], reviewer=replies, sibling=["Seen."])

    def built() -> AgentWorkflow:
        builder = review(cast).with_checkpointing().with_workflow_store(storage)
        return builder.add_agent("sibling", cast["sibling"]).from_("draft").to("sibling").build()

    with pytest.raises(ChatClientException):
        await built().run("lamps", execution_id="one")
    [info] = await built().executions()
    assert (info.run_id, info.status, info.error) == ("one", "failed", "ChatClientException: no model today")
    resumed = await built().resume("one")
    assert resumed.final_answer == "Lamps last.\n\nSeen."
    assert sorted(cast.asked) == ["drafter", "reviewer", "reviewer", "sibling"]


async def test_a_loop_at_its_limit_goes_on_with_a_larger_one(storage: CheckpointStorage) -> None:
    cast = Cast(counter=lambda messages, _: {"count": int(messages[-1].text or "0") + 1})
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}}

    def built(limit: int) -> AgentWorkflow:
        return (
            AgentWorkflow.create()
            .with_name("Count")
            .with_checkpointing()
            .with_workflow_store(storage)
            .with_max_iterations(limit)
            .add_agent("next", cast["counter"], template="{{next.count?}}", structured_output=schema)
            .from_(START)
            .to("next")
            .from_("next")
            .to("next")
            .when_less_than("count", 5)
            .to(END)
            .as_default()
            .build()
        )

    with pytest.raises(IterationLimitError):
        await built(3).run("go")
    assert (await built(10).resume()).outputs["next.count"] == 5
    assert len(cast.asked) == 5


async def test_what_can_not_be_resumed_is_said_to_be_so(storage: CheckpointStorage) -> None:
    with pytest.raises(AgentWorkflowError, match="build it with with_checkpointing"):
        await review(writers()).build().resume("one")
    workflow = review(writers()).with_checkpointing().with_workflow_store(storage).build()
    with pytest.raises(ExecutionNotFoundError, match="there is no execution of workflow 'Review' in its store"):
        await workflow.resume()
    with pytest.raises(ExecutionNotFoundError, match="there is no execution 'one' in the store"):
        await workflow.resume("one")
    other = review(writers(), "Other").with_checkpointing().with_workflow_store(storage).build()
    await other.run("lamps", execution_id="one")
    with pytest.raises(ExecutionNotFoundError, match="is one of workflow 'Other', not of 'Review'") as refused:
        await workflow.resume("one")
    assert (refused.value.workflow_name, refused.value.execution_id) == ("Review", "one")
    with pytest.raises(ExecutionNotFoundError):
        await workflow.requests("one")
    with pytest.raises(ExecutionNotFoundError):
        await workflow.respond("one", {})
    assert await workflow.executions() == []


async def test_a_resume_tells_its_events_and_subscribers(storage: CheckpointStorage) -> None:
    workflow = asking(writers()).with_checkpointing().with_workflow_store(storage).build()
    [request_id] = (await workflow.run("lamps")).requests
    stream = workflow.resume(responses={request_id: NodeApprovalRequest.approve()}, stream=True)
    told = [event.data.node_id async for event in stream if event.type == "agent_completed"]
    assert told == ["draft", "review"]
    assert (await stream.get_final_response()).final_answer == "A draft of lamps, reviewed"


async def test_a_stream_that_is_left_can_be_gone_on_with(storage: CheckpointStorage) -> None:
    cast = writers()
    workflow = review(cast).with_checkpointing().with_workflow_store(storage).build()
    stream = workflow.run("lamps", execution_id="one", stream=True)
    async for event in stream:
        if event.type == "agent_completed":
            break
    assert (await workflow.resume("one")).final_answer == "A draft of lamps, reviewed"
    assert cast.asked == ["drafter", "reviewer"]


async def test_an_execution_is_finished_with_the_definition_that_it_has_begun_with() -> None:
    storage = InMemoryCheckpointStorage()
    cast = writers()
    agents = {"draft": cast["drafter"], "review": cast["reviewer"], "print": cast["reviewer"]}
    first = asking(cast).with_checkpointing().with_workflow_store(storage)
    [request_id] = (await first.build().run("lamps", execution_id="one")).requests
    answers = {request_id: NodeApprovalRequest.approve()}
    changed = first.add_agent("print", cast["reviewer"]).from_("review").to("print").build()
    with pytest.raises(AgentWorkflowError, match="the edges of workflow 'Review' have changed"):
        await changed.resume("one", responses=answers)
    await changed.run("tables")
    old = await AgentWorkflow.load(
        storage, "Review", version=1, agents={node: agents[node] for node in ("draft", "review")}
    )
    assert (await old.resume("one")).final_answer == "A draft of lamps, reviewed"


async def test_what_a_tool_in_a_node_needs_is_asked_before_what_the_node_needs(storage: CheckpointStorage) -> None:
    paid: list[int] = []

    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    cast = Cast(payer=[ToolCall("pay", amount=3), "I have paid."])
    payer = Agent(cast.client, name="payer", tools=[pay])
    builder = AgentWorkflow.create().with_name("Pay").add_agent("pay", payer, approval=True)
    workflow = builder.with_checkpointing().with_workflow_store(storage).build()
    [(for_tool, asked)] = (await workflow.run("go")).requests.items()
    assert isinstance(asked, Content)
    assert paid == []
    [(for_node, request)] = (await workflow.resume(responses={for_tool: True})).requests.items()
    assert request.outputs == {"answer": "I have paid."}
    result = await workflow.resume(responses={for_node: NodeApprovalRequest.approve()})
    assert (result.final_answer, paid) == ("I have paid.", [3])


async def test_a_tenant_of_a_storage_is_a_workflow_store_too() -> None:
    whole = InMemoryCheckpointStorage()
    workflow = asking(writers()).with_checkpointing().with_workflow_store(whole.tenant("acme")).build()
    [request_id] = (await workflow.run("lamps", execution_id="one")).requests
    assert await whole.list_checkpoints() == []
    result = await workflow.resume("one", responses={request_id: NodeApprovalRequest.approve()})
    assert result.final_answer == "A draft of lamps, reviewed"


class Shelf:
    """A storage of a user's own: the six methods, over a dict."""

    def __init__(self) -> None:
        self.checkpoints: dict[str, WorkflowCheckpoint] = {}

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self.checkpoints[checkpoint.checkpoint_id] = checkpoint
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return self.checkpoints[checkpoint_id]

    async def list_checkpoints(self, *, workflow_name: str) -> Sequence[WorkflowCheckpoint]:
        return [each for each in self.checkpoints.values() if each.workflow_name == workflow_name]

    async def delete(self, checkpoint_id: str) -> bool:
        return self.checkpoints.pop(checkpoint_id, None) is not None

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        found = await self.list_checkpoints(workflow_name=workflow_name)
        return found[-1] if found else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> Sequence[str]:
        return [each.checkpoint_id for each in await self.list_checkpoints(workflow_name=workflow_name)]


async def test_a_storage_of_a_users_own_keeps_executions() -> None:
    shelf = Shelf()
    one, two = writers(), writers()
    [request_id] = (await asking(one).with_checkpointing().with_workflow_store(shelf).build().run("lamps")).requests
    workflow = asking(two).with_checkpointing().with_workflow_store(shelf).build()
    result = await workflow.resume(responses={request_id: NodeApprovalRequest.approve()})
    assert result.final_answer == "A draft of lamps, reviewed"
    assert (one.asked, two.asked) == (["drafter"], ["reviewer"])
    with pytest.raises(AgentWorkflowError, match="a Shelf keeps checkpoints but cannot list executions"):
        await workflow.executions()


async def test_a_conversation_goes_on_where_the_execution_does(tmp_path: Path) -> None:
    def built() -> AgentWorkflow:
        builder = asking(writers()).with_checkpointing().with_json_workflow_store(tmp_path / "workflows")
        builder.with_json_session_store(tmp_path / "sessions")
        return builder.with_conversation(ConversationPolicies.shared_thread()).build()

    [request_id] = (await built().run("lamps", execution_id="one")).requests
    workflow = built()
    await workflow.resume("one", responses={request_id: NodeApprovalRequest.approve()})
    assert workflow.session_store is not None
    said = await workflow.session_store.messages("workflow-Review-one", "main")
    assert [message.text for message in said] == [
        "lamps",
        "A draft of lamps",
        "A draft of lamps",
        "A draft of lamps, reviewed",
    ]


async def test_conversations_of_one_session_are_heard_by_the_next_execution() -> None:
    cast = Cast(clerk=lambda messages, _: f"I have heard {len(messages)}")
    store = InMemorySessionStore()
    workflow = (
        AgentWorkflow.create()
        .with_session_store(store)
        .with_conversation(ConversationPolicies.thread_per_agent(session_id="alice"))
        .add_agent("clerk", cast["clerk"])
        .build()
    )
    answers = [(await workflow.run(text)).final_answer for text in ("one", "two", "three")]
    assert answers == ["I have heard 1", "I have heard 3", "I have heard 5"]
    assert len(await store.messages("alice", "agent-clerk")) == 6


async def test_two_workflows_of_one_database_leave_each_other_alone(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "workflows.db") as storage:
        one = asking(writers()).with_checkpointing().with_workflow_store(storage).build()
        other = review(writers(), "Other").with_checkpointing().with_workflow_store(storage).build()
        await one.run("lamps", execution_id="one")
        await other.run("tables", execution_id="other")
        assert [info.run_id for info in await one.executions()] == ["one"]
        assert (await one.resume()).execution_id == "one"
        assert await other.requests() == []
