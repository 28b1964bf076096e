"""Choices of a model as tools: whom a router hands over to, which type an answer has. Calling one ends the turn."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from perdure import ChatContext, ChatMiddleware, FunctionTool, MiddlewareTermination
from perdure.agent_workflows.definition import Handoffs, StructuredOutput, UnionOutput
from perdure.agent_workflows.outputs import type_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from perdure import Content, FunctionInvocationContext, Message
    from perdure.agent_workflows.definition import Output
    from perdure.agent_workflows.outputs import Wanted

_CHOSEN: Final = "chosen"
_VALUE: Final = "value"
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_LENGTH_MAX: Final = 64
"""What providers allow in the name of a tool, and how long it may be."""
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several things that a model can choose: its tool, and what it stands for."""

    tool_name: str
    means: str
    """A node, or the name of a type."""
    description: str
    wanted: Wanted = field(default_factory=lambda: _NO_ARGUMENTS)
    """What the model gives with it."""


def choices_of(output: Output) -> tuple[Choice, ...]:
    """What a model has to choose from; nothing, if it simply answers. Raises ValueError if two have one name."""
    match output:
        case Handoffs(targets):
            found = [_handoff(target, when) for target, when in targets.items()]
        case UnionOutput(types):
            found = [_answer(wanted, type_name(wanted)) for wanted in types]
        case StructuredOutput(wanted, "tool"):
            found = [_answer(wanted, _titled(wanted))]
        case _:
            found = []
    _require_distinct(found)
    return tuple(found)


def _handoff(target: str, when: str) -> Choice:
    return Choice(_tool_name(f"handoff_to_{target}"), target, when or f"Hand over to {target}.")


def _answer(wanted: Wanted, name: str) -> Choice:
    said = wanted.get("description") if isinstance(wanted, Mapping) else wanted.__doc__
    description = f"Answer with {name}." if not said else f"Answer with {name}: {str(said).strip()}"
    return Choice(_tool_name(f"answer_with_{name}"), name, description, wanted)


def _titled(wanted: Wanted) -> str:
    return str(wanted.get("title") or "value") if isinstance(wanted, Mapping) else wanted.__name__


def _tool_name(name: str) -> str:
    return _NO_NAME.sub("_", name)[:_NAME_LENGTH_MAX]


def _require_distinct(choices: Sequence[Choice]) -> None:
    found: dict[str, Choice] = {}
    for each in choices:
        other = found.setdefault(each.tool_name, each)
        if other is not each:
            raise ValueError(
                f"{other.means!r} and {each.means!r} would both be chosen by the tool {each.tool_name!r}; "
                "rename one of them"
            )


class ChoiceTool(FunctionTool):
    """The tool of a choice. It takes whatever the model gives, and ends the turn; what it is worth is seen then."""

    def __init__(self, choice: Choice) -> None:
        super().__init__(
            name=choice.tool_name,
            description=choice.description,
            func=_choose,
            input_model=choice.wanted,
            if_interrupted="rerun",
        )

    @override
    def checked(self, arguments: object) -> dict[str, Any]:
        """The arguments as they are: a fault in them is told to the model by the node, which counts how often."""
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
        """Choose, and end the turn: the result is all that is recorded of it."""
        raise MiddlewareTermination(result={_CHOSEN: self.name, _VALUE: self.checked(arguments)})


async def _choose() -> None:
    """Stands for the function of a tool that has none of its own, and is called all the same."""


class MustChoose(ChatMiddleware):
    """Has the model call a tool each time that it is asked, until it has chosen.

    An agent's loop requires a call only once: a model that looks something up first could then go on without choosing.
    """

    @override
    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Require a call, unless none may be made any more."""
        options = dict(context.options or {})
        choice: object = options.get("tool_choice")
        mode: object = cast("Mapping[str, Any]", choice).get("mode") if isinstance(choice, Mapping) else choice
        if mode != "none":
            context.options = {**options, "tool_choice": "required"}
        await call_next()


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice that was made, and what came with it."""

    choice: Choice
    value: Any


def made_choices(choices: Iterable[Choice], turn: Sequence[Message], *, before: Collection[str]) -> list[Chosen]:
    """What was chosen in a turn, each once, in the order of the calls; `before` are the ids of calls of earlier ones.

    A tool that merely returns what looks like a choice is none; neither is one whose result a middleware has replaced.
    """
    by_name = {choice.tool_name: choice for choice in choices}
    contents = [content for message in turn for content in message.contents]
    results = {each.call_id: each for each in contents if each.type == "function_result"}
    found: list[Chosen] = []
    for call in contents:
        choice = by_name.get(call.name or "") if call.type == "function_call" else None
        if choice is None or call.call_id in before:
            continue
        for chosen in _in_result(choice, results.get(call.call_id)):
            if chosen not in found:
                found.append(chosen)
    return found


def _in_result(choice: Choice, result: Content | None) -> Iterator[Chosen]:
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
            # A handoff is the same whatever a model says with it.
            yield Chosen(choice, {} if choice.wanted is _NO_ARGUMENTS else record.get(_VALUE))


def call_ids(messages: Iterable[Message]) -> frozenset[str]:
    """The ids of the calls in messages."""
    contents = (content for message in messages for content in message.contents)
    return frozenset({each.call_id for each in contents if each.type == "function_call" and each.call_id})
