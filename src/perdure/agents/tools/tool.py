"""Tools: functions that a model can have called, what they take, and what each call of them is given."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast, get_args, overload

from perdure.agents.tools.context import FunctionInvocationContext
from perdure.agents.tools.results import SKIP_PARSING, SkipParsing, parsed_result
from perdure.agents.tools.schema import Arguments, Shape, docstring_of, model_of, read_docstring, shape_of
from perdure.agents.tools.tool_list import listed_tools
from perdure.annotations import Namespace, namespace_here
from perdure.data import mutable
from perdure.engine import has_failed, is_async, is_inside_step
from perdure.errors import ToolException
from perdure.graph import Retry, no_exit, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from pydantic import BaseModel

    from perdure.agents.messages.content import Content

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What a function gives. A thread can't be cancelled: whoever is cancelled waits for its end.

    Inside of a step the result is given nevertheless, so that it is recorded; whoever awaits the step is cancelled.
    """
    task = asyncio.ensure_future(asyncio.to_thread(_plainly, function))
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is not None and not is_inside_step():
        has_failed(task)  # an exception that nobody has looked at would be told by asyncio
        raise interruption
    return task.result()


def _plainly(function: Callable[[], T]) -> T:
    try:
        with no_exit():
            return function()
    except StopIteration as error:
        # No future can hold a StopIteration: whoever waits for the thread would wait for ever.
        raise RuntimeError("the tool raised StopIteration") from error


__all__ = ["SKIP_PARSING", "FunctionInvocationContext", "FunctionTool", "ToolTypes", "normalize_tools", "tool"]

ApprovalMode: TypeAlias = Literal["always_require", "never_require"]
IfToolInterrupted: TypeAlias = "Literal['tell', 'rerun', 'ask'] | Callable[[str], Any]"
"""What becomes of a call that a crash interrupted.

The model is told that nobody knows whether it was done; it is made again; somebody is asked; or a function finds out:
it is given the idempotency key of the call, and returns what the tool would have given, or `NOT_DONE`.

Inside of another step, as with the tools of an agent that is a tool itself, nobody can be asked: the model is told.
"""
ResultParser: TypeAlias = "Callable[[Any], str | list[Content]] | SkipParsing"
ToolTypes: TypeAlias = "FunctionTool | Callable[..., Any] | Mapping[str, Any] | object"
"""What can be given as a tool: functions, tools, dicts for those that the provider runs, MCP servers."""

_INTERRUPTED: Final = frozenset({"tell", "rerun", "ask"})


@mutable
class _Counts:
    """How often a tool was called; a method's tool counts for all instances."""

    calls: int = 0
    failures: int = 0


