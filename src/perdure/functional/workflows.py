"""`@workflow`: a function as a workflow. It is a graph of one node, so all that runs graphs runs it."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from perdure.annotations import namespace_here
from perdure.functional.node import FunctionNode
from perdure.graph.messages import WorkflowMessage
from perdure.runtime.call import ABSENT
from perdure.types import is_instance_of
from perdure.workflows.builder import WorkflowBuilder
from perdure.workflows.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.agents.providers import ContextProvider
    from perdure.annotations import Namespace
    from perdure.clock import Clock
    from perdure.events import WorkflowEvent
    from perdure.functional.agent import FunctionalWorkflowAgent
    from perdure.runtime.call import Call
    from perdure.storages.protocol import CheckpointStorage
    from perdure.streams import ResponseStream
    from perdure.workflows.result import WorkflowRunResult
    from perdure.workflows.run import Run

logger = logging.getLogger(__name__)

OnCheckpointError: TypeAlias = Literal["stop", "warn"]


class FunctionalWorkflow(Workflow):
    """A workflow that is written as a function, made by `@workflow`.

    A fresh message is a run of its own: what an earlier one has in its state is not seen. The instance stands for the
    run that was begun last, so that `run(responses=...)` answers it; `run(run_id=...)` and `run(checkpoint_id=...)` let
    it stand for another. Runs side by side need an instance each: `twin()` makes one, and is a factory for a host.
    """

    def __init__(
        self,
        func: Callable[..., Awaitable[Any]],
        *,
        name: str | None = None,
        description: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        on_checkpoint_error: OnCheckpointError = "stop",
        record_payloads: bool = False,
        clock: Clock | None = None,
        _namespace: Namespace | None = None,
    ) -> None:
        if not inspect.iscoroutinefunction(func):
            raise TypeError(f"@workflow is for an async function, {func!r} is none; write `async def`")
        namespace = _namespace if _namespace is not None else namespace_here(1)
        self.func = func
        self.node = FunctionNode(func, name or func.__name__, namespace)
        self._options: dict[str, Any] = {
            "name": self.node.id,
            "description": description,
            "on_checkpoint_error": on_checkpoint_error,
            "record_payloads": record_payloads,
            "clock": clock,
        }
        self._namespace = namespace.needed_by(func)
        graph = WorkflowBuilder(start_executor=self.node, **self._options).build().graph
        super().__init__(graph, checkpoint_storage=checkpoint_storage, clock=clock)
        self.__doc__ = func.__doc__

    def twin(self) -> FunctionalWorkflow:
        """Another instance of the same workflow, which stands for no run yet."""
        return FunctionalWorkflow(
            self.func, checkpoint_storage=self.checkpoint_storage, _namespace=self._namespace, **self._options
        )

    @overload
    def run(
        self,
        message: Any = ABSENT,
        *,
        stream: Literal[True],
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        run_id: str | None = None,
        takeover: bool = False,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        wait_for_timers: bool = True,
        **kwargs: Any,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]: ...
    @overload
    def run(
        self,
        message: Any = ABSENT,
        *,
        stream: Literal[False] = False,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        run_id: str | None = None,
        takeover: bool = False,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        wait_for_timers: bool = True,
        **kwargs: Any,
    ) -> Awaitable[WorkflowRunResult]: ...
    def run(
        self,
        message: Any = ABSENT,
        *,
        stream: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult] | Awaitable[WorkflowRunResult]:
        """Run the function until it returns, or until it waits for the outside.

        The options are those of `Workflow.run`; further keywords are the run's own, which the function finds in
        `RunContext.kwargs`, or in a `**` parameter. Answers that the run has had need not be given again, and may be.
        """
        own = {name: options.pop(name) for name in list(options) if name not in _OPTIONS}
        given = {**(function_invocation_kwargs or {}), **own}
        if given:
            options["function_invocation_kwargs"] = {self.start_executor_id: given}
        self._leave_run(message, options)
        return super().run(message, stream=stream, **options)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]

    def _message(self, message: Any, *, is_optional: bool) -> Any:
        """None is a message where the function says so, or where it takes none."""
        if isinstance(message, WorkflowMessage):
            message = message.data
        if self.node.message_name is None:
            if message is not None and message is not ABSENT:
                raise ValueError(f"the function of workflow {self.name!r} takes no message: run it without one")
            return ABSENT if is_optional else None
        if message is None and (is_optional or not _takes_none(self.node.takes)):
            return ABSENT
        return message

    def start(self, message: Any = ABSENT, **options: Any) -> Run:
        """A live handle on a run, as `Workflow.start` gives it. A message without a `run_id` begins one."""
        self._leave_run(message, options)
        return super().start(message, **options)

    def _leave_run(self, message: Any, options: Mapping[str, Any]) -> None:
        """A fresh message begins a run, whatever the one before waits for."""
        names_a_run = options.get("run_id") is not None or options.get("checkpoint_id") is not None
        is_fresh = self._message(message, is_optional=names_a_run or bool(options.get("responses"))) is not ABSENT
        is_busy = self._active is not None and self._active() is not None
        if self.tenure is None or names_a_run or is_busy or not is_fresh or options.get("responses") is not None:
            return
        if self.tenure.snapshot.requests:
            logger.warning(
                "workflow %r begins a run; run %r still waits for answers to %s, and is found by its run_id",
                self.name,
                self.tenure.run_id,
                ", ".join(self.tenure.snapshot.requests),
            )
        self.tenure = None

    def stream(
        self, call: Call, *, include_status_events: bool = False
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The events of a call. Answers that the run has had are no news."""
        return super().stream(replace(call, repeats_answers=True), include_status_events=include_status_events)

    def as_agent(  # pyright: ignore[reportIncompatibleMethodOverride] - another kind of agent, as in the reference
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        **kwargs: Any,
    ) -> FunctionalWorkflowAgent:
        """This workflow as an agent, with its name and description unless others are given."""
        from perdure.functional.agent import FunctionalWorkflowAgent  # noqa: PLC0415 - loaded where there are agents

        return FunctionalWorkflowAgent(
            self, name=name, description=description, context_providers=context_providers, **kwargs
        )


