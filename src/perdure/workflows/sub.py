"""`WorkflowExecutor`: a workflow as one node. The child runs to idle inside one activation of its parent."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perdure import engine
from perdure.checkpoint import InterruptedStep, request_event
from perdure.errors import AlreadyAnsweredError, UnknownRequestError
from perdure.events import WorkflowEvent
from perdure.graph import Executor, Graph, TimersDue, WorkflowContext, WorkflowMessage, handler, response_handler
from perdure.kernel import Limits, PendingEvent, Snapshot, answer, begin_turn, expire, scope_of, wake
from perdure.typenames import describe, type_of
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure.workflows.workflow import Workflow

logger = logging.getLogger(__name__)

_EFFECTS = frozenset({"output", "intermediate", "request_info"})


@dataclass
class SubWorkflowResponseMessage:
    """The parent's answer to a request of its sub-workflow."""

    data: Any
    source_event: WorkflowEvent[Any]


@dataclass
class SubWorkflowRequestMessage:
    """A request of a sub-workflow, as its parent gets it. `create_response` makes the answer."""

    source_event: WorkflowEvent[Any]
    executor_id: str

    def create_response(self, data: Any) -> SubWorkflowResponseMessage:
        """Return an answer to send to `executor_id`. Raises TypeError if it has the wrong type."""
        expected = self.source_event.response_type
        if not is_instance_of(data, expected):
            raise TypeError(
                f"request {self.source_event.request_id!r} asks for a {describe(expected)}, not a {type_of(data)}"
            )
        return SubWorkflowResponseMessage(data, self.source_event)


