"""Answers of agents: choices that a model makes by calling a tool, values read from its text, and corrections."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from perdure import (
    Agent,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    Content,
    FunctionInvocationLayer,
    FunctionTool,
    InvalidValueError,
    Message,
    MiddlewareTermination,
)
from perdure.agent_workflows.definition import values
from perdure.agent_workflows.outputs import correct_outputs, json_text, main_key, parse_value, title_of

if TYPE_CHECKING:
    from perdure import AgentExecutorResponse, Content, FunctionInvocationContext, SupportsAgentRun

_CHOSEN: Final = "chosen"
_VALUE: Final = "value"
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
# The longest tool name that providers allow.
_NAME_LENGTH_MAX: Final = 64
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the things that a model can choose: its tool, and what it stands for.

    Attributes:
        means: A node, or the name of a type.
        shape: The form of the tool's arguments.
    """

    tool_name: str
    means: str
    description: str
    shape: values.Shape = field(default_factory=lambda: _NO_ARGUMENTS)


def choices_of(output: values.Output) -> tuple[Choice, ...]:
    """Return the choices of a node; none if the model simply answers. Raises ValueError if two have the same name."""
    match output:
        case values.Handoffs(targets):
            found = [
                Choice(_tool_name(f"handoff_to_{target}"), target, when or f"Hand over to {target}.")
                for target, when in targets.items()
            ]
        case values.UnionOutput(types):
            found = [_answer_choice(shape, title_of(shape)) for shape in types]
        case values.StructuredOutput(shape, "tool"):
            found = [_answer_choice(shape, title_of(shape) or "value")]
        case _:
            found = []
    for one, other in combinations(found, 2):
        if one.tool_name == other.tool_name:
            raise ValueError(
                f"{one.means!r} and {other.means!r} would both be chosen by the tool {one.tool_name!r}; rename one"
            )
    return tuple(found)


def _answer_choice(shape: values.Shape, name: str) -> Choice:
    about = shape.get("description") if isinstance(shape, Mapping) else shape.__doc__
    description = f"Answer with {name}." if not about else f"Answer with {name}: {str(about).strip()}"
    return Choice(_tool_name(f"answer_with_{name}"), name, description, shape)


def _tool_name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:_NAME_LENGTH_MAX]


