"""The loop of a turn: the model is asked, its calls are made, it is told the results, and asked again."""

from __future__ import annotations

import copy
from contextlib import aclosing
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.messages.content import Content, UsageDetails, add_usage_details
from perdure.agents.messages.conversation import is_local, repaired
from perdure.agents.messages.message import Message
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate
from perdure.agents.tools.tool_list import expanded_tools
from perdure.agents.turn.approvals import (
    Asked,
    Batch,
    Decision,
    drop_questions,
    keep_batch,
    keep_batches,
    questions_of,
    settled,
    waiting_ids,
)
from perdure.agents.turn.call_ids import CallIds, MadeCalls, ids_in
from perdure.agents.turn.recording import taking
from perdure.data import mutable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from perdure.agents.client.streaming import ChatStream
    from perdure.agents.turn.layer import Limits
    from perdure.agents.turn.tool_calls import Caller, Outcome

_OUT_OF_CALLS: Final = "No more tools may be called in this turn, and there is no answer without them."
_SHOWN: Final = frozenset({"data", "uri", "error", "hosted_file", "hosted_vector_store"})


@mutable
class Exchange:
    """One request to a model, with all that its tools do for it."""

    ask: Callable[..., Any]
    """Asks the model: `ask(messages, stream=..., options=...)`."""
    caller: Caller
    messages: list[Message]
    """What the model is shown, as it happened."""
    options: dict[str, Any]
    limits: Limits
    stream: bool
    said: list[Message] = field(default_factory=list[Message], init=False)
    """What this request has led to."""
    answer: ChatResponse[Any] | None = field(default=None, init=False)
    usage: UsageDetails | None = field(default=None, init=False)
    calls_made: int = field(default=0, init=False)
    failures_in_a_row: int = field(default=0, init=False)
    is_closed: bool = field(default=False, init=False)
    """Whether the model may call no more tools."""
    is_over: bool = field(default=False, init=False)

    def whole(self) -> ChatResponse[Any]:
        """What came of it."""
        whole = ChatResponse[Any]() if self.answer is None else copy.copy(self.answer)
        whole.messages, whole.usage_details = list(self.said), self.usage
        return whole

    async def rounds(self) -> AsyncGenerator[ChatResponseUpdate]:
        """Go on until there is an answer, or somebody else is to say something. Pieces are told if it streams."""
        for update in await self._answers():
            yield update
        for number in range(self.limits.rounds + 1):
            if self.is_over:
                return
            self.is_closed |= number == self.limits.rounds
            async with aclosing(self._asked()) as updates:
                async for update in updates:
                    yield update
            for update in await self._calls():
                yield update

    @property
    def _is_kept_elsewhere(self) -> bool:
        return self.options.get("conversation_id") is not None

    def _made_calls(self) -> MadeCalls:
        caller = self.caller
        return MadeCalls(caller.session, caller.owner, notes_begin=caller.turn.activation is None)

    async def _answers(self) -> list[ChatResponseUpdate]:
        """Make the calls that have been approved since they were asked about."""
        caller, made = self.caller, self._made_calls()
        updates: list[ChatResponseUpdate] = []
        # Of a turn that came to nothing when they were made: nobody has heard of them yet.
        if untold := made.untold(self.messages, is_whole=not self._is_kept_elsewhere):
            drop_questions(caller.session, caller.owner, [result.call_id for result in untold])
            updates.append(self._say(Message("tool", untold)))
        found = settled(self.messages, caller.session, caller.owner)
        if found.decisions or found.open:
            outcome = await self._made(found.decisions, made)
            keep_batches(caller.session, found.batches)
            updates += self._told(outcome, [each.question() for each in found.open])
        return updates if self.stream else []

    def call_ids(self) -> CallIds:
        """What gives the calls of the next answer their ids."""
        taken = {*ids_in(self.messages), *ids_in(self.said), *waiting_ids(self.caller.session)}
        return CallIds(self.caller.turn.name, taken, self._is_kept_elsewhere)

    async def _asked(self) -> AsyncGenerator[ChatResponseUpdate]:
        """Ask the model."""
        options = dict(self.options)
        if tools := expanded_tools(self.caller.tools):
            options["tools"] = tools
        if self.is_closed:
            options["tool_choice"] = "none"
        shown = repaired(self.messages, is_whole=not self._is_kept_elsewhere)
        with taking(self.caller.turn):
            given = self.ask(shown, stream=self.stream, options=options)
        if self.stream:
            stream, ids = cast("ChatStream", given), self.call_ids()
            async with aclosing(stream):
                async for update in stream:
                    if (shown_update := self._shown(ids.piece(update))) is not None:
                        yield shown_update
                answer = await stream.get_final_response()
        else:
            answer = await given
        if self.is_closed:
            answer, fallback = _without_calls(answer)
            if fallback is not None:
                yield fallback
        self._take(answer)

    def _shown(self, update: ChatResponseUpdate) -> ChatResponseUpdate | None:
        """What is told of a piece: calls that nobody will make are not."""
        if not self.is_closed or not any(is_local(content) for content in update.contents):
            return update
        kept = copy.copy(update)
        kept.contents = [content for content in update.contents if not is_local(content)]
        return kept if kept.contents else None

    def _take(self, answer: ChatResponse[Any]) -> None:
        answer = self.answer = self.call_ids().named(answer)
        self.usage = add_usage_details(self.usage, answer.usage_details) if answer.usage_details else self.usage
        if answer.conversation_id is not None:
            # The provider knows what was said: it is told only what is new.
            self.options["conversation_id"] = answer.conversation_id
            self.messages = []
            self._made_calls().forget()
        else:
            self.messages += answer.messages
        self.said += answer.messages

    async def _calls(self) -> list[ChatResponseUpdate]:
        """Make the calls that the model has asked for, or ask whether they may be made."""
        assert self.answer is not None, "the model was asked"
        calls = calls_of(self.answer.messages)
        tools = self.caller.by_name()
        if not calls or not (tools or self.caller.tools):
            self.is_over = True
            return []
        sorted_out: dict[str, list[Content]] = {"run": [], "approve": [], "declared": []}
        for call in calls:
            sorted_out[_mode(tools, call)].append(call)
        ready, waiting, declared = sorted_out["run"], sorted_out["approve"], sorted_out["declared"]
        if self.limits.requires_known and not waiting and not declared:
            _require_known(calls, tools)
        asked = self._asks(waiting, ready)
        outcome = await self._made([] if waiting else [Decision(call) for call in ready])
        updates = self._told(outcome, [*asked, *(_for_the_user(call) for call in declared)])
        return updates if self.stream else []

    def _asks(self, waiting: Sequence[Content], ready: Sequence[Content]) -> list[Content]:
        """The questions whether calls may be made. The others of the answer wait in the session, if there is one."""
        if not waiting:
            return []
        session = self.caller.session
        parked = [] if session is None else list(ready)
        others: Sequence[Content] = () if parked else ready
        asked = [Asked.whether(call) for call in (*waiting, *others)]
        keep_batch(session, Batch(asked, parked, self.caller.owner))
        return [each.question() for each in asked]

    async def _made(self, decisions: Sequence[Decision], made: MadeCalls | None = None) -> Outcome:
        """Make calls, and see whether more may be made. Those that were approved are noted as `made`."""
        outcome = await self.caller.made(decisions, made)
        self.calls_made += sum(decision.is_approved for decision in decisions)
        if decisions:
            self.failures_in_a_row = self.failures_in_a_row + 1 if outcome.has_failed else 0
        self.is_closed |= self.limits.calls is not None and self.calls_made >= self.limits.calls
        self.is_closed |= outcome.has_failed and self.failures_in_a_row >= self.limits.failures_in_a_row
        if _is_required(self.options.get("tool_choice")):
            # It has called one; required again, it could never answer.
            self.options["tool_choice"] = None
        return outcome

    def _told(self, outcome: Outcome, asked: Sequence[Content]) -> list[ChatResponseUpdate]:
        """Add results and questions to what was said. Questions end the turn."""
        questions = [*(each for each in outcome.contents if each.type != "function_result"), *asked]
        results = [each for each in outcome.contents if each.type == "function_result"]
        updates: list[ChatResponseUpdate] = []
        if results:
            updates.append(self._say(Message("tool", results)))
        if questions:
            self._keep_questions_of_tools(outcome.contents)
            self._add_questions(questions)
            updates.append(ChatResponseUpdate(contents=[_as_piece(each) for each in questions], role="assistant"))
        self.is_over |= bool(questions) or outcome.ends
        return updates

    def _say(self, message: Message) -> ChatResponseUpdate:
        self.messages.append(message)
        self.said.append(message)
        return ChatResponseUpdate(contents=message.contents, role=message.role)

    def _keep_questions_of_tools(self, contents: Sequence[Content]) -> None:
        every = (each for message in (*self.messages, *self.said) for each in message.contents)
        calls: dict[str | None, Content] = {each.call_id: each for each in every if each.type == "function_call"}
        if asked := questions_of(contents, calls):
            keep_batch(self.caller.session, Batch(asked, owner=self.caller.owner))

    def _add_questions(self, questions: Sequence[Content]) -> None:
        """Put questions to the message with the calls that they are about; a call that is asked takes its place."""
        flagged = {each.call_id: each for each in questions if each.type == "function_call"}
        others = [each for each in questions if each.type != "function_call"]
        for place in range(len(self.said) - 1, -1, -1):
            message = self.said[place]
            if message.role == "assistant" and any(is_local(content) for content in message.contents):
                changed = copy.copy(message)
                changed.contents = [
                    flagged.get(each.call_id, each) if is_local(each) else each for each in message.contents
                ]
                changed.contents += others
                self.said[place] = changed
                return
        self.said.append(Message("assistant", list(questions)))


