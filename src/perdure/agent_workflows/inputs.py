"""What nodes read: checked when a workflow is built, and rendered as the text of a task when a node is given it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from perdure import Message
from perdure.agent_workflows.definition import ERROR, INPUT, START
from perdure.agent_workflows.errors import MissingInputError
from perdure.agent_workflows.inputs_places import InRequest, UnreadableError, place_of
from perdure.agent_workflows.outputs import main_key
from perdure.agent_workflows.templates import Reference, TemplateError, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from perdure.agent_workflows.definition import Node
    from perdure.agent_workflows.inputs_places import InOutputs, Place
    from perdure.agent_workflows.plan import Plan
    from perdure.agent_workflows.templates import Part

_WAYS: Final = ("template", "input_key", "reads")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known when a node is given its task: the request, and what became of the nodes before.

    `taken` are the nodes before it whose edge to it was taken; `skipped` says, by node, why it did not act.
    """

    request: Any
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    taken: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Parts:
    """Texts and the values of names, one after the other."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Text:
    """What one node before has put out, as a text."""

    writer: str


@dataclass(frozen=True, slots=True)
class _Upstream:
    """What all nodes before have put out whose edge was taken."""


_Source: TypeAlias = _Parts | _Text | _Upstream
_REQUEST: Final = _Parts((Reference(INPUT),))


class _MissingError(Exception):
    """A value is not there. The text says why."""


def input_problems(plan: Plan) -> list[str]:
    """All that is wrong with what the nodes of a plan read."""
    return [f"node {node.id!r} {problem}" for node in plan.definition.nodes for problem in _problems(plan, node)]


def _problems(plan: Plan, node: Node) -> Iterator[str]:
    ways = [way for way in _WAYS if getattr(node, way) is not None]
    if len(ways) > 1:
        yield f"says what it reads in several ways: {', '.join(ways)}; keep one"
        return
    if node.id in plan.fallbacks:
        if ways:
            yield f"is a fallback, which is given the task of the node that it stands in for; leave out its {ways[0]}"
        return
    try:
        source = _source_of(plan, node)
    except (TemplateError, UnreadableError) as error:
        yield str(error)
        return
    if isinstance(source, _Parts):
        for part in source.parts:
            if isinstance(part, Reference):
                yield from _problems_of(plan, node, part)


def _problems_of(plan: Plan, node: Node, reference: Reference) -> Iterator[str]:
    try:
        place_of(plan, node.id, reference.name)
    except UnreadableError as error:
        yield f"reads {reference.name!r}, and {error}"


def _source_of(plan: Plan, node: Node) -> _Source:
    """What a node reads. Raises TemplateError, or UnreadableError if it does not say it and has to."""
    try:
        if node.template is not None:
            return _Parts(parts_of(node.template))
        if node.input_key is not None:
            return _Parts((Reference.of(node.input_key),))
    except TemplateError as error:
        raise TemplateError(f"has a {'template' if node.input_key is None else 'input_key'} in which {error}") from None
    if node.reads == "upstream":
        return _Upstream()
    return _REQUEST if node.reads == "request" else _implied(plan, node)


def _implied(plan: Plan, node: Node) -> _Source:
    """What a node reads that does not say it. Raises UnreadableError if that is not plain."""
    before = list(dict.fromkeys(edge.source for edge in plan.incoming(node.id)))
    loops = [edge.source for edge in plan.incoming(node.id) if plan.is_back(edge)]
    if loops:
        raise UnreadableError(
            f"has to say what it reads, as {_listed(loops)} leads back to it: give it an input_key, a template such as "
            f"'{{{{input}}}} {{{{{loops[0]}.key?}}}}', reads='request' or reads='upstream'"
        )
    if before in ([], [START]):
        return _REQUEST
    is_router = len(before) == 1 and _is_router(plan, before[0])
    if len(before) == 1 and not is_router:
        return _Text(before[0])
    why = "it comes after a router, which may say nothing: " if is_router else "several lead to it: "
    raise UnreadableError(
        f"has to say what it reads, as {why}{_listed(before)}; give it an input_key, a template, reads='request' or "
        "reads='upstream'"
    )


def _is_router(plan: Plan, node_id: str) -> bool:
    return any(node.id == node_id and main_key(node) is None for node in plan.definition.nodes)


def task_text(plan: Plan, node_id: str, known: Known) -> str:
    """The text of the task of a node. Raises MissingInputError if it reads what is not there."""
    node = plan.definition.node(node_id)
    match _source_of(plan, node):
        case _Parts(parts):
            return "".join(_rendered(plan, node, part, known) for part in parts)
        case _Text(writer):
            return _required(node, f"what {writer!r} has put out", lambda: _text_of(writer, known))
        case _Upstream():
            return _required(node, "what nodes before it have put out", lambda: _upstream(known))


def _rendered(plan: Plan, node: Node, part: Part, known: Known) -> str:
    if isinstance(part, str):
        return part

    def value() -> str:
        return rendered(_value_at(plan, node, place_of(plan, node.id, part.name), known))

    if not part.is_optional:
        return _required(node, repr(part.name), value)
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
        raise _MissingError(f"{_listed(found)} have written it; write 'node.{place.key}' with the node that is meant")
    raise _MissingError(f"none of {_listed(place.writers)} has written it")


def _inside(value: Any, path: tuple[str, ...], what: str) -> Any:
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise _MissingError(f"{what} has no {key!r}")
        value, what = cast("Mapping[str, Any]", value)[key], f"{key!r} of {what}"
    return value


def _why_not(writer: str, known: Known) -> str:
    if writer in known.skipped:
        return f"{writer!r} was skipped: {known.skipped[writer]}"
    outputs = known.outputs.get(writer)
    if outputs is None:
        return f"{writer!r} has not acted yet"
    if ERROR in outputs:
        return f"{writer!r} has failed: {outputs[ERROR]}"
    return f"{writer!r} has put out only {_listed(outputs)}"


def _text_of(writer: str, known: Known) -> str:
    if writer == START:
        return rendered(known.request)
    if writer not in known.texts or writer in known.skipped or set(known.outputs.get(writer, ())) == {ERROR}:
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
            return json.dumps(value, ensure_ascii=False, default=str)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
