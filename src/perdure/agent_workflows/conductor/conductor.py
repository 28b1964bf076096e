"""The conductor: an executor that starts nodes with tasks and reacts to their results.

`Conductor` receives messages. Each handler call creates an `_Execution`, which loads the state, asks `scheduling` for
moves, and applies them: it emits events, records outputs and sends tasks, until nodes have to run or none can.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    FailedMessage,
    Message,
    SystemClock,
    WorkflowContext,
    WorkflowEvent,
    handler,
    normalize_messages,
)
from perdure.agent_workflows import messages
from perdure.agent_workflows.conductor import scheduling
from perdure.agent_workflows.conductor.conversations import Conversations, ExecutionThreads
from perdure.agent_workflows.conductor.state import (
    ActiveTask,
    ExecutionRecord,
    ExecutionState,
    TaskRecord,
    completion_event,
    make_result,
    seconds_since,
)
from perdure.agent_workflows.definition import values
from perdure.agent_workflows.errors import AgentWorkflowError, IterationLimitError, MissingInputError
from perdure.agent_workflows.inputs import KnownValues, task_text
from perdure.agent_workflows.validation import CONDUCTOR

if TYPE_CHECKING:
    from perdure import Clock
    from perdure.agent_workflows.conductor.scheduling import Move, Outcome
    from perdure.agent_workflows.plan import EdgeKey, Plan

Context: TypeAlias = WorkflowContext[
    messages.NodeTask | messages.Continue, messages.AgentWorkflowResult | AgentResponse | str
]
OutputForm: TypeAlias = Literal["result", "text", "response"]
"""The form of a conductor's output."""
RESULT_PROPERTY: Final = "agent_workflow_result"
"""The additional property of an `AgentResponse` that has the result of the execution, as a dict."""


class Conductor(Executor):
    """Runs an execution by its plan. All that it keeps is state of the run.

    It accepts a request as a text, a message, messages, a dict, or another agent's response. At the end it yields the
    result in the form that `gives` names: the result itself, the final answer as a text, or an `AgentResponse` that
    also has the result under `RESULT_PROPERTY`. If the execution is no success, the answer is its error.

    `on_begin` is called when an execution begins, and returns the version of its definition. `origins` returns the
    executions that one is a fork of. `author_name` is the author of an `AgentResponse`; by default the workflow.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        conversations: Conversations | None = None,
        gives: OutputForm = "result",
        clock: Clock | None = None,
        on_begin: Callable[[], Awaitable[int | None]] | None = None,
        origins: Callable[[str], Awaitable[tuple[str, ...]]] | None = None,
        author_name: str | None = None,
    ) -> None:
        super().__init__(CONDUCTOR)
        self.plan = plan
        self.workflow_name = name
        self.conversations = conversations
        self.clock = clock or SystemClock()
        self.on_begin = on_begin
        self.origins = origins
        self._gives: OutputForm = gives
        self._author_name = author_name or name

    @handler
    async def on_request(
        self, request: str | Message | list[str | Message] | dict[str, Any] | AgentExecutorResponse, ctx: Context
    ) -> None:
        """Begin with a text, messages, another agent's response, or values, which nodes read as `input.<key>`."""
        given = request.agent_response.messages if isinstance(request, AgentExecutorResponse) else request
        await _Execution(self, ctx).begin(given if isinstance(given, str | dict) else _request_in(given))

    @handler
    async def on_node_completed(self, result: messages.NodeResult, ctx: Context) -> None:
        """Record the output of a node and start the nodes that can run now."""
        await _Execution(self, ctx).on_node_completed(result)

    @handler
    async def on_node_failed(self, failed: FailedMessage, ctx: Context) -> None:
        """Apply the error mode of a node that failed in all its attempts."""
        error = f"{failed.error.error_type}: {failed.error.message}"
        await _Execution(self, ctx).on_node_failed(failed.executor_id, error)

    @handler
    async def on_continue(self, _: messages.Continue, ctx: Context) -> None:
        """Do what may fail: all before it is committed by now."""
        await _Execution(self, ctx).on_continue()

    async def yield_result(self, result: messages.AgentWorkflowResult, ctx: Context) -> None:
        """Yield the result of an execution that has ended."""
        answer = (result.final_answer if result.success else result.error) or ""
        match self._gives:
            case "result":
                await ctx.yield_output(result)
            case "text":
                await ctx.yield_output(answer)
            case "response":
                message = Message("assistant", [answer], author_name=self._author_name)
                properties = {RESULT_PROPERTY: asdict(result)}
                response = AgentResponse(messages=[message], additional_properties=properties)
                await ctx.yield_output(response, in_pieces=True)


