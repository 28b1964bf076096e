"""Tools: functions that a model can call, and the conversion of their results."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast, get_args, overload

from typing_extensions import TypedDict, Unpack

from perdure.agents.messages.content import UNKNOWN_MEDIA_TYPE, Content
from perdure.agents.tools.context import FunctionInvocationContext, is_function_tool, is_server
from perdure.agents.tools.schema import Arguments, CallSignature, docstring_of, make_model, parse_docstring
from perdure.annotations import Namespace, namespace_here
from perdure.engine import finished, in_thread, is_async, is_inside_step
from perdure.errors import ToolException
from perdure.graph import Retry, policy_of

if TYPE_CHECKING:
    from datetime import timedelta

    from pydantic import BaseModel


T = TypeVar("T")


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread. A thread can't be cancelled, so a cancelled caller waits for its end.

    Inside a step the result is still returned, so that it is recorded; the caller of the step is cancelled instead.
    """
    task = asyncio.ensure_future(in_thread(function))
    try:
        return await finished(task)
    except asyncio.CancelledError:
        if not is_inside_step():
            raise
        return task.result()


class SkipParsing:
    """The type of `SKIP_PARSING`."""

    def __repr__(self) -> str:
        return "SKIP_PARSING"


SKIP_PARSING: Final = SkipParsing()
"""As a tool's `result_parser`: the result stays as it is."""


def _as_text(value: Any) -> Content:
    """Convert any value to a text: everything but a str becomes JSON."""
    if isinstance(value, str):
        return Content.from_text(value)
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - loaded on first use

    plain = to_jsonable_python(value, by_alias=False, bytes_mode="base64", fallback=_to_plain)
    return Content.from_text(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False))


_SIGNATURES: Final = {
    b"\x89PNG\r\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
}


def _from_bytes(data: bytes) -> list[Content]:
    """Convert bytes to a text if they are one, else to data with a text about it."""
    media_type = next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), UNKNOWN_MEDIA_TYPE)
    if media_type == UNKNOWN_MEDIA_TYPE:
        try:
            return [Content.from_text(data.decode())]
        except UnicodeDecodeError:
            pass
    about = f"The tool returned {len(data)} bytes of the type {media_type}."
    return [Content.from_text(about), Content.from_data(data, media_type)]


def _to_plain(value: Any) -> Any:
    dump = getattr(value, "to_dict", None)
    return dump() if callable(dump) else str(getattr(value, "text", value))


ApprovalMode: TypeAlias = Literal["always_require", "never_require"]
IfToolInterrupted: TypeAlias = Literal["tell", "rerun", "ask"] | Callable[[str], Any]
"""The policy for a call that a crash interrupted.

"tell": tell the model that the effect is unknown. "rerun": call again. "ask": ask somebody. A function gets the call's
idempotency key and returns what the tool would have returned, or `NOT_DONE`.

Inside another step, such as a tool of an agent that is itself a tool, nobody can be asked: the model is told.
"""
ResultParser: TypeAlias = Callable[[Any], str | list[Content]] | SkipParsing

_INTERRUPTED: Final = frozenset({"tell", "rerun", "ask"})


@dataclasses.dataclass(slots=True)
class _Counts:
    """Calls and failures of a tool. A method's tool counts for all instances."""

    calls: int = 0
    failures: int = 0

    @contextmanager
    def count_failure(self) -> Generator[None]:
        """Count an error that the block raises."""
        try:
            yield
        except Exception:
            self.failures += 1
            raise