def calls_of(messages: Sequence[Message]) -> list[Content]:
    """The calls in an answer that are to be made here: each id once, and none that already has a result."""
    contents = [content for message in messages for content in message.contents]
    done = {content.call_id for content in contents if content.type == "function_result"}
    found: dict[Any, Content] = {}
    for content in contents:
        if is_local(content) and content.call_id not in done:
            found.setdefault(content.call_id or id(content), content)
    return list(found.values())


def _mode(tools: Mapping[str, Any], call: Content) -> str:
    tool = tools.get(call.name or "")
    if tool is None:
        return "run"
    if tool.declaration_only:
        return "declared"
    return "approve" if tool.approval_mode == "always_require" else "run"


def _require_known(calls: Sequence[Content], tools: Mapping[str, Any]) -> None:
    for call in calls:
        if call.name not in tools:
            raise KeyError(f"the model calls a tool named {call.name!r}, and there is none; there are {sorted(tools)}")


def _for_the_user(call: Content) -> Content:
    """A call that whoever uses the agent is to answer."""
    return replace(call, user_input_request=True, id=call.call_id)


def _as_piece(content: Content) -> Content:
    """What is told of a question in a stream: the arguments of a call have been told."""
    return replace(content, arguments=None) if content.type == "function_call" else content


def _is_required(choice: object) -> bool:
    mode: object = cast("dict[str, Any]", choice).get("mode") if isinstance(choice, dict) else choice
    return mode == "required"


def _without_calls(answer: ChatResponse[Any]) -> tuple[ChatResponse[Any], ChatResponseUpdate | None]:
    """An answer without calls that nobody will make. If nothing else was said, it says so; that piece comes, too."""
    whole = copy.copy(answer)
    kept = [_without_local_calls(message) for message in answer.messages]
    whole.messages = [message for message in kept if message.contents]
    if any(_is_seen(content) for message in whole.messages for content in message.contents):
        return whole, None
    whole.messages.append(Message("assistant", [_OUT_OF_CALLS]))
    return whole, ChatResponseUpdate(contents=[_OUT_OF_CALLS], role="assistant", finish_reason="stop")


def _without_local_calls(message: Message) -> Message:
    if not any(is_local(content) for content in message.contents):
        return message
    kept = copy.copy(message)
    kept.contents = [content for content in message.contents if not is_local(content)]
    return kept


def _is_seen(content: Content) -> bool:
    """Whether a content says something to whoever uses the agent."""
    return content.type in _SHOWN or bool(content.type == "text" and (content.text or "").strip())