class ChoiceTool(FunctionTool):
    """The tool of a choice. It accepts any arguments and ends the turn; the node validates the arguments."""

    def __init__(self, choice: Choice) -> None:
        super().__init__(
            name=choice.tool_name,
            description=choice.description,
            func=_choose,
            input_model=choice.shape,
            if_interrupted="rerun",
        )

    @override
    def validate_arguments(self, arguments: object) -> dict[str, Any]:
        """Return the arguments as they are: the node reports faults to the model, and counts how often."""
        return dict(cast("Mapping[str, Any]", arguments)) if isinstance(arguments, Mapping) else {}

    @override
    async def invoke(
        self,
        *,
        arguments: Any = None,
        context: FunctionInvocationContext | None = None,
        tool_call_id: str | None = None,
        skip_parsing: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Record the choice and end the turn."""
        raise MiddlewareTermination(result={_CHOSEN: self.name, _VALUE: self.validate_arguments(arguments)})


async def _choose() -> None:
    """Stand for the function of a choice tool, which is never called."""


class RequireChoice(ChatMiddleware):
    """Require a tool call in each model call, until the model has chosen.

    The agent's loop requires a call only once: a model that looks something up first could then answer without one.
    """

    @override
    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Require a call, unless calls are disabled."""
        options = dict(context.options or {})
        choice: object = options.get("tool_choice")
        mode: object = cast("Mapping[str, Any]", choice).get("mode") if isinstance(choice, Mapping) else choice
        if mode != "none":
            context.options = {**options, "tool_choice": "required"}
        await call_next()


def find_choices(
    choices: Iterable[Choice], turn: Sequence[Message], *, before: Collection[str]
) -> list[tuple[Choice, Any]]:
    """Return the choices made in a turn and their arguments, once each. `before` are the ids of calls before it.

    A tool result that only looks like a choice is none; neither is one that a middleware has replaced.
    """
    by_name = {choice.tool_name: choice for choice in choices}
    contents = [content for message in turn for content in message.contents]
    results = {each.call_id: each for each in contents if each.type == "function_result"}
    found: list[tuple[Choice, Any]] = []
    for call in contents:
        choice = by_name.get(call.name or "") if call.type == "function_call" and call.call_id not in before else None
        record = _record_in(results.get(call.call_id))
        if choice is not None and record.get(_CHOSEN) == choice.tool_name:
            # Handoffs are equal whatever arguments a model adds.
            chosen: tuple[Choice, Any] = (choice, {} if choice.shape is _NO_ARGUMENTS else record.get(_VALUE))
            if chosen not in found:
                found.append(chosen)
    return found


def _record_in(result: Content | None) -> Mapping[str, Any]:
    found: object = None if result is None or result.exception is not None else result.result
    try:
        found = json.loads(found) if isinstance(found, str) else found
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def call_ids(messages: Iterable[Message]) -> frozenset[str]:
    """Return the ids of the tool calls in messages."""
    contents = (content for message in messages for content in message.contents)
    return frozenset({each.call_id for each in contents if each.type == "function_call" and each.call_id})


# The contents that go into conversations. Tool calls and their results stay with the agent.
_SHARED_CONTENTS: Final = frozenset({"text", "data", "uri", "hosted_file"})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as outputs by key, as one text, and as messages for the conversation."""

    outputs: Mapping[str, Any]
    text: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """Reads the answers of one node.

    Attributes:
        author: The author of messages.
    """

    output: values.Output
    choices: Sequence[Choice]
    author: str

    def read(self, response: AgentExecutorResponse, *, before: Collection[str]) -> Answer:
        """Read a response. Raises InvalidValueError with the text for the model, if the response cannot be used."""
        if self.choices:
            return self._read_choice(response, before)
        match self.output:
            case values.StructuredOutput(shape):
                try:
                    # Before a tool call a model may have said something else.
                    texts = [each.text for each in response.agent_response.messages if each.role == "assistant"]
                    value = parse_value(next(filter(None, reversed(texts)), ""), shape)
                except InvalidValueError as fault:
                    raise InvalidValueError(
                        f"Your answer can't be used: {fault}. Answer again, with JSON of the form that was asked for "
                        "and nothing else."
                    ) from fault
                return self._value_answer({**value, values.RESULT: value}, value)
            case values.TextOutput(key):
                text = response.agent_response.text
                return Answer({key: text}, text, shared_messages(response.agent_response.messages))
            case _:
                raise AssertionError("a node with this output has choices")

    def default(self, response: AgentExecutorResponse) -> Answer | None:
        """Return the answer of a router whose model made no choice; None if there is no default."""
        target = self.output.default if isinstance(self.output, values.Handoffs) else None
        return None if target is None else self._handoff_answer(target, response)

    def _read_choice(self, response: AgentExecutorResponse, before: Collection[str]) -> Answer:
        found = find_choices(self.choices, response.full_conversation, before=before)
        names = ", ".join(choice.tool_name for choice in self.choices)
        if not found:
            raise InvalidValueError(
                f"Nothing has come of that, as you have called none of these tools: {names}. Call exactly one of them."
            )
        (choice, chosen), *others = found
        if others:
            called = " and ".join(each.tool_name for each, _ in found)
            raise InvalidValueError(
                f"Nothing has come of that, as you have called {called}. Call exactly one of these tools, once: "
                f"{names}."
            )
        if isinstance(self.output, values.Handoffs):
            return self._handoff_answer(choice.means, response)
        try:
            value = parse_value(json.dumps(chosen), choice.shape)
        except InvalidValueError as fault:
            raise InvalidValueError(
                f"What you have given to {choice.tool_name} can't be used: {fault}. Call exactly one of these tools "
                f"again, with all that it takes: {names}."
            ) from fault
        matched = {values.MATCHED_TYPE: choice.means} if isinstance(self.output, values.UnionOutput) else {}
        return self._value_answer({**value, values.RESULT: value, **matched}, value)

    def _handoff_answer(self, target: str, response: AgentExecutorResponse) -> Answer:
        text = response.agent_response.text
        return self._handoff(target, text, shared_messages(response.agent_response.messages))

    def _handoff(self, target: str, text: str, messages: tuple[Message, ...]) -> Answer:
        # Each task needs a reply in the conversation, so a router without a text replies with its choice.
        return Answer(
            {values.HANDOFF_TARGET: target, values.ANSWER: text}, text, messages or self._message(text or target)
        )

    def _value_answer(self, outputs: Mapping[str, Any], value: object) -> Answer:
        text = json_text(value)
        return Answer(outputs, text, self._message(text))

    def _message(self, text: str) -> tuple[Message, ...]:
        return (Message("assistant", [text], author_name=self.author),) if text else ()

    def correct(self, answer: Answer, changes: Mapping[str, Any]) -> Answer:
        """Apply a person's changes to an answer. Raises InvalidValueError with all that is wrong."""
        if not changes:
            return answer
        outputs = correct_outputs(self.output, answer.outputs, changes)
        whole: object = outputs[main_key(self.output) or values.ANSWER]
        text = whole if isinstance(whole, str) else json_text(whole)
        if isinstance(self.output, values.Handoffs):
            messages = answer.messages if text and text == answer.text else ()
            return self._handoff(outputs[values.HANDOFF_TARGET], text, messages)
        return Answer(outputs, text, answer.messages if text == answer.text else self._message(text))


def shared_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the assistant's messages for the conversation, without tool calls."""
    found: list[Message] = []
    for message in messages:
        contents: list[str | Content] = [
            each for each in message.contents if each.type in _SHARED_CONTENTS and (each.type != "text" or each.text)
        ]
        if message.role == "assistant" and contents:
            found.append(Message("assistant", contents, author_name=message.author_name))
    return tuple(found)


# The outputs that only an `Agent` can make, as the reason for errors.
_NEEDS: Final[Mapping[type[Any], str]] = {
    values.Handoffs: "is a router",
    values.UnionOutput: "has an output of several types",
    values.StructuredOutput: "has a structured output",
}


def configure_agent(node: values.Node, agent: SupportsAgentRun, choices: Sequence[Choice]) -> SupportsAgentRun:
    """Return a copy of an agent that answers as its node needs, or the agent itself if it needs no change.

    Raises TypeError if only an `Agent` can do it, ValueError if one of its tools has the name of a choice.
    """
    why = _NEEDS.get(type(node.output), None if node.instructions is None else "has instructions")
    if why is None:
        return agent
    if not isinstance(agent, Agent):
        raise TypeError(
            f"node {node.id!r} {why}, and only an Agent supports that, not a {type(agent).__name__}; give the node "
            "an Agent, or leave that out"
        )
    own = cast("Agent[Any]", agent)
    copied = copy.copy(own)
    copied.context_providers = list(own.context_providers)
    # A client without this layer would pass middleware on to its provider.
    is_forced = bool(choices) and isinstance(own.client, ChatMiddlewareLayer)
    copied.middleware = [*own.middleware, *([RequireChoice()] if is_forced else ())]
    copied.additional_properties = dict(own.additional_properties)
    copied.default_options = options = dict(own.default_options)
    if node.instructions is not None:
        options["instructions"] = "\n".join(filter(None, (options.get("instructions"), node.instructions)))
    if choices:
        options.pop("response_format", None)
        tools = _tools_for(node, options, choices)
        options |= {"tools": tools, "tool_choice": "required", "allow_multiple_tool_calls": False}
    elif isinstance(node.output, values.StructuredOutput):
        options["response_format"] = node.output.type
        if isinstance(own.client, FunctionInvocationLayer):
            # The node itself asks again: so do the records of executions that earlier versions began.
            options["check_response_format"] = False
    return copied


def _tools_for(node: values.Node, options: dict[str, Any], choices: Sequence[Choice]) -> list[Any]:
    tools: list[Any] = list(options.get("tools") or ())
    names = {getattr(tool, "name", None) for tool in tools}
    for choice in choices:
        if choice.tool_name in names:
            raise ValueError(
                f"the agent of node {node.id!r} has a tool named {choice.tool_name!r}, and the node needs that name "
                f"for the choice of {choice.means!r}; rename the tool"
            )
        tools.append(ChoiceTool(choice))
    return tools