class FunctionTool:
    """A function that a model can call. Without a function, the user of the agent answers the calls.

    `input_model` is a pydantic model or a JSON schema of the arguments; by default the signature describes them.
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
        func = func.func if isinstance(func, FunctionTool) else func
        self.name = name
        self.description = description
        self.approval_mode: ApprovalMode = approval_mode or "never_require"
        self.kind = kind
        self.max_invocations = max_invocations
        self.max_invocation_exceptions = max_invocation_exceptions
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.func = func
        self.result_parser = result_parser
        self.if_interrupted: IfToolInterrupted = if_interrupted
        _require_valid(self, input_model)
        self.policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        self._signature = CallSignature()
        if func is not None:
            self._signature = CallSignature.of(func, name=name, allow_bare_ctx=input_model is not None)
        self._input_model = input_model
        self._namespace = namespace
        self._counts = _Counts()
        self._receiver: object = None

    @property
    def declaration_only(self) -> bool:
        """Return True if there is no function to call."""
        return self.func is None

    @property
    def sees_context(self) -> bool:
        """Return True if the function gets more than the model's arguments."""
        return self._signature.context is not None

    @property
    def invocation_count(self) -> int:
        """Count the calls in this process. Set it to start again."""
        return self._counts.calls

    @invocation_count.setter
    def invocation_count(self, count: int) -> None:
        self._counts.calls = count

    @property
    def invocation_exception_count(self) -> int:
        """Count the calls that raised in this process. Set it to start again."""
        return self._counts.failures

    @invocation_exception_count.setter
    def invocation_exception_count(self, count: int) -> None:
        self._counts.failures = count

    @property
    def input_model(self) -> type[BaseModel] | None:
        """Return the pydantic model of the arguments; None if a JSON schema describes them."""
        return self._arguments.model

    @functools.cached_property
    def _arguments(self) -> Arguments:
        description = self._input_model
        if description is None and self.func is not None:
            description = make_model(self.func, self._signature, name=self.name, namespace=self._namespace)
        return Arguments(self.name, description or {"type": "object", "properties": {}}, self._signature)

    def parameters(self) -> dict[str, Any]:
        """Return the arguments as a JSON schema."""
        return self._arguments.schema()

    def to_json_schema_spec(self) -> dict[str, Any]:
        """Return the description of the tool in the form that most providers use."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters()}
        return {"type": "function", "function": function}

    def validate_arguments(self, arguments: object) -> dict[str, Any]:
        """Return the arguments as the function takes them. Raises ArgumentsError (a TypeError)."""
        return self._arguments.validate(arguments)

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool:
        """Bind the tool to an instance, like a method."""
        receiver = owner if self._signature.receiver == "cls" else instance
        if receiver is None or self._signature.receiver is None:
            return self
        bound = copy.copy(self)
        bound._receiver = receiver
        return bound

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Raises ToolException if there is none, or a limit is reached."""
        counts = self._counts
        if self.func is None:
            raise self._no_function()
        if self.max_invocations is not None and counts.calls >= self.max_invocations:
            raise ToolException(f"tool {self.name!r} may be called {self.max_invocations} times; the limit is reached")
        if self.max_invocation_exceptions is not None and counts.failures >= self.max_invocation_exceptions:
            raise ToolException(f"tool {self.name!r} has failed {counts.failures} times; it can't be called any more")
        counts.calls += 1
        receiver = () if self._receiver is None else (self._receiver,)
        with counts.count_failure():
            result = self.func(*receiver, *args, **kwargs)
        return self._await(result) if inspect.iscoroutine(result) else result

    async def _await(self, result: Any) -> Any:
        with self._counts.count_failure():
            return await result

    def _no_function(self) -> ToolException:
        return ToolException(f"tool {self.name!r} has no function; the user of the agent answers its calls")

    def recall(self, *, has_failed: bool) -> None:
        """Count a call that was made before the run was resumed."""
        self._counts.calls += 1
        self._counts.failures += has_failed

    async def invoke(
        self,
        *,
        arguments: BaseModel | Mapping[str, Any] | None = None,
        context: FunctionInvocationContext | None = None,
        tool_call_id: str | None = None,  # noqa: ARG002 - public name
        skip_parsing: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Validate the arguments, call the function, and convert its result to contents.

        Arguments may also be given by name. Those of the context count as validated. With `skip_parsing`, or
        `SKIP_PARSING` as the tool's parser, the result is returned as it is.

        Raises:
            ToolException: there is no function, or a limit is reached.
            TypeError: the arguments don't fit.
        """
        if self.func is None:
            raise self._no_function()
        if arguments is not None and kwargs:
            raise TypeError(f"tool {self.name!r}: give arguments, or {', '.join(kwargs)} by name, not both")
        if context is None:
            context = FunctionInvocationContext(
                self, self.validate_arguments(kwargs if arguments is None else arguments)
            )
        elif kwargs or (arguments is not None and arguments is not context.arguments):
            context.arguments = self.validate_arguments(kwargs or arguments)
        context.function = self
        positional, by_name = self._signature.bind(dict(context.arguments), context.kwargs)
        if self._signature.context is not None:
            by_name[self._signature.context] = context
        call = functools.partial(self, *positional, **by_name)
        if is_async(self.func):
            result = await call()
        else:
            result = await run_in_thread(call)
            result = await result if inspect.isawaitable(result) else result
        return result if skip_parsing else self.parse(result)

    def parse(self, result: Any) -> Any:
        """Convert a result to contents; if the tool's own parser fails, to text."""
        if isinstance(self.result_parser, SkipParsing):
            return result
        if self.result_parser is None:
            return self.parse_result(result)
        try:
            return self.parse_result(self.result_parser(result))
        except Exception:  # noqa: BLE001 - the tool has done its work, and its result must not be lost
            return self.parse_result(result if isinstance(result, bytes) else str(result))

    @staticmethod
    def parse_result(result: Any) -> list[Content]:
        """Convert any value to contents: texts and contents stay, bytes become data, everything else JSON."""
        if isinstance(result, bytes | bytearray | memoryview):
            return _from_bytes(bytes(cast("bytes", result)))
        several = cast("Sequence[Any]", result) if isinstance(result, list | tuple) else ()
        if any(isinstance(each, Content) for each in several):
            return [each if isinstance(each, Content) else _as_text(each) for each in several]
        return [result if isinstance(result, Content) else _as_text("" if result is None else result)]

    def __str__(self) -> str:
        more = f", description={self.description}" if self.description else ""
        return f"{type(self).__name__}(name={self.name}{more})"

    __repr__ = __str__


def _require_valid(tool: FunctionTool, schema: Any) -> None:
    """Check the options of a tool. Raises TypeError, ValueError."""
    name, parser = tool.name, cast("Any", tool.result_parser)
    for option in ("max_invocations", "max_invocation_exceptions"):
        limit: Any = getattr(tool, option)
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ValueError(f"tool {name!r}: {option} must be 1 or more, or None for no limit, not {limit!r}")
    if tool.approval_mode not in get_args(ApprovalMode):
        raise ValueError(
            f"tool {name!r}: approval_mode must be 'always_require' or 'never_require', not {tool.approval_mode!r}"
        )
    if not callable(tool.if_interrupted) and tool.if_interrupted not in _INTERRUPTED:
        raise ValueError(
            f"tool {name!r}: if_interrupted must be 'tell', 'rerun', 'ask' or a function, not {tool.if_interrupted!r}"
        )
    if not (parser is None or callable(parser) or isinstance(parser, SkipParsing)):
        raise TypeError(f"tool {name!r}: result_parser must be a function or SKIP_PARSING, not {parser!r}")
    if not (schema is None or isinstance(schema, Mapping) or hasattr(schema, "model_validate")):
        raise TypeError(f"tool {name!r}: the schema must be a pydantic model or a JSON schema, not {schema!r}")


class ToolOptions(TypedDict, total=False):
    """Options of a tool: see `FunctionTool`."""

    approval_mode: ApprovalMode | None
    kind: str | None
    max_invocations: int | None
    max_invocation_exceptions: int | None
    additional_properties: Mapping[str, Any] | None
    result_parser: ResultParser | None
    if_interrupted: IfToolInterrupted
    retry: Retry | None
    timeout: timedelta | float | None


class _NamedToolOptions(ToolOptions, total=False):
    name: str | None
    description: str | None
    schema: type[BaseModel] | Mapping[str, Any] | None


@overload
def tool(func: Callable[..., Any], **options: Unpack[_NamedToolOptions]) -> FunctionTool: ...
@overload
def tool(func: None = None, **options: Unpack[_NamedToolOptions]) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    func: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    **options: Unpack[ToolOptions],
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a function. Use it as a decorator, with or without arguments.

    Name and description come from the function's name and docstring. The arguments come from its signature: types,
    defaults, `Annotated[..., "description"]` and the docstring's section on arguments. A FunctionInvocationContext
    parameter and `**kwargs` get the `function_invocation_kwargs` of the run.

    A finished call is recorded. `if_interrupted` decides about a call that a crash interrupted: tell the model that
    its effect is unknown ("tell"), call again ("rerun"), ask somebody ("ask"), or call a function to find out.
    """
    namespace = namespace_here(1)

    def make(function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            name=name or getattr(function, "__name__", type(function).__name__),
            description=description or parse_docstring(docstring_of(function))[0],
            func=function,
            input_model=schema,
            namespace=namespace.needed_by(function),
            **options,
        )

    return make if func is None else make(func)


ToolTypes: TypeAlias = FunctionTool | Callable[..., Any] | Mapping[str, Any] | object
"""Anything that can be given as a tool: functions, tools, dicts for tools of the provider, MCP servers."""


def normalize_tools(tools: ToolTypes | Sequence[ToolTypes] | None) -> list[Any]:
    """Return tools as a list: functions become tools, collections are opened, everything else stays."""
    if tools is None:
        return []
    if isinstance(tools, Mapping | str) or is_function_tool(tools) or is_server(tools):
        return [tools]
    if callable(tools):
        return [tool(tools)]
    inner: object = getattr(tools, "tools", tools)
    if not hasattr(inner, "model_dump") and isinstance(inner, Iterable):
        return [found for each in cast("Iterable[Any]", inner) for found in normalize_tools(each)]
    return [tools]
