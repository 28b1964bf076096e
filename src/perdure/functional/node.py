"""The executor of a functional workflow: its handler is the function."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from perdure.engine import ActivationRecorder
from perdure.functional.context import RunContext, running
from perdure.functional.parameters import Parameters, hints_of
from perdure.functional.recording import begin_foreign_step
from perdure.functional.state import MemoryStore
from perdure.functional.step import StepWrapper
from perdure.functional.step_state import FUNCTION
from perdure.graph import (
    Dispatch,
    Executor,
    HandlerTypes,
    Route,
    StepCall,
    WorkflowContext,
    in_function,
    intercept_steps,
    rewire,
    split_types,
)
from perdure.types import contains_typevar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from perdure.annotations import Namespace
    from perdure.graph import ActivationPort


class FunctionNode(Executor):
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
        if parameters.by_keyword_alone:
            raise ValueError(
                f"workflow function {id!r} takes its message {parameters.by_keyword_alone[0]!r} by keyword only, but "
                "gets it as the first argument; take the * out of its parameters"
            )
        self.func = func
        self.parameters = parameters
        self.message_name = next(iter(parameters.plain), None)
        self.takes: object = hints.get(self.message_name, Any) if self.message_name is not None else None
        self.gives = {"return": hints["return"]} if "return" in hints else {}
        yields = split_types(hints.get("return"))
        declared = [self.takes] if self.message_name is not None and not contains_typevar(self.takes) else []
        # The annotation says which type is trusted and preferred. A Python function takes any other value as well.
        routes = tuple(Route("process", HandlerTypes((each,), (), yields)) for each in (*declared, Any))
        rewire(self, Dispatch(routes[:1] if declared == [Any] else routes, ()))

    @property
    def is_request_response_capable(self) -> bool:
        """Return True: the function may ask, and gets the answers itself."""
        return True

    @property
    def step_modules(self) -> tuple[str, ...]:
        """Return the modules of the steps that the function names: their types are trusted, too."""
        return tuple(dict.fromkeys(step.__module__ for step in _steps_named_in(self.func)))

    async def process(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        """Call the function. Its result is the output."""
        activation = ctx.activation
        assert isinstance(activation, ActivationRecorder), "the engine calls handlers"
        activation.is_function = True
        result = await self.call(message, RunContext(ctx, workflow_name=self.id))
        if result is not None:
            await ctx.yield_output(result)

    async def call(self, message: Any, context: RunContext) -> Any:
        """Call the function in a context, and return its result."""
        keywords: dict[str, Any] = dict(context.kwargs) if self.parameters.takes_any_keyword else {}
        given = (message,) if self.message_name is not None else ()
        positional, keywords = self.parameters.with_context(given, keywords, context)
        with running(context), intercept_steps(begin_foreign_step), in_function(context.activation):
            return await self.func(*positional, **keywords)

    def call_inside(
        self, message: Any, activation: ActivationPort, *, kwargs: Mapping[str, Any] | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Call the function as part of a handler of another workflow, whose run records its steps and questions.

        The call is a step itself, so that its steps are counted apart. Its state lives in memory: when it is re-entered
        from the top, its steps set again what they have recorded.
        """

        async def work(given: Any) -> Any:
            ctx: WorkflowContext[Any, Any] = WorkflowContext(activation)
            context = RunContext(ctx, workflow_name=self.id, store=MemoryStore(), kwargs=kwargs)
            return await self.call(given, context)

        work.__annotations__ = self.gives
        name = f"{FUNCTION}{self.id}"
        return activation.step(StepCall(name, work, (message,), is_stable=True, is_function=True))


def _steps_named_in(func: Callable[..., Any]) -> Iterator[StepWrapper[Any]]:
    try:
        seen = inspect.getclosurevars(inspect.unwrap(func))
    except (TypeError, ValueError):
        return
    for found in (*seen.globals.values(), *seen.nonlocals.values()):
        if isinstance(found, StepWrapper):
            yield found
