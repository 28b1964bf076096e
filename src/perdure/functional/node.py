"""The one executor of a functional workflow: its handler is the function."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from perdure.engine import ActivationRecorder, compared
from perdure.functional.board import OwnStore
from perdure.functional.branches import branch_place, trunk
from perdure.functional.context import RunContext, running
from perdure.functional.parameters import Parameters, hints_of
from perdure.functional.past import FUNCTION
from perdure.functional.setting import begin_heard
from perdure.functional.steps import StepWrapper
from perdure.functional.texts import text_digest
from perdure.graph import (
    Dispatch,
    Executor,
    HandlerTypes,
    Route,
    Scope,
    StepCall,
    WorkflowContext,
    hearing,
    rewire,
    split_types,
)
from perdure.types import contains_typevar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from perdure.annotations import Namespace
    from perdure.graph import ActivationPort


class FunctionNode(Executor):
    """Runs the function of a workflow. It holds no state: all that a run has is in its records."""

    def __init__(self, func: Callable[..., Any], id: str, namespace: Namespace) -> None:  # noqa: A002 - the executor's
        super().__init__(id, type="FunctionalWorkflow", defer_discovery=True)
        hints = hints_of(func, namespace)
        parameters = Parameters.of(func, hints, RunContext)
        if len(parameters.plain) > 1:
            raise ValueError(
                f"workflow function {id!r} takes {', '.join(parameters.plain)}: it is given one message, beside its "
                "RunContext; put all it needs into one object"
            )
        if parameters.by_keyword_alone:
            raise ValueError(
                f"workflow function {id!r} takes its message {parameters.by_keyword_alone[0]!r} by keyword alone, and "
                "is given it as the first argument; take the * out of its parameters"
            )
        self.func = func
        self.parameters = parameters
        self.message_name = next(iter(parameters.plain), None)
        self.takes: object = hints.get(self.message_name, Any) if self.message_name is not None else None
        self.gives = {"return": hints["return"]} if "return" in hints else {}
        yields = split_types(hints.get("return"))
        declared = [self.takes] if self.message_name is not None and not contains_typevar(self.takes) else []
        # The annotation says what is trusted and best; Python functions take what they are given.
        routes = tuple(Route("process", HandlerTypes((each,), (), yields)) for each in (*declared, Any))
        rewire(self, Dispatch(routes[:1] if declared == [Any] else routes, ()))

    @property
    def is_request_response_capable(self) -> bool:
        """The function may ask, and goes on with the answers itself."""
        return True

    @property
    def step_modules(self) -> tuple[str, ...]:
        """Where the steps were defined that the function names: their types are trusted, too."""
        return tuple(dict.fromkeys(step.__module__ for step in _steps_named_in(self.func)))

    async def process(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        """Call the function. What it returns is the output."""
        activation = ctx.activation
        assert isinstance(activation, ActivationRecorder), "the engine calls handlers"
        self._compare(activation)
        result = await self.called(message, RunContext(ctx, workflow_name=self.id))
        if result is not None:
            await ctx.yield_output(result)

    async def called(self, message: Any, context: RunContext) -> Any:
        """What the function returns."""
        keywords: dict[str, Any] = dict(context.kwargs) if self.parameters.takes_any_keyword else {}
        given = (message,) if self.message_name is not None else ()
        positional, keywords = self.parameters.with_context(given, keywords, context)
        with running(context), hearing(begin_heard), trunk():
            return await self.func(*positional, **keywords)

    def inside(
        self, message: Any, activation: ActivationPort, *, kwargs: Mapping[str, Any] | None = None
    ) -> Coroutine[Any, Any, Any]:
        """What the function returns, as part of a handler of another workflow: its steps and questions are that one's.

        It is a step, so that what it counts is its own. Its state is needed no longer than it runs: it is entered again
        from the top, and what its steps had set is in their records.
        """

        async def work(given: Any) -> Any:
            ctx: WorkflowContext[Any, Any] = WorkflowContext(activation)
            context = RunContext(ctx, workflow_name=self.id, store=OwnStore(), kwargs=kwargs)
            return await self.called(given, context)

        work.__annotations__ = self.gives
        name = f"{FUNCTION}{self.id}"
        scope = Scope(text_digest(self.func))
        return activation.step(StepCall(name, work, (message,), branch_place(name), scope=scope))

    def _compare(self, activation: ActivationRecorder) -> None:
        """Note how the function reads; tell if it read otherwise when it was entered first."""
        activation.reading = compared(activation.around, activation.home, text_digest(self.func))
        if activation.reading.is_edited:
            activation.warn(
                f"the function of workflow {self.id!r}, or one that it calls, was changed since this run entered it: "
                "steps of the same names and with the same arguments return what was recorded, others are run"
            )


def _steps_named_in(func: Callable[..., Any]) -> Iterator[StepWrapper[Any]]:
    try:
        seen = inspect.getclosurevars(inspect.unwrap(func))
    except (TypeError, ValueError):
        return
    for found in (*seen.globals.values(), *seen.nonlocals.values()):
        if isinstance(found, StepWrapper):
            yield found
