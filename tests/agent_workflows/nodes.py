"""One node with somebody who gives it tasks, for tests of nodes without the rest of an agent workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from perdure import Agent, Executor, FailedMessage, WorkflowBuilder, WorkflowContext, handler
from perdure.agent_workflows import Handoffs, Node, StructuredOutput, UnionOutput
from perdure.agent_workflows.messages import NodeResult, NodeTask
from perdure.agent_workflows.node import AgentNode
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure import CheckpointStorage, Clock, SupportsAgentRun, Workflow, WorkflowRunResult
    from perdure.testing import ScriptedCall


class Ticket(BaseModel):
    """A ticket of a customer."""

    title: str
    urgency: int = 1


class Refusal(BaseModel):
    """Why nothing is done."""

    reason: str


TICKET = StructuredOutput(Ticket)
TICKET_BY_TOOL = StructuredOutput(Ticket, mode="tool")
EITHER = UnionOutput((Ticket, Refusal))
DESKS = Handoffs({"billing": "About money.", "tech": "About machines."})


class Conductor(Executor):
    """Sends tasks to the node, and yields its results."""

    def __init__(self, node_id: str) -> None:
        super().__init__("conductor")
        self._node_id = node_id

    @handler
    async def begin(self, text: str, ctx: WorkflowContext[NodeTask]) -> None:
        await ctx.send_message(NodeTask(self._node_id, 0, text), self._node_id)

    @handler
    async def pass_on(self, tasks: list[NodeTask], ctx: WorkflowContext[NodeTask]) -> None:
        for task in tasks:
            await ctx.send_message(task, self._node_id)

    @handler
    async def end(self, result: NodeResult, ctx: WorkflowContext[Any, NodeResult]) -> None:
        await ctx.yield_output(result)

    @handler
    async def fail(self, failed: FailedMessage, ctx: WorkflowContext[Any, FailedMessage]) -> None:
        await ctx.yield_output(failed)


def around(
    agent: SupportsAgentRun, *, storage: CheckpointStorage | None = None, clock: Clock | None = None, **node: Any
) -> Workflow:
    """A workflow of one node."""
    made = AgentNode(Node(id="n", agent=agent, **node), agent)
    conductor = Conductor("n")
    builder = WorkflowBuilder(
        name="one-node",
        start_executor=conductor,
        output_from=[conductor],
        intermediate_output_from="all_other",
        checkpoint_storage=storage,
        clock=clock,
    )
    return builder.add_edge(conductor, made).add_edge(made, conductor).build()


def clerk(replies: Any, *, tools: Iterable[Any] = (), **more: Any) -> tuple[ScriptedChatClient, Agent[Any]]:
    """An agent with a script, and its model."""
    client = ScriptedChatClient(replies)
    return client, Agent(client, "You are a clerk.", name="clerk", tools=list(tools), **more)


def outcome(result: WorkflowRunResult) -> Any:
    """The one thing that came of a run."""
    [found] = result.get_outputs()
    return found


def shown(call: ScriptedCall) -> list[str]:
    """Return the messages that a model received, without its instructions."""
    return [
        f"{message.role}: "
        + " ".join(str(each.text or each.name or each.result or each.type) for each in message.contents)
        for message in call.messages
        if message.role != "system"
    ]
