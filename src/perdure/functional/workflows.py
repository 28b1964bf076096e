"""`@workflow`: a function as a workflow. It is a graph of one node, so all that runs graphs runs it."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from perdure.annotations import namespace_here
from perdure.checkpoint import CompatibilityReport
from perdure.engine import ABSENT, Closing, is_read_elsewhere
from perdure.errors import IncompatibleGraphError
from perdure.functional.keywords import own_keywords
from perdure.functional.nested import durable_activation, names_a_run, require_nestable, result_of, stream_of
from perdure.functional.node import FunctionNode
from perdure.graph import WorkflowMessage
from perdure.types import is_instance_of
from perdure.workflows import Workflow, WorkflowBuilder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.agents import ContextProvider
    from perdure.annotations import Namespace
    from perdure.clock import Clock
    from perdure.engine import Call, Events, Session
    from perdure.events import WorkflowEvent
    from perdure.functional.agent import FunctionalWorkflowAgent
    from perdure.graph import ActivationPort
    from perdure.storage import CheckpointStorage
    from perdure.streams import ResponseStream
    from perdure.workflows import Run, WorkflowRunResult

logger = logging.getLogger(__name__)

OnCheckpointError: TypeAlias = Literal["stop", "warn"]


class FunctionalWorkflow(Workflow):
    """A workflow that is written as a function, made by `@workflow`.

    A fresh message is a run of its own: what an earlier one has in its state is not seen. The instance stands for the
    run that was begun last, so that `run(responses=...)` answers it; `run(run_id=...)` and `run(checkpoint_id=...)` let
    it stand for another. Runs side by side need an instance each: `twin()` makes one, and is a factory for a host.

    Inside of a run that is checkpointed, `run` makes the function part of that run, unless it names a run of its own:
    steps are recorded there, and what it asks are requests of that run.
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
        self._has_warned = False
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
        own = own_keywords(options, self, takes_all=self.node.parameters.takes_any_keyword)
        given = {**(function_invocation_kwargs or {}), **own}
        activation = None if names_a_run(options) else durable_activation()
        if activation is not None:
            require_nestable(options, name=self.name)
            returned = self.nested(self._required(message), activation, options, given)
            tell = stream_of if stream else result_of
            return tell(returned, name=self.name, include_status_events=options.get("include_status_events", False))
        if given:
            options["function_invocation_kwargs"] = {self.start_executor_id: given}
        message = self._resolved(message, options)
        self._leave_run(message, options)
        return super().run(message, stream=stream, **options)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]

    def nested(
        self, message: Any, activation: ActivationPort, options: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """What the function returns, as part of the run around it."""
        storage = options.get("checkpoint_storage") or self.checkpoint_storage
        if storage is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the storage of workflow %r is not used inside of another run, which keeps what it does; name a run of "
                "its own with run_id=... to have one",
                self.name,
            )
        return self.node.inside(message, activation, kwargs=kwargs)

    def _message(self, message: Any, *, is_optional: bool) -> Any:
        """What `run` and `start` have made of it."""
        del is_optional
        return message

    def _resolved(self, message: Any, options: Mapping[str, Any]) -> Any:
        """The message of a call, None where the function can do without one; ABSENT if the call only goes on.

        With a `run_id`, None begins a run that is not there yet, and lets one that is go on.
        """
        if isinstance(message, WorkflowMessage):
            message = message.data
        self._require_taken(message)
        if message is not None and message is not ABSENT:
            return message
        goes_on = options.get("responses") is not None or options.get("checkpoint_id") is not None
        return ABSENT if goes_on or not self._does_without_message else None

    @property
    def _does_without_message(self) -> bool:
        return self.node.message_name is None or _takes_none(self.node.takes)

    def _require_taken(self, message: Any) -> None:
        if self.node.message_name is None and message is not None and message is not ABSENT:
            raise ValueError(f"the function of workflow {self.name!r} takes no message: run it without one")

    def _required(self, message: Any) -> Any:
        """The message of a call inside of another run. Raises ValueError if there is none and has to be."""
        found = self._resolved(message, {})
        if found is ABSENT:
            raise ValueError(f"give workflow {self.name!r} a message: there is nothing to do otherwise")
        return found

    def start(self, message: Any = ABSENT, **options: Any) -> Run:
        """A live handle on a run, as `Workflow.start` gives it. A message without a `run_id` begins one."""
        message = self._resolved(message, options)
        self._leave_run(message, options)
        return super().start(message, **options)

    def _leave_run(self, message: Any, options: Mapping[str, Any]) -> None:
        """A fresh message begins a run, whatever the one before waits for."""
        if self.tenure is None or names_a_run(options) or self._is_taken or message is ABSENT:
            return
        if options.get("responses") is not None:
            return
        if self.tenure.snapshot.requests:
            logger.warning(
                "workflow %r begins a run; run %r still waits for answers to %s, and is found by its run_id",
                self.name,
                self.tenure.run_id,
                ", ".join(self.tenure.snapshot.requests),
            )
        self.tenure = None

    @property
    def _is_taken(self) -> bool:
        """Whether another task reads a stream of this instance. One that nobody reads on is closed by the next call."""
        stream = None if self._active is None else self._active()
        return stream is not None and is_read_elsewhere(stream)

    def stream(
        self, call: Call, *, include_status_events: bool = False
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The events of a call. Answers that the run has had are no news."""
        if call.has_message:
            self._require_taken(call.message)
        only_begins = call.message is None and call.run_id is not None
        call = replace(call, repeats_answers=True, only_begins=only_begins)
        return super().stream(call, include_status_events=include_status_events)

    async def _advanced(self, session: Session) -> AsyncGenerator[Events]:
        async with Closing(super()._advanced(session)) as batches:
            try:
                async for events in batches:
                    yield events
            except IncompatibleGraphError as error:
                raise _renamed(error) from None

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


def _renamed(error: IncompatibleGraphError) -> IncompatibleGraphError:
    """The same error, with what helps: the function has another name than when the run was begun."""
    names = error.report.removed if isinstance(error.report, CompatibilityReport) else ()
    if len(names) != 1:
        return error
    remedy = (
        f"The function has another name than when its run was begun: keep that one, @workflow(name={names[0]!r}), or "
        "choose another run_id if it is the run of another function"
    )
    return IncompatibleGraphError(checkpoint_id=error.checkpoint_id, report=error.report, remedy=remedy)


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
