"""Who makes a whole of several answers: the last words of each, or a function of yours."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, Never, TypeAlias, cast, get_args, get_origin, get_type_hints

from perdure import AgentExecutorResponse, AgentResponse, Executor, FunctionExecutor, Message, WorkflowContext, handler

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

Aggregating: TypeAlias = (
    Callable[[list[AgentExecutorResponse]], Any]
    | Callable[[list[AgentExecutorResponse], WorkflowContext[Never, Any]], Any]
)
"""A function that makes a whole of the answers, sync or async."""

_WITH_CONTEXT = 2
_SEVERAL = 2
_UNNAMED = "_CallbackAggregator_unnamed"


class AnswersTogether(Executor):
    """One message of each participant, in their order, as one response. What was asked is no part of it.

    It is the last one of an agent, after what it said when it asked something. Of a workflow that takes part as an
    agent it has all that the workflow has said.
    """

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Take the words of each."""
        if not results:
            raise ValueError(f"aggregator {self.id!r} got no answers: somebody has to answer before it is asked")
        said = [words for result in results if (words := _words_of(result)) is not None]
        if not said:
            names = ", ".join(repr(result.executor_id) for result in results)
            raise RuntimeError(f"none of {names} has said anything: there is nothing to put together")
        await ctx.yield_output(AgentResponse(messages=said))


def _words_of(result: AgentExecutorResponse) -> Message | None:
    said = _said_by(result.agent_response.messages) or _said_by(result.full_conversation)[-1:]
    if not said:
        logger.warning("participant %r has said nothing: it is left out", result.executor_id)
        return None
    # A call is on the way to something: of an agent only the last message has none, and what it said when it asked.
    words = [message for message in said if message.text.strip() and not _calls(message)]
    if len(words) < _SEVERAL:
        return said[-1]
    texts = [content for message in words for content in message.contents if content.type == "text"]
    return Message("assistant", texts, author_name=words[-1].author_name, message_id=words[-1].message_id)


def _said_by(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if message.role == "assistant"]


def _calls(message: Message) -> bool:
    return any(content.type == "function_call" for content in message.contents)


def aggregator_of(aggregator: Executor | Aggregating) -> Executor:
    """An aggregator as an executor. A function keeps its name. Raises TypeError for what is neither."""
    if isinstance(aggregator, Executor):
        return aggregator
    if not callable(aggregator):
        raise TypeError(f"an aggregator is an executor or a function of the results, not {aggregator!r}")
    return _of_function(aggregator)


def _of_function(function: Callable[..., Any]) -> Executor:
    takes_context = len(inspect.signature(function).parameters) >= _WITH_CONTEXT

    async def aggregate(results: Any, ctx: WorkflowContext[Never, Any]) -> None:
        made = await (_with_context(function, results, ctx) if takes_context else _alone(function, results, ctx))
        if made is not None:
            await ctx.yield_output(made)

    # Its outputs may be of any data type of the program's module: those are trusted when a run is read again.
    aggregate.__module__ = getattr(_beneath(function), "__module__", None) or __name__
    name = getattr(function, "__name__", None) or _UNNAMED
    return FunctionExecutor(
        aggregate,
        _UNNAMED if name == "<lambda>" else name,
        input=list[AgentExecutorResponse],
        workflow_output=_makes(function),
    )


async def _alone(function: Callable[..., Any], results: list[AgentExecutorResponse], ctx: WorkflowContext) -> Any:
    """Call a function of the results. One that runs in a thread is a step: what it has made once is not made again."""
    if _is_async(function):
        return await function(results)
    return await ctx.step("aggregate", functools.partial(function, results))


async def _with_context(
    function: Callable[..., Any], results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, Any]
) -> Any:
    """Call a function that may yield and keep state itself: that has to happen each time, so it is no step."""
    made = function(results, ctx) if _is_async(function) else await asyncio.to_thread(function, results, ctx)
    return await made if inspect.isawaitable(made) else made


def _is_async(function: Callable[..., Any]) -> bool:
    called = _beneath(function)
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None))  # noqa: B004


def _beneath(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a partial was made of."""
    return (
        _beneath(cast("functools.partial[Any]", function).func) if isinstance(function, functools.partial) else function
    )


def _makes(function: Callable[..., Any]) -> Any:
    """What a function says that it makes: as it returns it, or as its context yields it. Else it may be anything."""
    try:
        hints: dict[str, Any] = get_type_hints(_beneath(function))
    except (NameError, TypeError):
        return Any
    returned = hints.get("return")
    if returned not in (None, NoneType):
        return returned
    yielded = [get_args(hint)[1] for hint in hints.values() if get_origin(hint) is WorkflowContext]
    return yielded[0] if yielded else Any
