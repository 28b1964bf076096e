"""`@workflow`: a function as a workflow. It is a graph of one node, so everything that runs graphs runs it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, overload

from typing_extensions import Unpack

from perdure import graph
from perdure.annotations import Namespace, namespace_here
from perdure.checkpoint import CompatibilityReport
from perdure.engine import ABSENT, ActivationRecorder, Call, is_read_elsewhere
from perdure.errors import IncompatibleGraphError
from perdure.events import WorkflowEvent, WorkflowEventSource, WorkflowRunState
from perdure.functional.context import Parameters, RunContext, current_context, hints_of
from perdure.functional.state import FUNCTION, MemoryStore
from perdure.functional.step import StepWrapper, begin_foreign_step
from perdure.streams import ResponseStream
from perdure.types import contains_typevar, is_instance_of
from perdure.workflows import Workflow, WorkflowBuilder, WorkflowRunOptions, WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from perdure.agents import ContextProvider
    from perdure.clock import Clock
    from perdure.functional.agent import FunctionalWorkflowAgent
    from perdure.storage import CheckpointStorage


class FunctionNode(graph.Executor):
    """Run the function of a workflow. The node holds no state: all that a run has is in its records."""

    def __init__(self, func: Callable[..., Any], id: str, namespace: Namespace) -> None:  # noqa: A002 - the executor's
        super().__init__(id, type="FunctionalWorkflow", defer_discovery=True)
        hints = hints_of(func, namespace)
        parameters = Parameters.of(func, hints, RunContext)
        if len(parameters.plain) > 1:
            raise ValueError(
                f"workflow function {id!r} takes {', '.join(parameters.plain)}: it gets one message, and a RunContext; "
                "put all that it needs into one object"
            )
        self.message_name = next(iter(parameters.plain), None)
        if self.message_name and parameters.signature.parameters[self.message_name].kind is Parameter.KEYWORD_ONLY:
            raise ValueError(
                f"workflow function {id!r} takes its message {self.message_name!r} by keyword only, but "
                "gets it as the first argument; take the * out of its parameters"
            )
        self.func = func
        self.parameters = parameters
        self.takes: object = hints.get(self.message_name, Any) if self.message_name is not None else None
        self.gives = {"return": hints["return"]} if "return" in hints else {}
        yields = graph.split_types(hints.get("return"))
        declared = [self.takes] if self.message_name is not None and not contains_typevar(self.takes) else []
        # The annotation says which type is trusted and preferred. A Python function takes any other value as well.
        routes = tuple(graph.Route("process", graph.HandlerTypes((each,), (), yields)) for each in (*declared, Any))
        graph.rewire(self, graph.Dispatch(routes[:1] if declared == [Any] else routes, ()), is_function=True)

    @property
    def is_request_response_capable(self) -> bool:
        """Return True: the function may ask, and gets the answers itself."""
        return True

    @property
    def step_modules(self) -> tuple[str, ...]:
        """Return the modules of the steps that the function names: their types are trusted, too."""
        try:
            seen = inspect.getclosurevars(inspect.unwrap(self.func))
        except (TypeError, ValueError):
            return ()
        named = (*seen.globals.values(), *seen.nonlocals.values())
        return tuple(dict.fromkeys(each.__module__ for each in named if isinstance(each, StepWrapper)))

    async def process(self, message: Any, ctx: graph.WorkflowContext[Any, Any]) -> None:
        """Call the function. Its result is the output."""
        result = await self.call(message, RunContext(self.id, _context=ctx))
        if result is not None:
            await ctx.yield_output(result)

    async def call(self, message: Any, context: RunContext) -> Any:
        """Call the function in a context, and return its result."""
        keywords: dict[str, Any] = dict(context.kwargs) if self.parameters.takes_any_keyword else {}
        given = (message,) if self.message_name is not None else ()
        positional, keywords = self.parameters.with_context(given, keywords, context)
        with (
            graph.use_value(current_context, context),
            graph.intercept_steps(begin_foreign_step),
            graph.in_function(context.activation),
        ):
            return await self.func(*positional, **keywords)

    def call_inside(
        self, message: Any, activation: ActivationRecorder, *, kwargs: Mapping[str, Any] | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Call the function as part of a handler of another workflow, whose run records its steps and questions.

        The call is a step itself, so that its steps are counted apart. Its state lives in memory: when it is re-entered
        from the top, its steps set again what they have recorded.
        """

        async def work(given: Any) -> Any:
            ctx: graph.WorkflowContext[Any, Any] = graph.WorkflowContext(activation)
            context = RunContext(self.id, run_kwargs=kwargs, _context=ctx, _store=MemoryStore())
            return await self.call(given, context)

        work.__annotations__ = self.gives
        name = f"{FUNCTION}{self.id}"
        return activation.step(graph.StepCall(name, work, (message,), is_stable=True, is_function=True))