class FunctionTool:
    """A function that a model can have called; without a function, one that whoever uses the agent has to answer.

    `input_model` is a pydantic model or a JSON schema of its arguments; else they are read from the signature.
    """

    def __init__(
        self,
        *,
        name: str,
        description: str = "",
        approval_mode: ApprovalMode | None = None,
        kind: str | None = None,
        max_invocations: int | None = None,
        max_invocation_exceptions: int | None = None,
        additional_properties: Mapping[str, Any] | None = None,
        func: Callable[..., Any] | None = None,
        input_model: type[BaseModel] | Mapping[str, Any] | None = None,
        result_parser: ResultParser | None = None,
        if_interrupted: IfToolInterrupted = "tell",
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        namespace: Namespace | None = None,
    ) -> None:
        func = _innermost(func)
        self.name = name
        self.description = description
        self.approval_mode: ApprovalMode = _approval_mode(name, approval_mode)
        self.kind = kind
        self.max_invocations = _limit(name, "max_invocations", max_invocations)
        self.max_invocation_exceptions = _limit(name, "max_invocation_exceptions", max_invocation_exceptions)
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.func = func
        self.result_parser = _result_parser(name, result_parser)
        self.if_interrupted: IfToolInterrupted = _if_interrupted(name, if_interrupted)
        self.policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        self._shape = Shape() if func is None else shape_of(func, name=name, is_ctx_enough=input_model is not None)
        self._input_model = _input_model(name, input_model)
        self._namespace = namespace
        self._counts = _Counts()
        self._receiver: object = None

    @staticmethod
    def of(func: Callable[..., Any]) -> FunctionTool:
        """A function as a tool, as `tool` makes it."""
        return tool(func)

    @property
    def declaration_only(self) -> bool:
        """Whether there is no function to call."""
        return self.func is None

    @property
    def sees_context(self) -> bool:
        """Whether the function is given more than what a model says."""
        return self._shape.context is not None or self._shape.takes_more

    @property
    def invocation_count(self) -> int:
        """How often it was called in this process. It may be set, to begin anew."""
        return self._counts.calls

    @invocation_count.setter
    def invocation_count(self, count: int) -> None:
        self._counts.calls = count

    @property
    def invocation_exception_count(self) -> int:
        """How often it raised in this process. It may be set, to begin anew."""
        return self._counts.failures

    @invocation_exception_count.setter
    def invocation_exception_count(self, count: int) -> None:
        self._counts.failures = count

    @property
    def input_model(self) -> type[BaseModel] | None:
        """The pydantic model of its arguments; None if they were described by a JSON schema."""
        return self._arguments.model

    @functools.cached_property
    def _arguments(self) -> Arguments:
        given = self._input_model
        if isinstance(given, Mapping):
            return Arguments(self.name, schema=given, shape=self._shape)
        if given is not None:
            return Arguments(self.name, model=given, shape=self._shape)
        if self.func is None:
            return Arguments(self.name, schema={"type": "object", "properties": {}})
        model = model_of(self.func, self._shape, name=self.name, namespace=self._namespace)
        return Arguments(self.name, model=model, shape=self._shape)

    def parameters(self) -> dict[str, Any]:
        """What it takes, as a JSON schema."""
        return self._arguments.as_schema()

    def to_json_schema_spec(self) -> dict[str, Any]:
        """What a model is told of it, as most providers want it."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters()}
        return {"type": "function", "function": told}

    def checked(self, arguments: object) -> dict[str, Any]:
        """Arguments as the function takes them. Raises ArgumentsError (a TypeError)."""
        return self._arguments.checked(arguments)

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool:
        """As an attribute of an instance, a tool that is called with it."""
        receiver = owner if self._shape.receiver == "cls" else instance
        if receiver is None or self._shape.receiver is None:
            return self
        bound = copy.copy(self)
        bound._receiver = receiver
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Raises ToolException if there is none, or if it was called too often."""
        self._require_callable()
        assert self.func is not None, "there is a function"
        self._counts.calls += 1
        receiver = () if self._receiver is None else (self._receiver,)
        try:
            outcome = self.func(*receiver, *args, **kwargs)
        except Exception:
            self._counts.failures += 1
            raise
        return self._counted(outcome) if inspect.iscoroutine(outcome) else outcome

    async def _counted(self, outcome: Any) -> Any:
        try:
            return await outcome
        except Exception:
            self._counts.failures += 1
            raise

    def _require_callable(self) -> None:
        if self.func is None:
            raise ToolException(f"tool {self.name!r} has no function; whoever uses the agent answers its calls")
        if self.max_invocations is not None and self._counts.calls >= self.max_invocations:
            raise ToolException(f"tool {self.name!r} may be called {self.max_invocations} times, and has been")
        if self.max_invocation_exceptions is not None and self._counts.failures >= self.max_invocation_exceptions:
            raise ToolException(
                f"tool {self.name!r} has failed {self._counts.failures} times; it can't be used any more"
            )

    def recall(self, *, has_failed: bool) -> None:
        """Count a call that an earlier life has made."""
        self._counts.calls += 1
        self._counts.failures += has_failed

    async def invoke(
        self,
        *,
        arguments: BaseModel | Mapping[str, Any] | None = None,
        context: FunctionInvocationContext | None = None,
        tool_call_id: str | None = None,  # noqa: ARG002 - the reference's name
        skip_parsing: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Check the arguments, call the function, and give what it gave as contents.

        Arguments may be given by name as well. With `skip_parsing`, or `SKIP_PARSING` as the tool's parser, what the
        function gave comes back as it is.

        Raises:
            ToolException: there is no function, or it was called too often.
            TypeError: the arguments don't fit.
        """
        if self.func is None:
            self._require_callable()
        if arguments is None:
            arguments = kwargs or ({} if context is None else context.arguments)
        elif kwargs:
            raise TypeError(f"tool {self.name!r} is given arguments, or {', '.join(kwargs)} by name, not both")
        checked = self.checked(arguments)
        context = FunctionInvocationContext(self, checked) if context is None else context
        context.function, context.arguments = self, checked
        result = await self._called(context)
        return result if skip_parsing else self.parse(result)

    async def _called(self, context: FunctionInvocationContext) -> Any:
        by_place, by_name = self._shape.bound(context.arguments, context.kwargs)
        if self._shape.context is not None:
            by_name[self._shape.context] = context
        call = functools.partial(self, *by_place, **by_name)
        assert self.func is not None, "there is a function"
        if is_async(self.func):
            return await call()
        outcome = await in_thread(call)
        return await outcome if inspect.isawaitable(outcome) else outcome

    def parse(self, result: Any) -> Any:
        """What the function gave, as contents. If its parser fails, as text."""
        if isinstance(self.result_parser, SkipParsing):
            return result
        if self.result_parser is None:
            return parsed_result(result)
        try:
            return parsed_result(self.result_parser(result))
        except Exception:  # noqa: BLE001 - the tool has done its work, and that must not be lost
            return parsed_result(str(result))

    @staticmethod
    def parse_result(result: Any) -> list[Content]:
        """Any value as contents, as it is told to a model."""
        return parsed_result(result)

    def __str__(self) -> str:
        more = f", description={self.description}" if self.description else ""
        return f"{type(self).__name__}(name={self.name}{more})"

    __repr__ = __str__


def _innermost(func: Callable[..., Any] | None) -> Callable[..., Any] | None:
    return func.func if isinstance(func, FunctionTool) else func


def _approval_mode(name: str, mode: str | None) -> ApprovalMode:
    if mode not in {None, *get_args(ApprovalMode)}:
        raise ValueError(f"tool {name!r}: approval_mode is 'always_require' or 'never_require', not {mode!r}")
    return cast("ApprovalMode", mode or "never_require")


def _limit(name: str, what: str, limit: Any) -> int | None:
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ValueError(f"tool {name!r}: {what} is 1 or more, or None for no limit, not {limit!r}")
    return limit


def _input_model(name: str, given: Any) -> type[BaseModel] | Mapping[str, Any] | None:
    if given is None or isinstance(given, Mapping) or hasattr(given, "model_validate"):
        return cast("type[BaseModel] | Mapping[str, Any] | None", given)
    raise TypeError(f"tool {name!r}: the schema of its arguments is a pydantic model or a JSON schema, not {given!r}")


def _result_parser(name: str, parser: Any) -> ResultParser | None:
    if parser is None or callable(parser) or isinstance(parser, SkipParsing):
        return cast("ResultParser | None", parser)
    raise TypeError(
        f"tool {name!r}: result_parser is a function of what the tool gave, or SKIP_PARSING, not {parser!r}"
    )


def _if_interrupted(name: str, policy: object) -> IfToolInterrupted:
    if not callable(policy) and policy not in _INTERRUPTED:
        raise ValueError(f"tool {name!r}: if_interrupted is 'tell', 'rerun', 'ask' or a function, not {policy!r}")
    return cast("IfToolInterrupted", policy)


@overload
def tool(
    func: Callable[..., Any],
    *,
    name: str | None = ...,
    description: str | None = ...,
    schema: type[BaseModel] | Mapping[str, Any] | None = ...,
    approval_mode: ApprovalMode | None = ...,
    kind: str | None = ...,
    max_invocations: int | None = ...,
    max_invocation_exceptions: int | None = ...,
    additional_properties: Mapping[str, Any] | None = ...,
    result_parser: ResultParser | None = ...,
    if_interrupted: IfToolInterrupted = ...,
    retry: Retry | None = ...,
    timeout: timedelta | float | None = ...,
) -> FunctionTool: ...
@overload
def tool(
    func: None = None,
    *,
    name: str | None = ...,
    description: str | None = ...,
    schema: type[BaseModel] | Mapping[str, Any] | None = ...,
    approval_mode: ApprovalMode | None = ...,
    kind: str | None = ...,
    max_invocations: int | None = ...,
    max_invocation_exceptions: int | None = ...,
    additional_properties: Mapping[str, Any] | None = ...,
    result_parser: ResultParser | None = ...,
    if_interrupted: IfToolInterrupted = ...,
    retry: Retry | None = ...,
    timeout: timedelta | float | None = ...,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    func: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    **options: Any,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """A function as a tool; a decorator, with or without arguments.

    What it is called and does is read from its name and docstring, what it takes from its signature: types, defaults,
    `Annotated[..., "what it is"]`, and the docstring's sections on arguments. A parameter of type
    FunctionInvocationContext, and `**kwargs`, are given the `function_invocation_kwargs` of the run.

    A call that came back is recorded. `if_interrupted` says what becomes of one that a crash cut off: the model is told
    that its effect is unknown ("tell"), it is made again ("rerun"), somebody is asked ("ask"), or a function finds out.
    """
    namespace = namespace_here(1)

    def made(function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            name=name or getattr(function, "__name__", type(function).__name__),
            description=description or read_docstring(docstring_of(function)).text,
            func=function,
            input_model=schema,
            namespace=namespace.needed_by(function),
            **options,
        )

    return made if func is None else made(func)


def normalize_tools(tools: ToolTypes | Sequence[ToolTypes] | None) -> list[Any]:
    """Tools as a list: functions become tools, collections of tools are opened, everything else stays as it is."""
    return listed_tools(tools, FunctionTool.of)