class WorkflowExecutor(Executor):
    """Run a workflow as a node of another.

    Its outputs are sent as messages, or become outputs of the parent with `allow_direct_output`. Its requests reach the
    parent as `SubWorkflowRequestMessage`s, or become requests of the parent with `propagate_request`; questions about
    interrupted steps always do. The parent emits the child's events as `sub_workflow` events with a path.
    """

    def __init__(
        self,
        workflow: Workflow,
        id: str,  # noqa: A002 - the documented name
        allow_direct_output: bool = False,  # noqa: FBT001, FBT002 - positional in the reference
        propagate_request: bool = False,  # noqa: FBT001, FBT002 - positional in the reference
        **kwargs: Any,
    ) -> None:
        if kwargs.get("max_concurrency", 1) != 1:
            raise ValueError(f"sub-workflow {id!r} is one run, so max_concurrency must be 1")
        super().__init__(id, **kwargs)
        if workflow.checkpoint_storage is not None:
            logger.warning("the storage of the workflow inside %r is not used: the parent's checkpoints contain it", id)
        self.workflow = workflow
        self.allow_direct_output = allow_direct_output
        self.propagate_request = propagate_request
        self._changes = engine.ChangeDetector()

    def child_graph(self) -> Graph | None:
        """Return the graph of the inner workflow."""
        return self.workflow.graph

    @property
    def input_types(self) -> list[Any]:
        """Return the inner workflow's input types, and the type of answers to its requests."""
        return [*self.workflow.input_types, SubWorkflowResponseMessage]

    @property
    def output_types(self) -> list[Any]:
        """Return the inner workflow's output types, and the type of its requests."""
        asks = any(executor.is_request_response_capable for executor in self.workflow.executors.values())
        sent = [] if self.allow_direct_output else self.workflow.output_types
        return [*sent, SubWorkflowRequestMessage] if asks else list(sent)

    @property
    def workflow_output_types(self) -> list[Any]:
        """Return the inner workflow's output types if they are outputs of the parent."""
        return self.workflow.output_types if self.allow_direct_output else []

    def can_handle(self, message: WorkflowMessage) -> bool:
        """Return True if the inner start executor accepts the message. Answers are always accepted."""
        if message.original_request_info_event is not None or isinstance(message.data, SubWorkflowResponseMessage):
            return True
        return engine.accepts(self.workflow.get_start_executor(), message.data)

    def is_request_supported(self, request_type: Any, response_type: Any) -> bool:
        """Return True: the inner executor that asked handles the answer."""
        del request_type, response_type
        return True

    def to_dict(self) -> dict[str, Any]:
        """Convert the definition to plain data, including the inner workflow."""
        return {**super().to_dict(), "workflow": self.workflow.to_dict()}

    @handler
    async def process_workflow(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Run the next turn of the inner workflow."""
        activation = ctx.activation
        value = activation.context.values.fix(message, f"message of sub-workflow {self.id!r}")
        before = self._child(activation)
        if before.requests:
            text = f"sub-workflow {self.id!r} gets a message while its requests {', '.join(before.requests)} are open"
            activation.emit(WorkflowEvent.warning(text))
        after = begin_turn(before, target_id=self.workflow.start_executor_id, value=value)
        await self._advance(activation, after)

    @handler
    async def process_response(self, message: SubWorkflowResponseMessage, ctx: WorkflowContext[Any, Any]) -> None:
        """Handle an answer from the parent."""
        await self._answer(ctx.activation, {message.source_event.request_id: message.data})

    @handler
    async def process_timers(self, message: TimersDue, ctx: WorkflowContext[Any, Any]) -> None:
        """Handle timers that are due inside. The parent watches the deadlines of propagated requests."""
        activation, now = ctx.activation, message.moment
        before = self._child(activation)
        expired = expire(before, now=now, by=engine.BY_DEADLINE, apart_from=activation.context.snapshot.requests)
        after = wake(expired, now=now, fan_ins=engine.fan_ins_of(self.workflow.graph))
        await self._advance(activation, after)

    @response_handler
    async def process_propagated(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Handle the answer to a propagated request."""
        del request
        assert ctx.request_id is not None, "answers have a request id"
        await self._answer(ctx.activation, {ctx.request_id: response})

    async def _answer(self, activation: engine.ActivationRecorder, responses: Mapping[str, Any]) -> None:
        before, context = self._child(activation), activation.context
        try:
            answers = engine.accepted(
                responses, graph=self.workflow.graph, snapshot=before, values=context.values, run_id=self._name
            )
        except (UnknownRequestError, AlreadyAnsweredError) as error:
            activation.emit(WorkflowEvent.warning(f"an answer was ignored: {error}"))
            return
        await self._advance(activation, answer(before, answers, at=context.clock.now().isoformat()))

    @property
    def _name(self) -> str:
        """Return the name for error messages."""
        return f"{self.id} (a sub-workflow)"

    def _child(self, activation: engine.ActivationRecorder) -> Snapshot:
        context = activation.context
        return context.children.get(self.id) or context.snapshot.children.get(self.id) or Snapshot()

    async def _advance(self, activation: engine.ActivationRecorder, begun: Snapshot) -> None:
        context = activation.context
        child = ChildRun(
            self.workflow.graph,
            activation,
            prefix=f"{activation.activation_id}/",
            root_id=f"{context.root_id}/{self.id}",
            name=self._name,
            run_kwargs=engine.kwargs_for_child(
                context.run_kwargs, self.id, self.workflow.executors, parent=context.graph.executors
            ),
            tools=context.tools,
            streaming=context.streaming,
            emit=activation.pass_on,
            changes=self._changes,
        )
        loop = child.loop(await child.resume() or begun)
        async with engine.Closing(loop.run()) as batches:
            async for events in batches:
                for event in events:
                    # A grandchild's event already has its path.
                    path = event.path if event.type == "sub_workflow" else ()
                    inner, path = event.innermost, (self.id, *path)
                    outer = WorkflowEvent(
                        "sub_workflow", inner, executor_id=self.id, path=path, origin=engine.FRAMEWORK
                    )
                    if inner.type in _EFFECTS:
                        context.show(activation.activation, outer)
                    else:
                        context.emit(outer)
        activation.spend(loop.snapshot.limits.spent)
        activation.child = replace(loop.snapshot, limits=Limits(), scope="")
        await self._deliver_outputs(activation, begun, loop.snapshot)

    async def _deliver_outputs(self, activation: engine.ActivationRecorder, begun: Snapshot, after: Snapshot) -> None:
        give = activation.context.values.give
        for output in list(after.outputs)[len(begun.outputs) :]:
            if output.kind == "intermediate":
                activation.emit_output("intermediate", give(output.data))
            elif self.allow_direct_output:
                activation.output(give(output.data))
            else:
                activation.send(give(output.data), None)
        for request in after.requests.values():
            if request.id in begun.requests:
                continue
            event = request_event(request, activation.context.values)
            # A question about an interrupted step is for people: no executor of the parent can answer it.
            if self.propagate_request or request.request_type is InterruptedStep:
                activation.request(
                    event.data, request.response_type, request.id, engine.terms_of(request, activation.context.values)
                )
            else:
                activation.send(SubWorkflowRequestMessage(event, self.id), None)


@dataclass(eq=False)
class ChildRun:
    """A run inside an activation. Its supersteps are records of the enclosing run.

    Attributes:
        prefix: The beginning of the keys of its records.
        root_id: Ids inside are derived from this.
    """

    graph: Graph
    activation: engine.ActivationRecorder
    prefix: str
    root_id: str
    name: str
    run_kwargs: dict[str, Any]
    tools: list[Any] | None
    streaming: bool
    emit: Callable[[PendingEvent], None]
    changes: engine.ChangeDetector

    def __post_init__(self) -> None:
        self._carried = records_under(self.activation, self.prefix)
        self._journal = self.activation.context.journal.under(self.prefix, self._carried)

    async def resume(self) -> Snapshot | None:
        """Return the run as an earlier attempt left it, with the executors' states loaded."""
        reached = self._journal.child()
        if reached is not None:
            await engine.load(self.graph, reached, self.activation.context.values)
        return reached

    def loop(self, snapshot: Snapshot) -> engine.RunLoop:
        """Return the loop that advances the run. It may spend what is left of the enclosing run's budget."""
        activation, context = self.activation, self.activation.context
        limits = replace(snapshot.limits, budget=activation.left)
        return engine.RunLoop(
            graph=self.graph,
            snapshot=replace(snapshot, limits=limits, scope=scope_of(activation.activation_id)),
            values=context.values,
            committer=engine.ChildCommitter(self._journal, self.emit) if context.is_checkpointed else None,
            root_id=self.root_id,
            streaming=self.streaming,
            run_kwargs=self.run_kwargs,
            tools=self.tools,
            changes=self.changes,
            clock=context.clock,
            span=context.span,
            run_id=self.name,
            inside_of=f"{context.run_id}/{activation.executor_id}",
            carried=self._carried,
            budget=context.budget.child(activation.activation_id),
        )


def records_under(activation: engine.ActivationRecorder, prefix: str) -> dict[str, object]:
    """Return the records of an activation below a prefix, by the rest of their keys."""
    found = activation.context.journal.records(activation.activation_id)
    return {key.removeprefix(prefix): kept for key, kept in found.items() if key.startswith(prefix)}