def _request_in(messages: Message | Sequence[str | Message]) -> str:
    """Return the request of a conversation: all user messages after the last one of an agent, or that one itself.

    Raises ValueError if there is no text.
    """
    texts: list[str] = []
    for message in reversed(normalize_messages(messages if isinstance(messages, Message) else list(messages))):
        if texts and message.role != "user":
            break
        texts.insert(0, message.text)
        if message.role != "user":
            break
    text = "\n\n".join(each for each in texts if each.strip())
    if not text:
        raise ValueError(
            "an agent workflow begins with a request, and these messages have no text; send at least one that has"
        )
    return text


class _Execution:
    """An execution during one handler call of the conductor.

    An error must not undo what this call did. So the conductor sends itself `Continue`, and raises in that superstep.
    """

    def __init__(self, conductor: Conductor, ctx: Context) -> None:
        self._conductor = conductor
        self._plan = conductor.plan
        self._clock = conductor.clock
        self._ctx = ctx
        self._state = ExecutionState(ctx.scope())
        self._threads = ExecutionThreads(conductor.conversations, self._state, ctx)
        # True while a failure would undo nothing of this call. Only `on_continue` starts that way.
        self._may_fail = False

    async def begin(self, request: Any) -> None:
        """Begin an execution. Raises RuntimeError if one is running."""
        if self._state.has_started and not self._state.record.is_finished:
            raise RuntimeError(
                f"execution {self._state.record.execution_id!r} is running: answer its requests, or continue it "
                "without a message; give another request to a new execution"
            )
        plan, on_begin, find_origins = self._plan, self._conductor.on_begin, self._conductor.origins
        version = None if on_begin is None else await self._ctx.step("definition", on_begin, key="definition")
        origins: tuple[str, ...] = ()
        if self._state.has_started:
            await self._threads.adopt_fork()
            origins = self._state.record.forked_from
        elif find_origins is not None:
            # Only the store knows of a fork that was made before the execution began.
            origins = await find_origins(self._ctx.run_id)
        record = ExecutionRecord(self._ctx.run_id, self._now(), plan.edges_digest, plan.requirements_digest, origins)
        self._state.start(record, request, plan)
        name, sizes = self._conductor.workflow_name, (len(plan.definition.nodes), len(plan.layers))
        await self._emit(messages.WorkflowStartedEvent(name, record.execution_id, *sizes, version))
        await self._threads.begin()
        await self._apply(
            scheduling.begin(plan, await self._find_holding(values.START, {values.INPUT: request}, request))
        )

    async def on_node_completed(self, result: messages.NodeResult) -> None:
        """Record a node's output and start the nodes that can run now."""
        task = self._state.active.get(result.node_id)
        if task is None or task.visit != result.visit:
            return await self._ignore_late_result(result.node_id)
        await self._resume()
        if result.denied is not None:
            return await self._apply(await self._fail_task(task, result.denied, is_denied=True))
        await self._threads.add(result)
        await self._report_end(task, outputs=result.outputs)
        # A node that a fallback replaces has failed all the same.
        self._state.forget_failures(task.node_id, None if task.actor == task.node_id else task.actor)
        outputs, form = dict(result.outputs), self._plan.nodes[task.node_id].output
        if task.actor != task.node_id and isinstance(form, values.TextOutput):
            # The text of a fallback is also under the key that the node would have.
            outputs[form.key] = result.text
        return await self._apply(await self._finish_task(task, "completed", messages.NodeOutput(outputs, result.text)))

    async def on_node_failed(self, actor: str, error: str) -> None:
        """Apply the error mode of a failed node."""
        task = self._state.active.get(actor)
        if task is None:
            return await self._ignore_late_result(actor)
        await self._resume()
        return await self._apply(await self._fail_task(task, error))

    async def on_continue(self) -> None:
        """Do what may fail. Raises MissingInputError or IterationLimitError."""
        await self._resume()
        unread = self._state.record.unread
        self._state.update(is_called=False, unread={})
        halted = self._state.progress.halted
        if halted is not None:
            for node_id, error in unread.items():
                self._state.mark_failed(ActiveTask(node_id, node_id), error)
            return await self._apply(scheduling.halt(self._plan, self._state.progress, unread, halted))
        self._may_fail = True
        return await self._apply(None, unread)

    async def _resume(self) -> None:
        """Continue, maybe in another process, with a changed definition, or in a fork. Raises AgentWorkflowError."""
        await self._threads.adopt_fork()
        record, plan = self._state.record, self._plan
        # `digest` and `terms` are stored names: the digests of the edges and of their conditions.
        if record.digest != plan.edges_digest:
            changed = ", ".join(sorted(set(self._state.edges).symmetric_difference(plan.edge_names)))
            raise AgentWorkflowError(
                f"the edges of workflow {self._conductor.workflow_name!r} have changed since execution "
                f"{record.execution_id!r} began: {changed}; resume it with those that it began with, or begin a new "
                "execution"
            )
        if record.terms != plan.requirements_digest:
            before, now = self._state.requirements, plan.requirements
            changed = "; ".join(
                f"{name} needs {now.get(name, 'nothing')} now, and {before.get(name, 'nothing')} before"
                for name in sorted({*before, *now})
                if before.get(name) != now.get(name)
            )
            message = f"conditions have changed since the execution last ran: {changed}; earlier decisions stay"
            await self._diagnose(message, level="warning")
            self._state.requirements = plan.requirements
            self._state.update(terms=plan.requirements_digest)

    async def _ignore_late_result(self, actor: str) -> None:
        message = f"a late or repeated result of node {actor!r} is ignored; nothing needs to be done"
        await self._diagnose(message, level="warning", node_id=actor)

    async def _apply(self, move: Move | None, unread: Iterable[str] = ()) -> None:
        """Apply a move and those that follow at once, until nodes have to run or none can; then end the execution."""
        pending = deque(unread)
        while True:
            if move is not None:
                await self._record_move(move)
                pending.extend(move.starts)
            if pending:
                move = await self._start_node(pending.popleft())
            elif (move := await self._next_pass()) is None:
                break
        if not self._state.progress.active and not self._state.record.is_called:
            await self._finish()
        self._state.save()

    async def _record_move(self, move: Move) -> None:
        self._may_fail = False
        before = self._state.progress
        if move.progress.passes != before.passes:
            await self._report_layers(is_pass_over=True)
        self._state.progress = move.progress
        for edge in move.taken:
            iteration = before.iteration(self._plan.loop_of(edge.source))
            await self._emit(
                messages.WorkflowEdgeTraversedEvent(
                    edge.source, edge.target, edge.is_conditional, edge.requirement, iteration
                )
            )
        for node_id in move.skips:
            self._state.outputs.set(node_id, None)
            self._state.forget_failures(node_id)
            await self._report_skipped(node_id, move.progress.skipped[node_id])
        await self._report_layers()

    async def _start_node(self, node_id: str) -> Move | None:
        """Give a node its task. Return the next move if it needs none or cannot have one."""
        task = ActiveTask(node_id, node_id, since=self._now())
        try:
            record = await self._make_task(task_text(self._plan, node_id, self._known_values(node_id)), node_id)
        except MissingInputError as error:
            if self._plan.nodes[node_id].on_error.mode in {"skip_dependents", "isolate"}:
                return await self._fail_task(task, str(error))
            # A fallback gets no task either: it would have to make up the missing input.
            if self._may_fail:
                raise
            await self._report_end(task, error=str(error))
            self._state.update(unread={**self._state.record.unread, node_id: str(error)})
            return await self._send_continue()
        self._may_fail = False
        if not self._is_unchanged(node_id, record):
            await self._send_task(task, record)
            return None
        await self._report_skipped(node_id, messages.UNCHANGED)
        return await self._finish_task(task, "completed", self._state.outputs[node_id])

    async def _send_continue(self) -> None:
        """Let the next superstep raise the error: by then this call is committed."""
        if not self._state.record.is_called:
            self._state.update(is_called=True)
            await self._ctx.send_message(messages.Continue(), target_id=CONDUCTOR)

    def _known_values(self, node_id: str) -> KnownValues:
        state = self._state
        progress = state.progress
        before = set(self._plan.forward_to.sources(node_id)) - {values.START}
        taken = {source for source in before if progress.decision(source, node_id) in {"taken", "spent"}}
        followed = (source for source, target in progress.followed if target == node_id)
        return KnownValues(
            request=state.request,
            outputs=state.outputs,
            taken=tuple(dict.fromkeys((*self._plan.in_order(taken), *followed))),
            skipped=progress.skipped,
            # A failed node that has outputs was replaced by a fallback.
            failed={
                each: error
                for each, error in state.record.failed.items()
                if progress.nodes.get(each) == "isolated" or each not in state.outputs
            },
        )

    async def _make_task(self, text: str, actor: str) -> TaskRecord:
        """Return a task as it is recorded. If the thread of the actor ends with the request, it is not repeated."""
        is_request, is_compared = self._threads.is_request(text), self._plan.definition.iterations.change_aware
        history = await self._threads.history(actor) if is_request or is_compared else ()
        last = history[-1] if history else None
        is_in_thread = is_request and last is not None and last.role == "user" and last.text == text
        if not is_compared:
            return TaskRecord(text, is_in_thread)
        seen = [message.to_dict() for message in history]
        return TaskRecord(text, is_in_thread, self._ctx.approval_digest([text, seen]))

    def _is_unchanged(self, node_id: str, task: TaskRecord) -> bool:
        """Return True if a node had the same task in the pass before, and succeeded."""
        before = self._state.tasks.get(node_id)
        is_equal = task.digest is not None and before is not None and before.digest == task.digest
        return is_equal and node_id in self._state.outputs and node_id not in self._state.record.failures

    async def _send_task(self, task: ActiveTask, record: TaskRecord) -> None:
        past = await self._threads.position(task.actor, without_last=int(record.is_in_thread))
        # Record it whatever the policies are: they may have changed when the node ends.
        self._state.tasks.set(task.actor, record)
        task = replace(task, visit=self._state.visits.get(task.actor, 0), since=self._now())
        self._state.active.set(task.actor, task)
        self._state.visits.set(task.actor, task.visit + 1)
        await self._report_start(task, record.text)
        message = messages.NodeTask(task.actor, task.visit, record.text, error=task.error, past=past)
        await self._ctx.send_message(message, target_id=task.actor)

    async def _send_same_task(self, task: ActiveTask) -> None:
        """Send the recorded task of a node to an actor."""
        await self._send_task(task, await self._make_task(self._state.tasks[task.node_id].text, task.actor))

    async def _fail_task(self, task: ActiveTask, error: str, *, is_denied: bool = False) -> Move | None:
        """Apply the error mode of a failed task's actor."""
        self._may_fail = False
        await self._report_end(task, error=error)
        on_error = self._plan.nodes[task.actor].on_error
        if on_error.mode == "stop" and not is_denied:
            # The mode was changed to `stop` after the failure: try the node again.
            self._state.active.set(task.actor, None)
            await self._send_same_task(task)
            return None
        self._state.mark_failed(task, error)
        denied = scheduling.denial_text(task.actor, error) if is_denied else None
        if on_error.mode == "stop":
            assert denied is not None, "another failure with this mode is tried again"
            return await self._halt(task, denied)
        if on_error.mode == "isolate":
            return await self._finish_task(task, "isolated", messages.NodeOutput({values.ERROR: error}))
        if on_error.mode == "fallback" and self._state.progress.halted is None:
            assert on_error.fallback is not None, "validation requires it"
            await self._release(task.actor)
            replacement = ActiveTask(task.node_id, on_error.fallback, error=error)
            if on_error.fallback not in self._state.active:
                await self._send_same_task(replacement)
            else:
                self._state.update(waiting=(*self._state.record.waiting, replacement))
            return None
        return await self._finish_task(task, "failed", None, denied=denied)

    async def _release(self, actor: str) -> None:
        """End the task of an actor, and give it the next one that waits for it."""
        self._state.active.set(actor, None)
        for waiting in self._state.record.waiting:
            if waiting.actor == actor:
                self._state.update(waiting=tuple(each for each in self._state.record.waiting if each is not waiting))
                await self._send_same_task(waiting)
                return

    async def _finish_task(
        self, task: ActiveTask, outcome: Outcome, output: messages.NodeOutput | None, *, denied: str | None = None
    ) -> Move:
        """Record the output of a node and decide its edges."""
        node_id = task.node_id
        before = self._state.outputs.get(node_id)
        ignored = self._plan.definition.iterations.ignored_keys
        if _without(before, ignored) != _without(output, ignored):
            # Something has changed in the cycles that the node is in or before.
            deciding, unchanged = self._plan.deciding, self._state.record.unchanged
            left = tuple(key for key in unchanged if node_id not in deciding[self._plan.cycle_of(key)])
            self._state.update(unchanged=left)
        if before != output:
            self._state.outputs.set(node_id, output)
        await self._end_task(task)
        holding = set[str]()
        if output is not None:
            holding = await self._find_holding(node_id, output.outputs, self._state.request)
        return scheduling.finish(self._plan, self._state.progress, node_id, outcome, holding, denied=denied)

    async def _end_task(self, task: ActiveTask) -> None:
        """Release the actor, and forget tasks that no later pass is compared with."""
        await self._release(task.actor)
        for each in dict.fromkeys((task.node_id, task.actor)):
            record = self._state.tasks.get(each)
            if record is not None and record.digest is None and each not in self._state.active:
                self._state.tasks.set(each, None)

    async def _halt(self, task: ActiveTask, reason: str) -> Move:
        """Start no further node after a denial."""
        self._state.outputs.set(task.node_id, None)
        failed = (task.node_id, *(each.node_id for each in self._state.record.waiting))
        self._state.update(waiting=())
        await self._end_task(task)
        move = scheduling.halt(self._plan, self._state.progress, failed, reason)
        others = ", ".join(map(repr, self._plan.in_order(move.progress.active)))
        if others:
            message = f"{reason}; no further node starts, and the execution ends after {others}: answer open requests"
            await self._diagnose(message, level="warning", node_id=task.node_id)
        return move

    async def _find_holding(self, source: str, outputs: Mapping[str, Any], request: Any) -> set[str]:
        """Return the targets of a node's edges whose conditions hold, evaluated in the order of declaration."""
        edges = [edge for edge in self._plan.outgoing[source] if edge.is_conditional]
        return {edge.target for edge in edges if await _holds(edge, outputs, request)}

    async def _next_pass(self) -> Move | None:
        """Return the first move of a further pass, or of leaving a loop or one of its cycles; None if there is none."""
        plan, state = self._plan, self._state
        for loop, held in scheduling.idle_loops(plan, state.progress):
            try:
                for cycle in sorted({plan.cycle_of(key) for key in held}):
                    if await self._is_cycle_over(cycle, [key for key in held if plan.cycle_of(key) == cycle]):
                        return scheduling.leave(plan, state.progress, loop, cycle)
            except IterationLimitError:
                if self._may_fail:
                    raise
                await self._send_continue()
                continue
            state.update(unchanged=tuple(dict.fromkeys((*state.record.unchanged, *held))))
            return scheduling.follow(plan, state.progress, loop)
        return None

    async def _is_cycle_over(self, cycle: int, held: list[EdgeKey]) -> bool:
        """Return True if a cycle is left though its back edges hold. Raises IterationLimitError."""
        iterations, passes = self._plan.definition.iterations, self._state.progress.round(cycle) + 1
        names = ", ".join(f"{source!r} -> {target!r}" for source, target in held)
        if iterations.converges and set(held) <= set(self._state.record.unchanged):
            await self._diagnose(f"the loop {names} is left: pass {passes} has changed nothing")
            return True
        if passes < iterations.limit:
            return False
        if iterations.then == "leave":
            await self._diagnose(f"the loop {names} is left: it has had {passes} passes", level="warning")
            return True
        raise IterationLimitError(
            f"the loop {names} would go on after {passes} passes, and its limit is {iterations.limit}: resume the "
            "execution with a larger limit, and it goes on from here; or let the loop be left then, with "
            "with_max_iterations(..., then='leave')"
        )

    async def _finish(self) -> None:
        self._state.update(is_finished=True, ended_at=self._now())
        result = make_result(self._plan, self._state, self._clock)
        if result.error is not None and self._state.progress.halted is None:
            await self._diagnose(result.error, level="warning")
        known = self._plan.in_order(self._state.progress.nodes)
        await self._emit(
            messages.WorkflowCompletedEvent(
                result.execution_id,
                success=result.success,
                successful_nodes=tuple(each for each in known if each not in {*result.failed, *result.skipped}),
                failed_nodes=tuple(result.failed),
                skipped_nodes=tuple(each for each in known if each in result.skipped),
                duration=result.duration,
                error=result.error,
            )
        )
        await self._conductor.yield_result(result, self._ctx)

    def _now(self) -> str:
        return self._clock.now().isoformat()

    def _iteration(self, *node_ids: str) -> int:
        """Return the pass that nodes are in; of several, the latest."""
        return max(self._state.progress.iteration(self._plan.loop_of(node_id)) for node_id in node_ids)

    async def _emit(self, data: messages.AgentWorkflowEvent) -> None:
        await self._ctx.add_event(WorkflowEvent(data.type, data))

    async def _diagnose(
        self, message: str, *, level: Literal["info", "warning"] = "info", node_id: str | None = None
    ) -> None:
        await self._emit(messages.WorkflowDiagnosticEvent(message, level, node_id))

    async def _report_skipped(self, node_id: str, reason: str) -> None:
        await self._emit(messages.WorkflowAgentSkippedEvent(node_id, reason, self._iteration(node_id)))

    async def _report_start(self, task: ActiveTask, text: str) -> None:
        """Emit that a node gets a task; before it, that its layer starts."""
        layer, layers = self._plan.layer_of(task.node_id), self._state.record.layers
        if str(layer) not in layers:
            self._state.update(layers={**layers, str(layer): self._now()})
            nodes = self._plan.layers[layer]
            await self._emit(messages.WorkflowLayerStartedEvent(layer, nodes, self._iteration(*nodes)))
        name = self._plan.nodes[task.actor].agent.name or task.actor
        await self._emit(
            messages.WorkflowAgentStartedEvent(task.actor, name, layer, self._iteration(task.node_id), text)
        )

    async def _report_end(
        self, task: ActiveTask, *, outputs: Mapping[str, Any] | None = None, error: str | None = None
    ) -> None:
        """Emit that a task has ended."""
        progress = self._state.progress
        await self._emit(completion_event(self._plan, progress, task, self._clock, outputs=outputs, error=error))

    async def _report_layers(self, *, is_pass_over: bool = False) -> None:
        """Emit that layers have ended: those with all nodes decided; at the end of a pass, those where no node runs."""
        status = self._state.progress.nodes
        undecided = "skipped" if is_pass_over else "acting"
        for number, since in self._state.record.layers.items():
            nodes = self._plan.layers[int(number)]
            if all(status.get(node_id, undecided) != "acting" for node_id in nodes):
                left = {each: at for each, at in self._state.record.layers.items() if each != number}
                self._state.update(layers=left)
                duration = seconds_since(self._clock, since)
                await self._emit(
                    messages.WorkflowLayerCompletedEvent(int(number), nodes, self._iteration(*nodes), duration)
                )


def _without(output: messages.NodeOutput | None, keys: Collection[str]) -> dict[str, Any] | None:
    """Return the outputs without some keys, also inside the whole value."""
    if output is None:
        return None
    kept = {key: value for key, value in output.outputs.items() if key not in keys}
    if isinstance(whole := kept.get(values.RESULT), Mapping):
        inside = cast("Mapping[str, Any]", whole)
        kept[values.RESULT] = {key: value for key, value in inside.items() if key not in keys}
    return kept


async def _holds(edge: values.Edge, outputs: Mapping[str, Any], request: Any) -> bool:
    if edge.condition is not None and not edge.condition.holds(outputs):
        return False
    if edge.predicate is None:
        return True
    # A user's function might change its argument, so it gets a copy.
    context = values.EdgeContext(edge.source, edge.target, copy.deepcopy(dict(outputs)), copy.deepcopy(request))
    try:
        answer = edge.predicate(context)
        return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception as error:
        raise AgentWorkflowError(
            f"the predicate of edge {edge.name} raised {type(error).__name__}: {error}; fix it and resume the execution"
        ) from error
