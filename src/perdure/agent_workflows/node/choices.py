"""Choices of a model, as tools: the handoffs of a router, and the types of an answer. A call of one ends the turn."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from perdure import ChatContext, ChatMiddleware, FunctionTool, MiddlewareTermination
from perdure.agent_workflows.definition.values import Handoffs, StructuredOutput, UnionOutput
from perdure.agent_workflows.outputs import title_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from perdure import Content, FunctionInvocationContext, Message
    from perdure.agent_workflows.definition.values import Output, Shape

_CHOSEN: Final = "chosen"
_VALUE: Final = "value"
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_LENGTH_MAX: Final = 64
"""The longest tool name that providers allow."""
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the things that a model can choose: its tool, and what it stands for."""

    tool_name: str
    means: str
    """A node, or the name of a type."""
    description: str
    shape: Shape = field(default_factory=lambda: _NO_ARGUMENTS)
    """The form of the tool's arguments."""


def choices_of(output: Output) -> tuple[Choice, ...]:
    """Return the choices of a node; none if the model simply answers. Raises ValueError if two have the same name."""
    match output:
        case Handoffs(targets):
            found = [
                Choice(_tool_name(f"handoff_to_{target}"), target, when or f"Hand over to {target}.")
                for target, when in targets.items()
            ]
        case UnionOutput(types):
            found = [_answer_choice(shape, title_of(shape)) for shape in types]
        case StructuredOutput(shape, "tool"):
            found = [_answer_choice(shape, title_of(shape) or "value")]
        case _:
            found = []
    by_name: dict[str, Choice] = {}
    for each in found:
        other = by_name.setdefault(each.tool_name, each)
        if other is not each:
            raise ValueError(
                f"{other.means!r} and {each.means!r} would both be chosen by the tool {each.tool_name!r}; "
                "rename one of them"
            )
    return tuple(found)


def _answer_choice(shape: Shape, name: str) -> Choice:
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice that a model made, with its arguments."""

    choice: Choice
    value: Any


def find_choices(choices: Iterable[Choice], turn: Sequence[Message], *, before: Collection[str]) -> list[Chosen]:
    """Return the choices made in a turn, without repetitions. `before` are the ids of calls in earlier turns.

    A tool result that only looks like a choice is none; neither is one that a middleware has replaced.
    """
    by_name = {choice.tool_name: choice for choice in choices}
    contents = [content for message in turn for content in message.contents]
    results = {each.call_id: each for each in contents if each.type == "function_result"}
    found: list[Chosen] = []
    for call in contents:
        choice = by_name.get(call.name or "") if call.type == "function_call" else None
        if choice is None or call.call_id in before:
            continue
        for chosen in _choices_in(choice, results.get(call.call_id)):
            if chosen not in found:
                found.append(chosen)
    return found


def _choices_in(choice: Choice, result: Content | None) -> Iterator[Chosen]:
    if result is None or result.exception is not None:
        return
    found: object = result.result
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return
    if isinstance(found, Mapping):
        record = cast("Mapping[str, Any]", found)
        if record.get(_CHOSEN) == choice.tool_name:
            # Handoffs are equal whatever arguments a model adds.
            yield Chosen(choice, {} if choice.shape is _NO_ARGUMENTS else record.get(_VALUE))


def call_ids(messages: Iterable[Message]) -> frozenset[str]:
    """Return the ids of the tool calls in messages."""
    contents = (content for message in messages for content in message.contents)
    return frozenset({each.call_id for each in contents if each.type == "function_call" and each.call_id})
