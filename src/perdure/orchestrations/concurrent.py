"""`ConcurrentBuilder`: participants work in parallel, and an aggregator combines their answers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Final, Never, TypeAlias, cast, get_args, get_origin, get_type_hints

from typing_extensions import Unpack

from perdure import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    FunctionExecutor,
    Log,
    Message,
    Workflow,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.orchestrations.builder import OrchestrationBuilder, OrchestrationOptions
from perdure.orchestrations.participants import (
    Participant,
    check_participants,
    create_completion_message,
    is_from_outside,
    participant_name,
    require_messages,
    shared_messages,
)
from perdure.orchestrations.request_info import (
    AgentApprovalExecutor,
    AgentRequestInfoResponse,
    TooLateResponse,
    make_nodes,
)
from perdure.orchestrations.termination import TerminationCondition, should_terminate

logger = logging.getLogger(__name__)

AggregatorFunction: TypeAlias = (
    Callable[[list[AgentExecutorResponse]], Any]
    | Callable[[list[AgentExecutorResponse], WorkflowContext[Never, Any]], Any]
)
"""Function that combines the answers, sync or async."""

_PARAMETERS_WITH_CONTEXT = 2
_SEVERAL = 2
_UNNAMED_ID = "_CallbackAggregator_unnamed"

# The inputs, and the answers in order of arrival.
_CONVERSATION_KEY: Final = "said"
# Shared state that the dispatcher writes and participants read.
_SCOPE: Final = "concurrent"
_IS_OVER_KEY: Final = "is_over"
_TERMINATION_CONDITION_MET: Final = "The conversation has reached its termination condition."


class DispatchToAllParticipants(Executor):
    """Sends the input to all participants."""

    @handler
    async def from_request(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Start with a request."""
        await self._dispatch(request, ctx)

    @handler
    async def from_input(
        self, given: str | Message | list[str | Message], ctx: WorkflowContext[AgentExecutorRequest]
    ) -> None:
        """Start with a text, a message or a conversation. Raises ValueError if it is empty."""
        await self._dispatch(AgentExecutorRequest(require_messages(given)), ctx)

    @handler
    async def from_response(self, answer: AgentExecutorResponse, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Start with the response of an agent outside this workflow."""
        await self._dispatch(AgentExecutorRequest(answer.full_conversation), ctx)

    async def _dispatch(self, request: AgentExecutorRequest, ctx: WorkflowContext[Any]) -> None:
        await ctx.send_message(request)


class TerminableDispatcher(DispatchToAllParticipants):
    """Sends the input to all participants, and checks the termination condition after each answer."""

    def __init__(self, id: str, condition: TerminationCondition, aggregator_id: str) -> None:  # noqa: A002 - as an executor's
        super().__init__(id)
        self._condition = condition
        self._aggregator_id = aggregator_id

    @property
    def output_types(self) -> list[Any]:
        """The request for participants, and an empty list for the aggregator if nobody is asked."""
        return [AgentExecutorRequest, list[AgentExecutorResponse]]

    @handler
    async def from_response(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any]) -> None:
        """Record a participant's answer. A response from outside the workflow starts a conversation."""
        if is_from_outside(self, ctx):
            await super().from_response(answer, ctx)
            return
        messages = shared_messages(answer.agent_response.messages, ctx.get_source_executor_id())
        if messages and await should_terminate(self._condition, self._record(messages, ctx)):
            ctx.scope(_SCOPE).set(_IS_OVER_KEY, True)  # noqa: FBT003 - the stored value

    async def _dispatch(self, request: AgentExecutorRequest, ctx: WorkflowContext[Any]) -> None:
        """Ask the participants unless the input meets the condition. A new input can continue an ended conversation."""
        is_over = await should_terminate(self._condition, self._record(request.messages, ctx))
        ctx.scope(_SCOPE).set(_IS_OVER_KEY, is_over)
        if is_over:
            # The recorded final message makes the next input a turn of its own.
            self._record([_completion_message(self._aggregator_id)], ctx)
            await ctx.send_message([], target_id=self._aggregator_id)
        else:
            await ctx.send_message(request)

    def _record(self, messages: Sequence[Message], ctx: WorkflowContext[Any]) -> Log[Message]:
        """Add messages to the conversation and return it."""
        conversation: Log[Message] = ctx.scope().get(_CONVERSATION_KEY) or Log()
        conversation.extend(messages)
        ctx.scope().set(_CONVERSATION_KEY, conversation)
        return conversation


def is_about_the_end(message: object) -> bool:
    """Return True for the empty list that the dispatcher sends to the aggregator. Stored signatures name this."""
    return message == []


class TerminableApprovalExecutor(AgentApprovalExecutor):
    """A reviewed agent that takes no further turn once the conversation is over."""

    @response_handler
    async def process_propagated(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Pass on a person's review. After the end, a rejection drops the turn."""
        is_rejected = isinstance(response, AgentRequestInfoResponse) and response.messages
        if is_rejected and ctx.scope(_SCOPE).get(_IS_OVER_KEY, default=False):
            response = TooLateResponse(cast("AgentRequestInfoResponse", response).messages)
        await super().process_propagated(request, response, ctx)


class ResponseAggregator(Executor):
    """Yields one response with one message of each participant, in their order.

    The message is an agent's last one, together with the text it sent when it asked a question. For a workflow that
    takes part as an agent, it holds all text of the workflow.
    """

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Combine the answers."""
        if not results:
            raise ValueError(f"aggregator {self.id!r} got no answers: at least one participant must answer")
        messages = [message for result in results if (message := _combine_text(result)) is not None]
        if not messages:
            names = ", ".join(repr(result.executor_id) for result in results)
            raise RuntimeError(f"participants {names} answered without any message: there is nothing to combine")
        await ctx.yield_output(AgentResponse(messages=messages))


class TerminableAggregator(ResponseAggregator):
    """Aggregates the answers. If nobody was asked, yields a final message that says so."""

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Combine the answers, or yield the final message."""
        if results:
            await super().aggregate(results, ctx)
            return
        await ctx.yield_output(AgentResponse(messages=[_completion_message(self.id)]))


def _completion_message(name: str) -> Message:
    return create_completion_message(text=_TERMINATION_CONDITION_MET, author_name=name)


def _combine_text(result: AgentExecutorResponse) -> Message | None:
    answers = [message for message in result.agent_response.messages if message.role == "assistant"]
    answers = answers or [message for message in result.full_conversation if message.role == "assistant"][-1:]
    if not answers:
        logger.warning("participant %r answered without a message: it is left out of the result", result.executor_id)
        return None
    # A message with a tool call is not an answer. Only a question leaves an agent with several messages without calls.
    texts = [
        message
        for message in answers
        if message.text.strip() and all(content.type != "function_call" for content in message.contents)
    ]
    if len(texts) < _SEVERAL:
        return answers[-1]
    contents = [content for message in texts for content in message.contents if content.type == "text"]
    return Message("assistant", contents, author_name=texts[-1].author_name, message_id=texts[-1].message_id)


def _function_aggregator(function: Callable[..., Any]) -> Executor:
    takes_context = len(inspect.signature(function).parameters) >= _PARAMETERS_WITH_CONTEXT
    called = function
    while isinstance(called, functools.partial):
        called = cast("functools.partial[Any]", called).func
    is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None))  # noqa: B004

    async def aggregate(results: Any, ctx: WorkflowContext[Never, Any]) -> None:
        # A function with a context may yield outputs and set state, on every attempt: so it is no step.
        given = (results, ctx) if takes_context else (results,)
        if is_async:
            output = function(*given)
        elif takes_context:
            output = await asyncio.to_thread(function, *given)
        else:
            output = await ctx.step("aggregate", functools.partial(function, *given))
        output = await output if inspect.isawaitable(output) else output
        if output is not None:
            await ctx.yield_output(output)

    # Outputs may have any data type of the program's module, so that module's types are trusted on resume.
    aggregate.__module__ = getattr(called, "__module__", None) or __name__
    name = getattr(function, "__name__", None) or _UNNAMED_ID
    return FunctionExecutor(
        aggregate,
        _UNNAMED_ID if name == "<lambda>" else name,
        input=list[AgentExecutorResponse],
        workflow_output=_output_type(called),
    )


