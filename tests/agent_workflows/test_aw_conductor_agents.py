"""The conductor with real agents: approvals, failures and resumes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tests.agent_workflows.conducting import defined, otherwise, when

from perdure import Agent, InMemoryCheckpointStorage, WorkflowBuilder, WorkflowRunState, tool
from perdure.agent_workflows import START, Approval, Conversation, Node, NodeApprovalRequest, OnError
from perdure.agent_workflows.conductor.conductor import Conductor
from perdure.agent_workflows.conductor.conversations import Conversations
from perdure.agent_workflows.node import AgentNode
from perdure.agent_workflows.plan import Plan
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.threads import InMemorySessionStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import CheckpointStorage, Message, Workflow, WorkflowRunResult
    from perdure.agent_workflows import Definition


def agent_node(node_id: str, client: ScriptedChatClient, *, tools: list[Any] | None = None, **options: Any) -> Node:
    """Return a node whose agent has a script under the name of the node."""
    return Node(id=node_id, agent=Agent(client, name=node_id, tools=tools or []), **options)


def graph(definition: Definition, storage: CheckpointStorage, conversations: Conversations | None = None) -> Workflow:
    """The workflow of a definition, with executors of its own."""
    conductor = Conductor(Plan(definition), name="Agents", conversations=conversations)
    builder = WorkflowBuilder(
        100, "Agents", start_executor=conductor, output_from=[conductor], checkpoint_storage=storage
    )
    builder.add_edge(conductor, conductor)
    for each in definition.nodes:
        made = AgentNode(each, cast("Agent[Any]", each.agent), conversations=conversations)
        builder.add_edge(conductor, made).add_edge(made, conductor)
    return builder.build()


def next_of(lines: Sequence[str], messages: Sequence[Message], _: object) -> str:
    """The line behind those that the conversation has."""
    return lines[sum(message.role == "assistant" for message in messages)]


def completed(result: WorkflowRunResult) -> list[str]:
    """The nodes that have ended, in order."""
    return [event.data.node_id for event in result if event.type == "agent_completed"]


async def test_a_node_that_waits_for_an_approval_holds_up_only_who_depends_on_it() -> None:
    client = ScriptedChatClient({"a": ["offer"], "b": ["facts"], "c": ["more"], "d": ["letter"]})
    storage = InMemoryCheckpointStorage()
    nodes = [
        agent_node("a", client, approval=Approval("send it?")),
        agent_node("b", client),
        agent_node("c", client),
        agent_node("d", client, template="{{a.answer}} and {{c.answer}}"),
    ]
    definition = defined(nodes, "b>c", "a>d", "c>d")
    waiting = await graph(definition, storage).run("go", run_id="r")
    assert waiting.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert completed(waiting) == ["b", "c"]
    (request,) = waiting.get_request_info_events()
    answer = NodeApprovalRequest.approve(resume_data={"answer": "better offer"})
    ended = await graph(definition, storage).run(run_id="r", responses={request.request_id: answer})
    (result,) = ended.get_outputs()
    assert result.final_answer == "letter"
    assert client.calls[-1].messages[-1].text == "better offer and more"
    assert len(client.calls) == 4


async def test_a_node_that_fails_after_a_tool_was_approved_has_its_fallback() -> None:
    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        return f"paid {amount}"

    client = ScriptedChatClient({"a": [ToolCall("pay", amount=3), ValueError("boom")], "f": ["sorry"], "b": ["done"]})
    storage = InMemoryCheckpointStorage()
    nodes = [
        agent_node("a", client, tools=[pay], on_error=OnError("fallback", "f")),
        agent_node("f", client),
        agent_node("b", client),
    ]
    workflow = graph(defined(nodes, "a>b"), storage)
    (request,) = (await workflow.run("go", run_id="r")).get_request_info_events()
    answer = request.data.to_function_approval_response(approved=True)
    ended = await workflow.run(run_id="r", responses={request.request_id: answer})
    (result,) = ended.get_outputs()
    assert result.failed["a"].endswith("boom")
    assert result.outputs == {"a.answer": "sorry", "b.answer": "done"}


async def test_agents_in_a_loop_know_their_conversation() -> None:
    replies = {"draft": ("one", "two"), "review": ("no", "yes")}
    client = ScriptedChatClient({name: partial(next_of, lines) for name, lines in replies.items()})
    store = InMemorySessionStore()
    nodes = [agent_node("draft", client, template="write {{review.answer?}}"), agent_node("review", client)]
    edges = [f"{START}>draft", "draft>review", when("review>draft", "no"), otherwise("review>END")]
    conversations = Conversations(store, Conversation("per_agent"), workflow_name="Agents")
    workflow = graph(defined(nodes, *edges), InMemoryCheckpointStorage(), conversations)
    (result,) = (await workflow.run("go", run_id="r")).get_outputs()
    assert result.final_answer == "yes"
    said = [message.text for message in await store.messages("workflow-Agents-r", "agent-draft")]
    assert said == ["write ", "one", "write no", "two"]
    assert [message.text for message in client.calls[2].messages] == ["write ", "one", "write no"]
