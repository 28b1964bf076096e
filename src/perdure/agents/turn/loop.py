"""The loop of a turn, and the client layer that runs it.

Call the model, make its tool calls, give it the results, and repeat until it has answered.
"""

from __future__ import annotations

import copy
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, cast

from perdure.agents.client.base import ChatLayer, OptionsT
from perdure.agents.client.middleware import categorize_middleware
from perdure.agents.client.streaming import ChatStream, stream_updates
from perdure.agents.executor.requests import ask_all
from perdure.agents.messages.content import Content, UsageDetails, add_usage_details
from perdure.agents.messages.conversation import call_ids_in, is_approval_response, is_local_call, repair_conversation
from perdure.agents.messages.message import Message, normalize_messages
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate
from perdure.agents.messages.structured import answer_fault, correction
from perdure.agents.tools.context import expand_tools
from perdure.agents.tools.tool import FunctionTool, normalize_tools
from perdure.agents.turn import approvals
from perdure.agents.turn.call_ids import CallIds
from perdure.agents.turn.recording import current_turn, has_failed_here, use_turn
from perdure.agents.turn.tool_calls import CallOutcome, ToolCaller
from perdure.clock import SystemClock
from perdure.errors import ResponseValueError
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from perdure.agents.client.middleware import CallNext, ChatContext, MiddlewareTypes

_OUT_OF_CALLS: Final = "No more tools may be called in this turn, and there is no answer without them."
_VISIBLE: Final = frozenset({"data", "uri", "error", "hosted_file", "hosted_vector_store"})


class FunctionInvocationConfiguration(TypedDict, total=False):
    """Settings of the tool loop.

    `max_iterations` limits the model calls of a turn, `max_function_calls` its tool calls, and `max_duration_seconds`
    its time, which is checked after each round of tool calls. At a limit, and after
    `max_consecutive_errors_per_request` rounds with a failed call, the model is called once more and may call no tools.
    Without `allow_concurrent_invocation` the tool calls of a round run one after another. `additional_tools` can be
    called, although the model is not told of them.

    An answer that does not fit the `response_format` is given back to the model, `max_output_retries` times.

    An approval counts only if the session asked for it. With `disable_approval_response_binding` a question in the
    messages is enough. Use it only if nobody but your own program can write the messages.
    """

    enabled: bool
    max_iterations: int
    max_function_calls: int | None
    max_duration_seconds: float | None
    max_consecutive_errors_per_request: int
    max_output_retries: int
    terminate_on_unknown_calls: bool
    additional_tools: Sequence[FunctionTool]
    include_detailed_errors: bool
    allow_concurrent_invocation: bool
    disable_approval_response_binding: bool


_DEFAULTS: Final[Mapping[str, Any]] = {
    "enabled": True,
    "max_iterations": 40,
    "max_function_calls": None,
    "max_duration_seconds": None,
    "max_consecutive_errors_per_request": 3,
    "max_output_retries": 2,
    "terminate_on_unknown_calls": False,
    "additional_tools": (),
    "include_detailed_errors": False,
    "allow_concurrent_invocation": True,
    "disable_approval_response_binding": False,
}
_MINIMUM: Final = {
    "max_iterations": 1,
    "max_function_calls": 1,
    "max_consecutive_errors_per_request": 0,
    "max_output_retries": 0,
}


def normalize_function_invocation_configuration(
    given: FunctionInvocationConfiguration | None,
) -> FunctionInvocationConfiguration:
    """Add the defaults of missing settings. Raises ValueError."""
    found: dict[str, Any] = {**_DEFAULTS, **cast("Mapping[str, Any]", given or {})}
    unknown = sorted(set(found) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"unknown settings {', '.join(unknown)}; the settings are {', '.join(_DEFAULTS)}")
    for name, least in _MINIMUM.items():
        if found[name] is not None and found[name] < least:
            raise ValueError(f"{name} must be {least} or more, not {found[name]!r}")
    if found["max_duration_seconds"] is not None and not found["max_duration_seconds"] > 0:
        raise ValueError(f"max_duration_seconds must be more than 0, not {found['max_duration_seconds']!r}")
    return cast("FunctionInvocationConfiguration", found)


