"""Short forms of definitions, and nodes with scripted answers, for tests of the conductor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure import Agent, Executor, WorkflowBuilder, WorkflowContext, handler
from perdure.agent_workflows import Definition, Edge, Equals, Iterations, Node, OnError, TextOutput
from perdure.agent_workflows.conductor.conductor import Conductor
from perdure.agent_workflows.messages import NodeResult, NodeTask
from perdure.agent_workflows.plan import Plan
from perdure.agent_workflows.stores import origins_of
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from perdure import CheckpointStorage, Clock, Workflow, WorkflowEvent, WorkflowRunResult
    from perdure.agent_workflows import AgentWorkflowResult
    from perdure.agent_workflows.conductor.conversations import Conversations

Says = Callable[[NodeTask], "str | Mapping[str, Any] | NodeResult"]
"""What a node answers to a task: a text, outputs, or a whole result. It may raise."""


def node(node_id: str, **options: Any) -> Node:
    """Return a node with an agent that is never called."""
    on_error = options.pop("on_error", "stop")
    if isinstance(on_error, str):
        on_error = OnError(on_error)  # pyright: ignore[reportArgumentType] - tests name the modes
    return Node(id=node_id, agent=Agent(ScriptedChatClient([]), name=f"{node_id}-agent"), on_error=on_error, **options)


def defined(nodes: str | list[Node], *edges: Edge | str, **options: Any) -> Definition:
    """A definition of nodes, named in a text or given; an edge may be a text like `a>b`."""
    made = [node(each) for each in nodes.split()] if isinstance(nodes, str) else nodes
    joined = [each if isinstance(each, Edge) else _edge(each) for each in edges]
    return Definition(name=options.pop("name", "Test"), nodes=tuple(made), edges=tuple(joined), **options)


def _edge(way: str) -> Edge:
    source, target = way.split(">")
    return Edge(source, target)


def when(way: str, value: Any = "yes", *, key: str = "answer") -> Edge:
    """Return an edge that is taken if the source's output is this."""
    source, target = way.split(">")
    return Edge(source, target, condition=Equals(key, value))


def otherwise(way: str) -> Edge:
    """A default edge."""
    source, target = way.split(">")
    return Edge(source, target, is_default=True)


def loops(limit: int = 25, **options: Any) -> Iterations:
    """Return limits of loops."""
    return Iterations(limit=limit, **options)


class Actor(Executor):
    """Stands for an agent, and notes its tasks."""

    def __init__(self, node: Node, says: Says, conversations: Conversations | None = None) -> None:
        super().__init__(node.id, on_error=None if node.on_error.mode == "stop" else "conductor")
        self._node = node
        self._says = says
        self._conversations = conversations
        self.tasks: list[NodeTask] = []

    @handler
    async def act(self, task: NodeTask, ctx: WorkflowContext[NodeResult]) -> None:
        """Answer a task, and note it with its history."""
        if task.past is not None and self._conversations is not None:
            task = replace(task, history=await self._conversations.messages(task.past))
        self.tasks.append(task)
        said = self._says(task)
        if isinstance(said, str):
            key = self._node.output.key if isinstance(self._node.output, TextOutput) else "answer"
            said = NodeResult(task.node_id, task.visit, {key: said}, said)
        elif not isinstance(said, NodeResult):
            said = NodeResult(task.node_id, task.visit, dict(said), str(said))
        await ctx.send_message(said, target_id="conductor")


class Troupe:
    """A workflow of actors under a conductor."""

    def __init__(self, definition: Definition, says: Mapping[str, Says] | None = None, **options: Any) -> None:
        self.definition = definition
        self.plan: Plan = Plan(definition)
        self.storage: CheckpointStorage | None = options.pop("storage", None)
        self.execution_id: str | None = options.pop("execution_id", None)
        self.clock: Clock | None = options.get("clock")
        self.conversations: Conversations | None = options.get("conversations")
        spoken = says or {}
        self.actors = {
            each.id: Actor(each, spoken.get(each.id, lambda task: f"{task.node_id}({task.text})"), self.conversations)
            for each in definition.nodes
        }
        origins = None if self.storage is None else partial(origins_of, self.storage)
        self.conductor = Conductor(self.plan, name=definition.name or "Test", origins=origins, **options)

    def workflow(self) -> Workflow:
        """The graph."""
        builder = WorkflowBuilder(
            1000, "Test", start_executor=self.conductor, output_from=[self.conductor], checkpoint_storage=self.storage
        )
        builder.add_edge(self.conductor, self.conductor)
        for actor in self.actors.values():
            builder.add_edge(self.conductor, actor).add_edge(actor, self.conductor)
        return builder.build()

    async def run(self, request: Any = "go") -> Played:
        """Run it to its end."""
        return Played(await self.workflow().run(request, run_id=self.execution_id), self)


class Played:
    """The result of a run."""

    def __init__(self, result: WorkflowRunResult, troupe: Troupe) -> None:
        self.events: list[WorkflowEvent[Any]] = list(result)
        self.outputs: list[Any] = result.get_outputs()
        self._troupe = troupe

    @property
    def result(self) -> AgentWorkflowResult:
        """The one result."""
        (result,) = self.outputs
        return result

    def told(self, *types: str) -> list[Any]:
        """The data of the events of these types."""
        return [event.data for event in self.events if event.type in types]

    def texts(self, node_id: str) -> list[str]:
        """The tasks that a node was given."""
        return [task.text for task in self._troupe.actors[node_id].tasks]