def _output_type(function: Callable[..., Any]) -> Any:
    """Return the annotated output type of a function, from its return type or its context. The default is Any."""
    try:
        hints: dict[str, Any] = get_type_hints(function)
    except (NameError, TypeError):
        return Any
    returned = hints.get("return")
    if returned not in (None, NoneType):
        return returned
    yielded = [get_args(hint)[1] for hint in hints.values() if get_origin(hint) is WorkflowContext]
    return yielded[0] if yielded else Any


class ConcurrentBuilder(OrchestrationBuilder):
    """Builds a fan-out and fan-in: `dispatcher`, then all participants in parallel, then `aggregator`.

    Each participant gets an `AgentExecutorRequest`; your own executor answers with an `AgentExecutorResponse`. The
    output is one `AgentResponse` with a message of each participant, in their order: an agent's last message, or all
    text of a workflow that takes part as an agent. Your own aggregator replaces that output. `output_from` and
    `intermediate_output_from` add outputs of participants. `max_iterations` limits the supersteps since the last input.
    `max_concurrency` limits the participants that work at the same time.

    `termination_condition` is checked for the input and after each answer, with the whole conversation. If the input
    meets it, nobody is asked and the aggregator gets an empty list. Afterwards, an agent whose turn a person rejects
    (`with_request_info`) does not speak again: its answer has no messages.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        max_concurrency: int | None = None,
        **options: Unpack[OrchestrationOptions],
    ) -> None:
        super().__init__(**options)
        self._participants = check_participants(participants)
        if len(self._participants) < _SEVERAL:
            raise ValueError("ConcurrentBuilder needs at least two participants; use SequentialBuilder for one")
        self._max_concurrency = max_concurrency
        self._aggregator: Executor | None = None

    def with_aggregator(self, aggregator: Executor | AggregatorFunction) -> ConcurrentBuilder:
        """Set the aggregator: an executor, or a function `(results)` or `(results, ctx)`.

        `results` are the `AgentExecutorResponse`s in the order of the participants. The function's result is the
        output unless it is None. A sync function runs in a thread. Raises ValueError if an aggregator is set, TypeError
        for another type.
        """
        if self._aggregator is not None:
            raise ValueError(f"the aggregator {self._aggregator.id!r} is already set: call with_aggregator once")
        if isinstance(aggregator, Executor):
            self._aggregator = aggregator
        elif callable(aggregator):
            self._aggregator = _function_aggregator(aggregator)
        else:
            raise TypeError(f"an aggregator must be an executor or a function of the results, not {aggregator!r}")
        return self

    def build(self) -> Workflow:
        """Connect the participants. Raises ValueError, WorkflowValidationError."""
        if self._termination is None:
            dispatcher = DispatchToAllParticipants("dispatcher")
            aggregator = self._aggregator or ResponseAggregator("aggregator")
        else:
            aggregator = self._aggregator or TerminableAggregator("aggregator")
            dispatcher = TerminableDispatcher("dispatcher", self._termination, aggregator.id)
        _, drafts = self._outputs.resolve_names([participant_name(each) for each in self._participants])
        nodes = make_nodes(
            self._participants,
            reviewed=self._reviewed_names(self._participants),
            drafts=drafts,
            reviewed_kind=AgentApprovalExecutor if self._termination is None else TerminableApprovalExecutor,
        )
        outputs, intermediates = self._outputs.resolve(nodes, always=[aggregator])
        builder = self._workflow_builder(dispatcher, outputs, intermediates, max_concurrency=self._max_concurrency)
        builder.add_fan_out_edges(dispatcher, nodes).add_fan_in_edges(nodes, aggregator)
        if self._termination is not None:
            builder.add_edge(dispatcher, aggregator, is_about_the_end)
            for node in nodes:
                builder.add_edge(node, dispatcher)
        return builder.build()
