"""`RunContext`: questions, waits and state of a functional workflow, and the parameters that get it."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from perdure.annotations import Namespace, evaluate
from perdure.engine import GLOBAL_KWARGS_KEY, RUN_KWARGS_KEY, ActivationRecorder
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.functional.state import FunctionState, MemoryStore, recorded_writes
from perdure.graph import RequestTerms, Terms, WorkflowContext, current_activation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from datetime import datetime, timedelta


_VARIADIC = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
_CONTEXT_NAME = "ctx"


current_context: ContextVar[RunContext | None] = ContextVar("perdure_run_context", default=None)


class RunContext:
    """The run of a functional workflow, as its function and its steps see it.

    A parameter of this type, or with the name `ctx`, gets it; `get_run_context()` returns it elsewhere. A context made
    by hand, `RunContext("name")`, has state and keywords but no run: with it a test can call a step's function.
    """

    def __init__(
        self,
        workflow_name: str,
        *,
        streaming: bool = False,
        run_kwargs: Mapping[str, Any] | None = None,
        _context: WorkflowContext[Any, Any] | None = None,
        _store: MemoryStore | None = None,
    ) -> None:
        self._workflow_name = workflow_name
        self._streaming = streaming
        self._kwargs = run_kwargs or {}
        self._handler_context = _context
        if _context is None:
            self.state = FunctionState(MemoryStore())
        else:
            store = _context.state if _store is None else _store
            self.state = FunctionState(store, recorded_writes(_context.activation))

    @property
    def _context(self) -> WorkflowContext[Any, Any]:
        if self._handler_context is None:
            raise RuntimeError(
                "this RunContext was made by hand and has no run: it has state and keywords, but can't ask or wait; "
                "run the function with @workflow for that"
            )
        return self._handler_context

    @property
    def activation(self) -> ActivationRecorder:
        """Return the activation that the function runs in. Raises RuntimeError if there is none."""
        return self._context.activation

    def request_info(
        self, request_data: Any, response_type: Any, *, request_id: str | None = None, **terms: Unpack[RequestTerms]
    ) -> Coroutine[Any, Any, Any]:
        """Ask the outside, and return the answer.

        The function is suspended until the answer is there. Then it is re-entered from the top, and its steps return
        what was recorded. A step that asks is started again, too.

        When the `deadline` has passed, `default` is the answer. `approves` is what will be done if the answer says so:
        if it differs when the function comes back here, ApprovalMismatchError is raised.
        """
        return self.activation.ask(request_data, response_type, request_id, Terms(**terms), is_numbered=True)

    def sleep(self, until: timedelta | datetime | float) -> Coroutine[Any, Any, None]:
        """Wait for a timedelta or seconds, or until a moment with a time zone. The function is suspended meanwhile."""
        return self._context.sleep(until)

    async def add_event(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Emit an event of your own. A `transient` one reaches current observers and is never recorded.

        An `intermediate` event is an intermediate output. A context without a run has no observers.
        """
        if event.type == "intermediate":
            event = copy.copy(event)
            event.origin = WorkflowEventSource.FRAMEWORK  # from elsewhere, the engine refuses this type
        if self._handler_context is not None:
            self.activation.emit(event, transient=transient)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return a value of the run's state."""
        return self.state.get(key, default)

    def set_state(self, key: str, value: Any) -> None:
        """Set a value in the run's state. What a step sets is recorded with its result, and lost if it fails.

        Raises ValueError.
        """
        if key.startswith("_"):
            raise ValueError(
                f"state key {key!r} starts with '_', which is reserved for the engine; choose another name"
            )
        self.state.set(key, value)

    def is_streaming(self) -> bool:
        """Return whether the caller reads a stream."""
        return self._streaming if self._handler_context is None else self._handler_context.is_streaming()

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Return the further keywords of `run`."""
        if self._handler_context is None:
            return dict(self._kwargs)
        kept = self._context.get_state(RUN_KWARGS_KEY, {}).get("function_invocation_kwargs", {})
        return {**kept.get(GLOBAL_KWARGS_KEY, {}), **kept.get(self._workflow_name, {}), **self._kwargs}

    @property
    def idempotency_key(self) -> str:
        """Return a key for this run of the function: it stays over resumes, and differs in a fork."""
        return self._context.idempotency_key

    def spend(self, **amounts: float) -> None:
        """Count spending, by name, against the budget of the run."""
        self._context.spend(**amounts)


def get_run_context() -> RunContext | None:
    """Return the context of the functional workflow that the calling code runs in; None outside one."""
    found = current_context.get()
    return found if found is not None and current_activation() is found.activation else None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function. `context` is the name of the one that gets the context, if any."""

    signature: Signature
    context: str | None

    @classmethod
    def of(cls, fn: Callable[..., Any], hints: Mapping[str, Any], context_type: type) -> Parameters:
        """Read the parameters of a function with these annotations."""
        signature = inspect.signature(fn)
        contexts = (context_type, context_type.__name__)
        for name, parameter in signature.parameters.items():
            is_context = name == _CONTEXT_NAME or hints.get(name, parameter.annotation) in contexts
            if is_context and parameter.kind not in _VARIADIC:
                return cls(signature, name)
        return cls(signature, None)

    @property
    def plain(self) -> list[str]:
        """Return the parameters without the context and without `*` and `**`."""
        return [
            name
            for name, parameter in self.signature.parameters.items()
            if name != self.context and parameter.kind not in _VARIADIC
        ]

    @property
    def takes_any_keyword(self) -> bool:
        """Return whether there is a `**` parameter."""
        return any(each.kind is Parameter.VAR_KEYWORD for each in self.signature.parameters.values())

    def require_fitting(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: str) -> None:
        """Raise TypeError for arguments, without the context, that don't fit."""
        try:
            (self.signature if self.context in kwargs else self._without_context).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{owner}: {error}") from None

    @cached_property
    def _without_context(self) -> Signature:
        return Signature([each for name, each in self.signature.parameters.items() if name != self.context])

    def with_context(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with the context added. Raises TypeError for arguments that don't fit."""
        if self.context is None or self.context in kwargs:
            return args, dict(kwargs)
        bound = self._without_context.bind(*args, **kwargs).arguments
        whole = inspect.BoundArguments(self.signature, OrderedDict(bound, **{self.context: context}))
        return whole.args, whole.kwargs


def hints_of(func: Callable[..., Any], namespace: Namespace) -> dict[str, object]:
    """Return the annotations of a function and its result, as far as they can be read."""
    found: dict[str, object] = {}
    for name, annotation in inspect.get_annotations(inspect.unwrap(func)).items():
        with suppress(NameError, TypeError, ValueError, SyntaxError):
            found[name] = evaluate(annotation, func, namespace)
    return found
