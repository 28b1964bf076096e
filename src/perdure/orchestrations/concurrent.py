"""`ConcurrentBuilder`: participants side by side, and one who makes a whole of what they say."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias, cast, get_args, get_origin, get_type_hints

from typing_extensions import override

from perdure import (
    INTERNAL_SOURCE_ID,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    FunctionExecutor,
    Log,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.orchestrations.messages import messages_of, some_messages_of, spoken
from perdure.orchestrations.orchestrator import create_completion_message
from perdure.orchestrations.outputs import (
    UNSET,
    IntermediateOutputFrom,
    OutputFrom,
    Outputs,
    checked_iterations,
    iterations,
)
from perdure.orchestrations.participants import Named, Participant, checked_participants, name_of
from perdure.orchestrations.request_info import (
    NO_REVIEWS,
    AgentApprovalExecutor,
    AgentRequestInfoResponse,
    Reviews,
    TooLateResponse,
    nodes_of,
)
from perdure.orchestrations.termination import TerminationCondition, is_over, require_condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure import CheckpointStorage
    from perdure.orchestrations.termination import TerminationCondition


class DispatchToAllParticipants(Executor):
    """Asks all participants the same."""

    @handler
    async def from_request(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask what was asked."""
        await self._ask(request, ctx)

    @handler
    async def from_str(self, prompt: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a text."""
        await self._ask(AgentExecutorRequest(messages_of(prompt)), ctx)

    @handler
    async def from_message(self, message: Message, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a message."""
        await self._ask(AgentExecutorRequest(messages_of(message)), ctx)

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a conversation. Raises ValueError if it is empty."""
        await self._ask(AgentExecutorRequest(some_messages_of(messages)), ctx)

    async def _ask(self, request: AgentExecutorRequest, ctx: WorkflowContext[Any]) -> None:
        await ctx.send_message(request)


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


_SAID: Final = "said"
"""The conversation so far: inputs, and the answers in the order in which they came."""
_SCOPE: Final = "concurrent"
"""The state that the dispatcher writes, and participants read."""
_IS_OVER: Final = "is_over"
_TERMINATION_CONDITION_MET: Final = "The conversation has reached its termination condition."


class DispatchUnlessOver(DispatchToAllParticipants):
    """Asks all participants the same, hears their answers, and looks after each whether it is over."""

    def __init__(self, id: str, condition: TerminationCondition, aggregator_id: str) -> None:  # noqa: A002 - as an executor's
        super().__init__(id)
        self._condition = condition
        self._aggregator_id = aggregator_id

    @property
    @override
    def output_types(self) -> list[Any]:
        """What participants are asked, and what the aggregator is told if nobody is."""
        return [AgentExecutorRequest, list[AgentExecutorResponse]]

    @handler
    async def from_response(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any]) -> None:
        """Hear what a participant says. What comes from outside is asked as another agent has left it."""
        if ctx.source_executor_ids == [INTERNAL_SOURCE_ID(self.id)]:
            await self._ask(AgentExecutorRequest(answer.full_conversation), ctx)
            return
        said = spoken(answer.agent_response.messages, ctx.get_source_executor_id())
        if said and await self._is_over_with(said, ctx):
            ctx.scope(_SCOPE).set(_IS_OVER, True)  # noqa: FBT003 - the value that is kept

    @override
    async def _ask(self, request: AgentExecutorRequest, ctx: WorkflowContext[Any]) -> None:
        """Ask, unless it is over before anybody has spoken. A new input may go on with what was over."""
        is_the_end = await self._is_over_with(request.messages, ctx)
        ctx.scope(_SCOPE).set(_IS_OVER, is_the_end)
        if is_the_end:
            # With the last word in the conversation, the next input is a turn of its own.
            self._note([_last_word(self._aggregator_id)], ctx)
            await ctx.send_message([], target_id=self._aggregator_id)
        else:
            await ctx.send_message(request)

    async def _is_over_with(self, messages: Sequence[Message], ctx: WorkflowContext[Any]) -> bool:
        return await is_over(self._condition, self._note(messages, ctx))

    def _note(self, messages: Sequence[Message], ctx: WorkflowContext[Any]) -> Log[Message]:
        """Add to the conversation; all of it."""
        said: Log[Message] = ctx.scope().get(_SAID) or Log()
        said.extend(messages)
        ctx.scope().set(_SAID, said)
        return said


def is_about_the_end(message: object) -> bool:
    """Whether it goes to the aggregator what the dispatcher sends: there are no answers to wait for."""
    return message == []


class ApprovalUnlessOver(AgentApprovalExecutor):
    """An agent and who asks about its turns. Once it is over, it takes no other turn."""

    @response_handler
    async def process_propagated(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """An answer of a person. Sent back when it is over, the agent has said nothing: the turn has not passed."""
        if isinstance(response, AgentRequestInfoResponse) and response.messages and _is_over(ctx):
            response = TooLateResponse(response.messages)
        await super().process_propagated(request, response, ctx)


def _is_over(ctx: WorkflowContext[Any, Any]) -> bool:
    return ctx.scope(_SCOPE).get(_IS_OVER, default=False)


class AnswersIfThereAreSome(AnswersTogether):
    """One message of each participant; if nobody was asked, a last word that says so."""

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Take the words of each, or have the last word."""
        if results:
            await super().aggregate(results, ctx)
            return
        await ctx.yield_output(AgentResponse(messages=[_last_word(self.id)]))


def _last_word(name: str) -> Message:
    return create_completion_message(text=_TERMINATION_CONDITION_MET, author_name=name)


class ConcurrentBuilder:
    """Participants side by side: `dispatcher`, then all at once, then `aggregator` when every one has answered.

    Each participant gets an `AgentExecutorRequest`; an executor of your own answers with an `AgentExecutorResponse`.
    The output is one `AgentResponse` with a message of each, in the order of the participants: the last of an agent,
    all words of a workflow that takes part as an agent. Or it is what your own aggregator makes of the answers.
    `output_from` and `intermediate_output_from` name participants whose outputs are told as well.
    `max_iterations` limits the supersteps since the last input.

    `termination_condition` is asked about the input and after each answer, with all that was said so far. If it is over
    with the input, nobody is asked, and the output is what the aggregator makes of no answers. Once it is over, one
    that a person sends back (`with_request_info`) does not speak again: its answer has no messages.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        termination_condition: TerminationCondition | None = None,
        max_iterations: int | None = None,
        output_from: OutputFrom = UNSET,
        intermediate_output_from: IntermediateOutputFrom = None,
    ) -> None:
        self._participants = checked_participants(participants)
        if len(self._participants) < _SEVERAL:
            raise ValueError("ConcurrentBuilder needs at least two participants; one alone is a SequentialBuilder")
        self._name = name
        self._storage = checkpoint_storage
        self._max_iterations = checked_iterations(max_iterations)
        self._outputs = Outputs.of(output_from, intermediate_output_from)
        self._reviews = NO_REVIEWS
        self._aggregator: Executor | None = None
        self._termination: TerminationCondition | None = None
        if termination_condition is not None:
            self.with_termination_condition(termination_condition)

    def with_aggregator(self, aggregator: Executor | Aggregating) -> ConcurrentBuilder:
        """Say who makes a whole of the answers: an executor, or a function `(results)` or `(results, ctx)`.

        `results` are the `AgentExecutorResponse`s in the order of the participants. What a function returns is the
        output, unless it is None. A sync function runs in a thread. Raises ValueError if there is an aggregator.
        """
        if self._aggregator is not None:
            raise ValueError(f"there is an aggregator already, {self._aggregator.id!r}: call with_aggregator once")
        self._aggregator = aggregator_of(aggregator)
        return self

    def with_request_info(self, *, agents: Sequence[Named] | None = None) -> ConcurrentBuilder:
        """Ask a person after each turn of these agents, or of all, before the answers are put together."""
        self._reviews = Reviews.of(agents)
        return self

    def with_termination_condition(self, termination_condition: TerminationCondition) -> ConcurrentBuilder:
        """Say when nobody is to speak any more. The same as `termination_condition=`."""
        require_condition(termination_condition)
        self._termination = termination_condition
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> ConcurrentBuilder:
        """Say where checkpoints go. The same as `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def build(self) -> Workflow:
        """Join the participants. Raises ValueError, WorkflowValidationError."""
        dispatcher, aggregator = self._ends()
        _, intermediates = self._outputs.names([name_of(each) for each in self._participants])
        nodes = nodes_of(
            self._participants,
            reviews=self._reviews,
            drafts=intermediates,
            reviewed_as=AgentApprovalExecutor if self._termination is None else ApprovalUnlessOver,
        )
        outputs, intermediate_nodes = self._outputs.resolve(nodes, always=[aggregator])
        builder = WorkflowBuilder(
            name=self._name,
            max_iterations=iterations(self._max_iterations),
            start_executor=dispatcher,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediate_nodes,
        )
        builder.add_fan_out_edges(dispatcher, nodes).add_fan_in_edges(nodes, aggregator)
        if self._termination is not None:
            builder.add_edge(dispatcher, aggregator, is_about_the_end)
            for node in nodes:
                builder.add_edge(node, dispatcher)
        return builder.build()

    def _ends(self) -> tuple[Executor, Executor]:
        """Who asks the participants, and who makes a whole of their answers."""
        if self._termination is None:
            return DispatchToAllParticipants("dispatcher"), self._aggregator or AnswersTogether("aggregator")
        aggregator = self._aggregator or AnswersIfThereAreSome("aggregator")
        return DispatchUnlessOver("dispatcher", self._termination, aggregator.id), aggregator