class FunctionInvocationLayer(ChatLayer[OptionsT], Generic[OptionsT]):
    """Make the calls that the model asks for, and give it the results, until it has answered.

    It is the first of a client's bases. In a workflow each tool call is a recorded step.
    """

    def __init__(
        self,
        *,
        middleware: Sequence[MiddlewareTypes] | None = None,
        function_invocation_configuration: FunctionInvocationConfiguration | None = None,
        **more: Any,
    ) -> None:
        found = categorize_middleware(middleware)
        self.function_middleware: list[MiddlewareTypes] = list(found["function"])
        self.function_invocation_configuration = normalize_function_invocation_configuration(
            function_invocation_configuration
        )
        if others := [*found["chat"], *found["agent"]]:
            more["middleware"] = others
        super().__init__(**more)

    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: Any = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """Return an awaitable ChatResponse, or a stream of updates that ends in one."""
        own_kwargs = dict(client_kwargs or {})
        found = categorize_middleware(own_kwargs.pop("middleware", None), more.pop("middleware", None))
        if others := [*found["chat"], *found["agent"]]:
            own_kwargs["middleware"] = others
        more |= {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": own_kwargs}
        given = dict(cast("Mapping[str, Any]", options or {}))
        arguments: Mapping[str, Any] = given.pop("additional_function_arguments", None) or {}
        # Read at each call: a client's configuration may be changed.
        limits = normalize_function_invocation_configuration(self.function_invocation_configuration)
        is_checked = given.pop("check_response_format", True)
        if not limits.get("enabled"):
            return super().get_response(messages, stream=stream, options=given, **more)
        conversation = normalize_messages(messages)
        caller = ToolCaller(
            turn=current_turn(type(self).__name__, conversation),
            # A new list: tools may change it during the turn.
            tools=normalize_tools(given.get("tools")),
            hidden=limits.get("additional_tools", ()),
            middleware=[*self.function_middleware, *found["function"]],
            kwargs={**(function_invocation_kwargs or {}), **arguments},
            session=own_kwargs.get("session"),
            include_detailed_errors=limits.get("include_detailed_errors", False),
            is_concurrent=limits.get("allow_concurrent_invocation", True),
        )
        ask = partial(super().get_response, **more)
        loop = TurnLoop(ask, caller, conversation, given, limits, stream, is_checked)
        if others:
            # The loop's calls hold this dict. The last place, so that all other middleware sees the final call ids.
            own_kwargs["middleware"] = [*others, loop.assign_call_ids]
        return loop.open_stream() if stream else loop.respond()


@dataclass(slots=True)
class TurnLoop:
    """One request to a client, with all the model and tool calls it leads to. The `Turn` of its caller records them.

    Attributes:
        ask: The next layer: `ask(messages, stream=..., options=...)`.
        messages: The conversation as it happened. The model sees a repaired copy.
        is_checked: True if answers must fit the `response_format`.
        produced: The messages of this request.
        updates: Updates of tool results and questions, to be yielded next.
        streamed: The updates of the last model call.
        tools_are_closed: True if the model may call no more tools.
        asked: Questions that the activation has to ask.
        times: When the turn started, and when each round of tool calls ended; only with a limit.
    """

    ask: Callable[..., Any]
    caller: ToolCaller
    messages: list[Message]
    options: dict[str, Any]
    limits: FunctionInvocationConfiguration
    stream: bool
    is_checked: bool
    produced: list[Message] = field(default_factory=list[Message], init=False)
    response: ChatResponse[Any] = field(default_factory=ChatResponse[Any], init=False)
    usage: UsageDetails | None = field(default=None, init=False)
    calls_made: int = field(default=0, init=False)
    failures_in_a_row: int = field(default=0, init=False)
    refused_answers: int = field(default=0, init=False)
    updates: deque[ChatResponseUpdate] = field(default_factory=deque["ChatResponseUpdate"], init=False)
    streamed: list[ChatResponseUpdate] = field(default_factory=list[ChatResponseUpdate], init=False)
    tools_are_closed: bool = field(default=False, init=False)
    is_done: bool = field(default=False, init=False)
    asked: list[Content] = field(default_factory=list[Content], init=False)
    times: list[float] = field(default_factory=list[float], init=False)
    _own_session: SimpleNamespace | None = field(default=None, init=False)

    async def respond(self) -> ChatResponse[Any]:
        """Return the final response with all messages and token counts of the request."""
        async for _ in self._run():
            pass
        return self._final_response()

    def open_stream(self) -> ChatStream:
        """Stream the updates of all model calls and tool results."""
        rebuild = partial(ChatResponse[Any].from_updates, output_format_type=self.options.get("response_format"))
        return stream_updates(self._run(), final=self._final_response, rebuild=rebuild)

    def _final_response(self) -> ChatResponse[Any]:
        whole = copy.copy(self.response)
        whole.messages, whole.usage_details = list(self.produced), self.usage
        return whole

    async def _run(self) -> AsyncGenerator[ChatResponseUpdate]:
        """Repeat until there is an answer, or the user has to answer. Yields updates if it streams."""
        await self._check_time()
        await self._make_approved_calls()
        rounds = self.limits.get("max_iterations", 0)
        for number in range(rounds + 2):
            while self.updates or self.asked:
                while self.updates:
                    yield self.updates.popleft()
                if self.asked:
                    await self._ask_in_activation()
            if self.is_done or number > rounds:
                return
            self.tools_are_closed |= number == rounds
            async with aclosing(self._call_model()) as updates:
                async for update in updates:
                    yield update
            await self._make_calls()

    @property
    def question_session(self) -> Any:
        """Return the session that keeps open questions. It is needed only until the activation has its answers."""
        if self.caller.session is None and self.caller.turn.asks:
            self._own_session = self._own_session or SimpleNamespace(state={})
            return self._own_session
        return self.caller.session

    @property
    def _is_stored_by_provider(self) -> bool:
        return self.options.get("conversation_id") is not None

    def _approved_calls(self) -> approvals.ApprovedCalls:
        caller = self.caller
        return approvals.ApprovedCalls(caller.session, caller.owner, notes_begin=caller.turn.activation is None)

    async def _make_approved_calls(self) -> None:
        """Make the calls that were approved since they were asked about."""
        caller, approved = self.caller, self._approved_calls()
        # A turn that failed after these calls has not given their results to the model.
        if missing := approved.missing_results(self.messages, is_complete=not self._is_stored_by_provider):
            approvals.drop_questions(caller.session, caller.owner, [result.call_id for result in missing])
            self._add(Message("tool", missing))
        is_unbound = self.limits.get("disable_approval_response_binding", False)
        resolved = approvals.resolve_answers(
            self.messages, self.question_session, caller.owner, trusts_conversation=is_unbound
        )
        await self._follow(resolved, approved)

    async def _follow(self, resolved: approvals.Resolved, approved: approvals.ApprovedCalls) -> None:
        """Make the calls that answers allow, and ask what is still open."""
        if resolved.decisions or resolved.open:
            outcome = await self._call_tools(resolved.decisions, approved)
            approvals.store_batches(self.question_session, resolved.batches)
            self._add_outcome(outcome, [each.to_content() for each in resolved.open])

    async def _ask_in_activation(self) -> None:
        """Ask the open questions as requests of the activation, and act on the answers."""
        activation, asked, self.asked = self.caller.turn.activation, self.asked, []
        assert activation is not None, "outside a workflow the caller gets the questions"
        answers = await ask_all(activation, asked)
        self.caller.turn.times_asked += 1
        decided = [each for each in answers if is_approval_response(each)]
        results = [each for each in answers if each.type == "function_result"]
        if results:
            self._add(Message("tool", results))
        resolved = approvals.resolve_answers([Message("user", decided)], self.question_session, self.caller.owner)
        await self._follow(resolved, self._approved_calls())
        if others := [each for each in answers if each not in decided and each not in results]:
            self.messages.append(message := Message("user", others))
            self.produced.append(message)

    def _call_ids(self) -> CallIds:
        taken = {*call_ids_in([*self.messages, *self.produced]), *approvals.waiting_call_ids(self.caller.session)}
        return CallIds(self.caller.turn.name, taken, self._is_stored_by_provider)

    async def assign_call_ids(self, context: ChatContext, call_next: CallNext) -> None:
        """Run as middleware around a model call: give its calls unique ids."""
        await call_next()
        if isinstance(context.result, ResponseStream):
            context.result.with_result_hook(self._with_unique_call_ids)
        elif context.result is not None:
            context.result = self._with_unique_call_ids(context.result)

    def _with_unique_call_ids(self, response: ChatResponse[Any]) -> ChatResponse[Any]:
        has_calls = any(is_local_call(each) for message in response.messages for each in message.contents)
        return self._call_ids().assign(response) if has_calls else response

    async def _call_model(self) -> AsyncGenerator[ChatResponseUpdate]:
        options = dict(self.options)
        if tools := expand_tools(self.caller.tools):
            options["tools"] = tools
        if self.tools_are_closed:
            options["tool_choice"] = "none"
        shown = repair_conversation(self.messages, is_complete=not self._is_stored_by_provider)
        with use_turn(self.caller.turn):
            given = self.ask(shown, stream=self.stream, options=options)
        if self.stream:
            stream, ids = cast("ChatStream", given), self._call_ids()
            self.streamed = []
            async with aclosing(stream):
                async for update in stream:
                    if (visible := self._without_dead_calls(ids.assign_update(update))) is not None:
                        self.streamed.append(visible)
                        yield visible
                response = await stream.get_final_response()
        else:
            response = await given
        if self.tools_are_closed:
            response, fallback = _without_calls(response)
            if fallback is not None:
                yield fallback
        response = self.response = self._call_ids().assign(response)
        if response.usage_details:
            self.usage = add_usage_details(self.usage, response.usage_details)
        if response.conversation_id is not None:
            # The provider stores the conversation, so it gets only new messages from now on.
            self.options["conversation_id"] = response.conversation_id
            self.messages = []
            self._approved_calls().forget()
        else:
            self.messages += response.messages
        self.produced += response.messages

    def _without_dead_calls(self, update: ChatResponseUpdate) -> ChatResponseUpdate | None:
        """Remove calls from an update that nobody will make."""
        if not self.tools_are_closed or not any(is_local_call(content) for content in update.contents):
            return update
        kept = copy.copy(update)
        kept.contents = [content for content in update.contents if not is_local_call(content)]
        return kept if kept.contents else None

    async def _make_calls(self) -> None:
        """Make the calls that the model asked for, or ask for their approval."""
        calls = _find_calls(self.response.messages)
        if self.caller.turn.asks:
            self._take_provider_questions()
        tools = self.caller.by_name() if calls else {}
        if not calls or not (tools or self.caller.tools):
            wanted, response = self.options.get("response_format"), self.response
            is_checked = self.is_checked and not (calls or self.asked or response.user_input_requests)
            fault = answer_fault(response.last_text, wanted) if is_checked and wanted is not None else None
            self.is_done = not (self.asked or fault)
            if fault is not None:
                await self._refuse_answer(fault)
            return
        known = [(call, tools.get(call.name or "")) for call in calls]
        declared = [call for call, tool in known if tool is not None and tool.declaration_only]
        guarded = [call for call, tool in known if tool is not None and tool.approval_mode == "always_require"]
        waiting = [call for call in guarded if call not in declared]
        ready = [call for call in calls if call not in declared and call not in waiting]
        unknown = [call.name for call, tool in known if tool is None]
        if unknown and self.limits.get("terminate_on_unknown_calls") and not waiting and not declared:
            raise KeyError(
                f"the model called an unknown tool {unknown[0]!r}; the tools are {sorted(tools)}; "
                "give the agent this tool, or unset terminate_on_unknown_calls"
            )
        asked = self._ask_for_approval(waiting, ready) if waiting else []
        outcome = await self._call_tools([] if waiting else [approvals.Decision(call) for call in ready])
        # The user of the agent answers calls of declared tools.
        asked += [replace(call, user_input_request=True, id=call.call_id) for call in declared]
        self._add_outcome(outcome, asked)

    async def _refuse_answer(self, fault: str) -> None:
        """Give the model the reason why its answer does not fit. Raises ResponseValueError when no retry is left.

        The refused answer is not part of the response. Its updates are taken back.
        """
        turn, retries = self.caller.turn, self.limits.get("max_output_retries", 0)
        self.refused_answers += 1
        if self.refused_answers % (retries + 1) == 0:
            key = f"{turn.key}#{turn.number}/refused-{self.refused_answers}"
            if not await has_failed_here(turn.activation, key):
                raise ResponseValueError(
                    f"agent {turn.name!r} has no answer that fits its response_format, and its model was told so "
                    f"{retries} times; the last fault: {fault}; say in its instructions what is wanted, or take "
                    "another model"
                )
        del self.produced[len(self.produced) - len(self.response.messages) :]
        self.messages.append(Message("user", [correction(fault)]))
        if self.streamed:
            discarding = ChatResponseUpdate(contents=[])
            discarding.discards = self.streamed
            self.updates.append(discarding)

    def _ask_for_approval(self, waiting: Sequence[Content], ready: Sequence[Content]) -> list[Content]:
        """Ask for approval of calls. The other calls wait in the session; without one they are asked about too."""
        session = self.question_session
        asked = [*waiting, *(ready if session is None else ())]
        questions = [approvals.Question(call.call_id or "", call, call) for call in asked]
        approvals.add_batch(
            session, approvals.Batch(questions, [] if session is None else list(ready), self.caller.owner)
        )
        return [each.to_content() for each in questions]

    async def _call_tools(
        self, decisions: Sequence[approvals.Decision], approved: approvals.ApprovedCalls | None = None
    ) -> CallOutcome:
        """Make calls and check the limits."""
        outcome = await self.caller.call_all(decisions, approved)
        self.calls_made += sum(decision.is_approved for decision in decisions)
        if decisions:
            self.failures_in_a_row = self.failures_in_a_row + 1 if outcome.has_failed else 0
        calls_max = self.limits.get("max_function_calls")
        failures_max = self.limits.get("max_consecutive_errors_per_request", 0)
        self.tools_are_closed |= calls_max is not None and self.calls_made >= calls_max
        self.tools_are_closed |= outcome.has_failed and self.failures_in_a_row >= failures_max
        await self._check_time()
        choice = self.options.get("tool_choice")
        if (cast("dict[str, Any]", choice).get("mode") if isinstance(choice, dict) else choice) == "required":
            # The model has called a tool. If calls stayed required, it could never answer.
            self.options["tool_choice"] = None
        return outcome

    async def _check_time(self) -> None:
        """Compare the time with the limit. Times are recorded, so that a resumed turn decides as before."""
        seconds_max, turn = self.limits.get("max_duration_seconds"), self.caller.turn
        if seconds_max is None:
            return

        async def read_clock() -> float:
            clock = SystemClock() if turn.activation is None else turn.activation.context.clock
            return clock.now().timestamp()

        self.times.append(await turn.call("time", turn.tool_key("time", len(self.times)), read_clock, "rerun"))
        self.tools_are_closed |= self.times[-1] - self.times[0] >= seconds_max

    def _add_outcome(self, outcome: CallOutcome, asked: Sequence[Content]) -> None:
        """Add results and questions to the conversation. Questions end the turn."""
        results = [each for each in outcome.contents if each.type == "function_result"]
        questions = [*(each for each in outcome.contents if each.type != "function_result"), *asked]
        if results:
            self._add(Message("tool", results))
        self.is_done |= outcome.ends_turn
        if questions:
            self._store_tool_questions(outcome.contents)
            if self.caller.turn.asks:
                self.asked += questions
                return
            self.is_done = True
            self._add_questions(questions)
            # The stream has already sent the arguments of the calls.
            sent = [replace(each, arguments=None) if each.type == "function_call" else each for each in questions]
            self.updates.append(ChatResponseUpdate(contents=sent, role="assistant"))

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self.produced.append(message)
        self.updates.append(ChatResponseUpdate(contents=message.contents, role=message.role))

    def _store_tool_questions(self, contents: Sequence[Content]) -> None:
        every = (each for message in (*self.messages, *self.produced) for each in message.contents)
        calls: dict[str | None, Content] = {each.call_id: each for each in every if each.type == "function_call"}
        if questions := approvals.find_questions(contents, calls):
            approvals.add_batch(self.question_session, approvals.Batch(questions, owner=self.caller.owner))

    def _take_provider_questions(self) -> None:
        """Let the activation ask what the provider asks. The response then has no open questions."""
        for place, message in enumerate(self.produced):
            questions = [each for each in message.contents if each.user_input_request is True]
            if questions:
                self.asked += questions
                contents = [
                    replace(each, user_input_request=None) if each.user_input_request else each
                    for each in message.contents
                ]
                self.produced[place] = message.with_contents(contents)

    def _add_questions(self, questions: Sequence[Content]) -> None:
        """Add questions to the message with their calls. A call that the user answers is replaced by its question."""
        flagged = {each.call_id: each for each in questions if each.type == "function_call"}
        others = [each for each in questions if each.type != "function_call"]
        for place in range(len(self.produced) - 1, -1, -1):
            message = self.produced[place]
            if message.role == "assistant" and any(is_local_call(content) for content in message.contents):
                contents = [
                    flagged.get(each.call_id, each) if is_local_call(each) else each for each in message.contents
                ]
                self.produced[place] = message.with_contents([*contents, *others])
                return
        self.produced.append(Message("assistant", list(questions)))


def _find_calls(messages: Sequence[Message]) -> list[Content]:
    """Return the calls of a response that we have to make: each id once, and none that already has a result."""
    contents = [content for message in messages for content in message.contents]
    done = {content.call_id for content in contents if content.type == "function_result"}
    found: dict[Any, Content] = {}
    for content in contents:
        if is_local_call(content) and content.call_id not in done:
            found.setdefault(content.call_id or id(content), content)
    return list(found.values())


def _without_calls(response: ChatResponse[Any]) -> tuple[ChatResponse[Any], ChatResponseUpdate | None]:
    """Remove calls that nobody will make. If nothing visible is left, add a text, and return its update as well."""
    whole = copy.copy(response)
    kept = [
        message.with_contents([content for content in message.contents if not is_local_call(content)])
        for message in response.messages
    ]
    whole.messages = [message for message in kept if message.contents]
    contents = [content for message in whole.messages for content in message.contents]
    if any(each.type in _VISIBLE or (each.type == "text" and (each.text or "").strip()) for each in contents):
        return whole, None
    whole.messages.append(Message("assistant", [_OUT_OF_CALLS]))
    return whole, ChatResponseUpdate(contents=[_OUT_OF_CALLS], role="assistant", finish_reason="stop")
