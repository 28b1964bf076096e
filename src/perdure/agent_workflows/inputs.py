"""What a node reads, as the text of its task when it is given one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from perdure import Message
from perdure.agent_workflows.checking_words import listed
from perdure.agent_workflows.conditions_values import MISSING, inside
from perdure.agent_workflows.definition import INPUT, START
from perdure.agent_workflows.errors import MissingInputError
from perdure.agent_workflows.inputs_places import InRequest
from perdure.agent_workflows.inputs_sources import Named, Pieces, TextOf, Upstream, source_of
from perdure.agent_workflows.outputs import json_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent_workflows.definition import Node
    from perdure.agent_workflows.inputs_places import InOutputs, Place
    from perdure.agent_workflows.plan import Plan


@dataclass(frozen=True, slots=True)
class Known:
    """What is known when a node is given its task: the request, and what became of the nodes before.

    `taken` are the nodes before it whose edge to it was taken; `skipped` says, by node, why it did not act; `failed`
    why it has nothing to say but that.
    """

    request: Any
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    taken: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


class _MissingError(Exception):
    """A value is not there. The text says why."""


def task_text(plan: Plan, node_id: str, known: Known) -> str:
    """The text of the task of a node. Raises MissingInputError if it reads what is not there."""
    node = plan.node(node_id)
    match source_of(plan, node_id):
        case Pieces(pieces):
            return "".join(each if isinstance(each, str) else _value(plan, node, each, known) for each in pieces)
        case TextOf(writer):
            return _required(node, f"what {writer!r} has put out", lambda: _text_of(writer, known))
        case Upstream():
            return _required(node, "what nodes before it have put out", lambda: _upstream(known))


def _value(plan: Plan, node: Node, named: Named, known: Known) -> str:
    def value() -> str:
        return rendered(_value_at(plan, node, named.place, known))

    if not named.reference.is_optional:
        return _required(node, repr(named.reference.name), value)
    try:
        return value()
    except _MissingError:
        return ""


def _required(node: Node, what: str, value: Callable[[], str]) -> str:
    try:
        return value()
    except _MissingError as why:
        raise MissingInputError(
            f"node {node.id!r} reads {what}, which is not there: {why}; let the node act only if it is, or read it in "
            "a template as '{{name?}}', which is empty then"
        ) from None


def _value_at(plan: Plan, node: Node, place: Place, known: Known) -> Any:
    if isinstance(place, InRequest):
        return _inside(known.request, place.path, "the request")
    writer = place.writers[0] if len(place.writers) == 1 else _writer_among(plan, node, place, known)
    outputs = known.outputs.get(writer)
    if outputs is None or place.key not in outputs:
        raise _MissingError(_why_not(writer, known))
    return _inside(outputs[place.key], place.path, f"{place.key!r} of {writer!r}")


def _writer_among(plan: Plan, node: Node, place: InOutputs, known: Known) -> str:
    """Who has written a key of which it was not known who would."""
    found = [writer for writer in place.writers if place.key in known.outputs.get(writer, {})]
    if len(found) > 1:
        direct = {edge.source for edge in plan.incoming(node.id)}
        found = [writer for writer in found if writer in direct] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise _MissingError(f"{listed(found)} have written it; write 'node.{place.key}' with the node that is meant")
    raise _MissingError(f"none of {listed(place.writers)} has written it")


def _inside(value: Any, path: tuple[str, ...], what: str) -> Any:
    for key in path:
        found = inside(value, key)
        if found is MISSING:
            raise _MissingError(f"{what} has no {key!r}")
        value, what = found, f"{key!r} of {what}"
    return value


def _why_not(writer: str, known: Known) -> str:
    if writer in known.skipped:
        return f"{writer!r} was skipped: {known.skipped[writer]}"
    if writer in known.failed:
        return f"{writer!r} has failed: {known.failed[writer]}"
    outputs = known.outputs.get(writer)
    if outputs is None:
        return f"{writer!r} has not acted yet"
    return f"{writer!r} has put out only {listed(outputs)}"


def _text_of(writer: str, known: Known) -> str:
    if writer == START:
        return rendered(known.request)
    if writer not in known.texts or writer in known.skipped or writer in known.failed:
        raise _MissingError(_why_not(writer, known))
    return known.texts[writer]


def _upstream(known: Known) -> str:
    """What the nodes before have put out, each under its name if there are several."""
    found: dict[str, str] = {}
    missing: list[str] = []
    for writer in known.taken:
        try:
            found[INPUT if writer == START else writer] = _text_of(writer, known)
        except _MissingError as why:
            missing.append(str(why))
    told = {name: text for name, text in found.items() if text}
    if not told:
        silent = [f"{name!r} has said nothing" for name in found]
        raise _MissingError("; ".join([*missing, *silent]) or "no edge to it was taken")
    if len(told) == 1:
        return next(iter(told.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in told.items())


def rendered(value: object) -> str:
    """A value as an agent is told it: a text as it is, everything else as JSON."""
    match value:
        case str():
            return value
        case Message():
            return value.text
        case list() if any(isinstance(each, Message) for each in cast("list[object]", value)):
            return "\n".join(rendered(each) for each in cast("list[object]", value))
        case _:
            return json_text(value, is_strict=False)