logger = logging.getLogger(__name__)

_RUN_OPTIONS = frozenset({"stream", *WorkflowRunOptions.__annotations__})
# How similar to an option a keyword must be to count as a misspelt one.
_SIMILARITY_MIN = 0.85
_OPTIONS_OF_A_RUN = ("deadline", "budget", "tags", "takeover", "client_kwargs")


class FunctionOptions(TypedDict, total=False):
    """The options of `@workflow`."""

    name: str | None
    description: str | None
    checkpoint_storage: CheckpointStorage | str | None
    on_checkpoint_error: Literal["stop", "warn"]
    record_payloads: bool
    clock: Clock | None


class FunctionRunOptions(WorkflowRunOptions, total=False, extra_items=Any):
    """The options of `FunctionalWorkflow.run`, beside `stream`: those of `Workflow.run`, and the run's own keywords."""


class FunctionalWorkflow(Workflow):
    """A workflow that is written as a function, made by `@workflow`.

    Each new message starts a run with its own state. The instance holds the run that was started last, so that
    `run(responses=...)` answers it; `run(run_id=...)` and `run(checkpoint_id=...)` switch to another. Parallel runs
    need an instance each: `copy()` makes one, and is a factory for a host.

    Inside a checkpointed run, `run` makes the function part of that run, unless it names a run of its own: its
    steps are recorded there, and its questions are requests of that run.
    """

    _none_is_message = True

    def __init__(
        self,
        func: Callable[..., Awaitable[Any]],
        *,
        _namespace: Namespace | None = None,
        **options: Unpack[FunctionOptions],
    ) -> None:
        if not inspect.iscoroutinefunction(func):
            raise TypeError(f"@workflow is for an async function, and {func!r} is none; write `async def`")
        namespace = _namespace if _namespace is not None else namespace_here(1)
        self.func = func
        self._has_warned = False
        self.node = FunctionNode(func, options.get("name") or func.__name__, namespace)
        storage = options.pop("checkpoint_storage", None)
        self._options: FunctionOptions = {**options, "name": self.node.id}
        self._namespace = namespace.needed_by(func)
        built = WorkflowBuilder(start_executor=self.node, **self._options).build()
        super().__init__(built.graph, checkpoint_storage=storage, clock=options.get("clock"))
        self.__doc__ = func.__doc__

    def copy(self) -> FunctionalWorkflow:
        """Return another instance of the same workflow, without a run."""
        return self.build()

    def build(self, *, checkpoint_storage: CheckpointStorage | str | None = None) -> FunctionalWorkflow:
        """Return another instance of the same workflow, without a run, and with its own storage if one is given."""
        storage = self.checkpoint_storage if checkpoint_storage is None else checkpoint_storage
        options: FunctionOptions = {**self._options, "checkpoint_storage": storage}
        return FunctionalWorkflow(self.func, _namespace=self._namespace, **options)

    @overload
    def run(
        self, message: Any = ABSENT, *, stream: Literal[True], **options: Unpack[FunctionRunOptions]
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]: ...
    @overload
    def run(
        self, message: Any = ABSENT, *, stream: Literal[False] = False, **options: Unpack[FunctionRunOptions]
    ) -> Awaitable[WorkflowRunResult]: ...
    def run(
        self, message: Any = ABSENT, *, stream: bool = False, **options: Unpack[FunctionRunOptions]
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult] | Awaitable[WorkflowRunResult]:
        """Run the function until it returns, or until it waits for the outside.

        The options are those of `Workflow.run`. Further keywords are the run's own: the function finds them in
        `RunContext.kwargs`, or in a `**` parameter. Answers that the run has had may be given again.
        """
        run_options, own = self._split_keywords(options)
        given: dict[str, Any] = {**(run_options.pop("function_invocation_kwargs", None) or {}), **own}
        activation = None if names_a_run(run_options) else _durable_activation()
        if activation is not None:
            _require_nestable(run_options, name=self.name)
            found = self._resolved(message, {})
            if found is ABSENT:
                raise ValueError(f"give workflow {self.name!r} a message: it has nothing to do otherwise")
            returned = self.run_inside(found, activation, run_options, given)
            finish = partial(
                WorkflowRunResult.of, include_status_events=run_options.get("include_status_events", False)
            )
            events: ResponseStream[WorkflowEvent[Any], WorkflowRunResult] = ResponseStream(
                _events(returned, self.name), finalizer=finish
            )
            return events if stream else events.get_final_response()
        if given:
            run_options["function_invocation_kwargs"] = {self.start_executor_id: given}
        return super().run(message, stream=stream, **run_options)

    def _split_keywords(self, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of `run`, and the run's own keywords. Raises TypeError for a misspelt option."""
        options = {name: value for name, value in keywords.items() if name in _RUN_OPTIONS}
        own = {name: value for name, value in keywords.items() if name not in _RUN_OPTIONS}
        for name in () if self.node.parameters.takes_any_keyword else own:
            near = get_close_matches(name, _RUN_OPTIONS, n=1, cutoff=_SIMILARITY_MIN)
            if near:
                raise TypeError(
                    f"run of workflow {self.name!r} has no option {name!r}: did you mean {near[0]!r}? For a keyword of "
                    "the run's own choose another name, or give the function a ** parameter"
                )
        return options, own

    def run_inside(
        self, message: Any, activation: ActivationRecorder, options: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Call the function as part of the enclosing run, and return its result."""
        storage = options.get("checkpoint_storage") or self.checkpoint_storage
        if storage is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the storage of workflow %r is not used inside another run, which records its steps; name a run of "
                "its own with run_id=... to use it",
                self.name,
            )
        return self.node.call_inside(message, activation, kwargs=kwargs)

    def _call(self, message: Any, **options: Any) -> Call:
        message = self._resolved(message, options)
        if message is not ABSENT:
            self._leave_run(options)
        return super()._call(message, **options)

    def _resolved(self, message: Any, options: Mapping[str, Any]) -> Any:
        """Return the message of a call; None if the function needs none; ABSENT if the call only continues a run.

        With a `run_id`, None starts a run that does not exist yet, and continues one that does.
        """
        if isinstance(message, graph.WorkflowMessage):
            message = message.data
        self._require_taken(message)
        if message is not None and message is not ABSENT:
            return message
        continues = options.get("responses") is not None or options.get("checkpoint_id") is not None
        needs_none = self.node.message_name is None or (
            self.node.takes is not Any and is_instance_of(None, self.node.takes)
        )
        return ABSENT if continues or not needs_none else None

    def _require_taken(self, message: Any) -> None:
        if self.node.message_name is None and message is not None and message is not ABSENT:
            raise ValueError(f"the function of workflow {self.name!r} takes no message: run it without one")

    def _leave_run(self, options: Mapping[str, Any]) -> None:
        """Release the current run, because a message starts another one."""
        is_answer = options.get("responses") is not None
        if self.loaded_run is None or names_a_run(options) or is_answer or self._is_busy:
            return
        if self.loaded_run.snapshot.requests:
            logger.warning(
                "workflow %r starts a run; run %r still waits for answers to %s, and is found by its run_id",
                self.name,
                self.loaded_run.run_id,
                ", ".join(self.loaded_run.snapshot.requests),
            )
        self.loaded_run = None

    @property
    def _is_busy(self) -> bool:
        """Return whether another task reads a stream of this instance. The next call closes an abandoned one."""
        stream = None if self._active is None else self._active()
        return stream is not None and is_read_elsewhere(stream)

    def stream(
        self, call: Call, *, include_status_events: bool = False
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Return the events of a call. Answers that the run has had already are ignored."""
        if call.message is not ABSENT:
            self._require_taken(call.message)
        if not self._is_busy:
            self._active = None
        attach_if_exists = call.message is None and call.run_id is not None
        call = replace(call, repeats_answers=True, attach_if_exists=attach_if_exists)
        return super().stream(call, include_status_events=include_status_events)

    def _explain(self, error: Exception) -> Exception:
        """Add a remedy to the error about a function that has another name than when the run was started."""
        if not isinstance(error, IncompatibleGraphError):
            return error
        report = error.report
        if not isinstance(report, CompatibilityReport) or len(report.removed) != 1:
            return error
        remedy = (
            "The function has another name than when its run was started: keep that one, "
            f"@workflow(name={report.removed[0]!r}), or choose another run_id if it is the run of another function"
        )
        return IncompatibleGraphError(checkpoint_id=error.checkpoint_id, report=report, remedy=remedy)

    def as_agent(  # pyright: ignore[reportIncompatibleMethodOverride] - another kind of agent, as in the reference
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        **kwargs: Any,
    ) -> FunctionalWorkflowAgent:
        """Return this workflow as an agent, with its name and description unless others are given."""
        from perdure.functional.agent import FunctionalWorkflowAgent  # noqa: PLC0415 - it imports this module

        return FunctionalWorkflowAgent(
            self, name=name, description=description, context_providers=context_providers, **kwargs
        )


FunctionalWorkflowDefinition: TypeAlias = FunctionalWorkflow
"""The result of `@workflow`. Each instance is a definition, too: `build()` makes another one, without a run."""


def names_a_run(options: Mapping[str, Any]) -> bool:
    """Return whether a call names a run: then it is a run of its own, even inside another one."""
    return options.get("run_id") is not None or options.get("checkpoint_id") is not None


def _durable_activation() -> ActivationRecorder | None:
    """Return the activation that the calling code runs in, if its run is checkpointed.

    A thread has none: a plain function that runs a loop of its own is part of the step that called it.
    """
    found = graph.activation_at_work()
    if found is None or not found.context.is_checkpointed:
        return None
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return found


def _require_nestable(options: Mapping[str, Any], *, name: str) -> None:
    """Raise ValueError for options that need a run of its own."""
    if options.get("responses") is not None:
        raise ValueError(
            f"questions of workflow {name!r} are requests of the enclosing run: answer them there, or name a run "
            "of its own with run_id=..."
        )
    given = [option for option in _OPTIONS_OF_A_RUN if options.get(option)]
    if options.get("wait_for_timers") is False:
        given.append("wait_for_timers")
    if given:
        raise ValueError(
            f"{', '.join(given)}: workflow {name!r} has no run of its own here, it is part of the enclosing run; give "
            "them to that run, or name one of its own with run_id=..."
        )


async def _events(returned: Awaitable[Any], name: str) -> AsyncGenerator[WorkflowEvent[Any]]:
    origin = WorkflowEventSource.FRAMEWORK
    yield WorkflowEvent("started", origin=origin)
    yield WorkflowEvent("status", state=WorkflowRunState.IN_PROGRESS, origin=origin)
    result = await returned
    if result is not None:
        yield WorkflowEvent("output", result, executor_id=name)
    yield WorkflowEvent("status", state=WorkflowRunState.IDLE, origin=origin)


@overload
def workflow(func: Callable[..., Awaitable[Any]]) -> FunctionalWorkflow: ...
@overload
def workflow(**options: Unpack[FunctionOptions]) -> Callable[[Callable[..., Awaitable[Any]]], FunctionalWorkflow]: ...
def workflow(
    func: Callable[..., Awaitable[Any]] | None = None, **options: Unpack[FunctionOptions]
) -> FunctionalWorkflow | Callable[[Callable[..., Awaitable[Any]]], FunctionalWorkflow]:
    """Make a workflow of an async function. It takes one message, and a `RunContext` if it wants one.

    The function is re-entered from the top whenever its run continues: finished steps return what was recorded,
    questions what was answered. So let its actions depend on nothing but its message, its steps and its answers, and
    do work in steps. An `Agent` needs no step around it.
    """
    make = partial(FunctionalWorkflow, _namespace=namespace_here(1), **options)
    return make if func is None else make(func)