_OPTIONS = frozenset(inspect.signature(Workflow.run).parameters)


def _takes_none(type_: object) -> bool:
    return type_ is not Any and is_instance_of(None, type_)


@overload
def workflow(func: Callable[..., Awaitable[Any]]) -> FunctionalWorkflow: ...
@overload
def workflow(
    *,
    name: str | None = None,
    description: str | None = None,
    checkpoint_storage: CheckpointStorage | str | None = None,
    on_checkpoint_error: OnCheckpointError = "stop",
    record_payloads: bool = False,
    clock: Clock | None = None,
) -> Callable[[Callable[..., Awaitable[Any]]], FunctionalWorkflow]: ...
def workflow(
    func: Callable[..., Awaitable[Any]] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    checkpoint_storage: CheckpointStorage | str | None = None,
    on_checkpoint_error: OnCheckpointError = "stop",
    record_payloads: bool = False,
    clock: Clock | None = None,
) -> FunctionalWorkflow | Callable[[Callable[..., Awaitable[Any]]], FunctionalWorkflow]:
    """Make a workflow of an async function. It takes one message, and a `RunContext` if it wants one.

    The function is entered again from the top whenever its run goes on: steps that were done return what was recorded,
    questions what was answered. So let what it does depend on its message, its steps and its answers alone, and do
    work in steps. Agents of ours need no step around them.
    """
    namespace = namespace_here(1)

    def make(function: Callable[..., Awaitable[Any]]) -> FunctionalWorkflow:
        return FunctionalWorkflow(
            function,
            name=name,
            description=description,
            checkpoint_storage=checkpoint_storage,
            on_checkpoint_error=on_checkpoint_error,
            record_payloads=record_payloads,
            clock=clock,
            _namespace=namespace,
        )

    return make if func is None else make(func)
