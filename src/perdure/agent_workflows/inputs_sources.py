"""What nodes read, found out before anything runs and once for a plan: texts, and the places where names lead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from perdure.agent_workflows.checking_words import listed
from perdure.agent_workflows.definition import INPUT, START
from perdure.agent_workflows.inputs_places import InRequest, Places, UnreadableError
from perdure.agent_workflows.outputs import main_key
from perdure.agent_workflows.templates import Reference, TemplateError, parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agent_workflows.definition import Node
    from perdure.agent_workflows.inputs_places import Place
    from perdure.agent_workflows.plan import Plan
    from perdure.agent_workflows.templates import Part

_WAYS: Final = ("template", "input_key", "reads")


@dataclass(frozen=True, slots=True)
class Named:
    """The value of a name, and where it is."""

    reference: Reference
    place: Place


@dataclass(frozen=True, slots=True)
class Pieces:
    """Texts and the values of names, one after the other."""

    pieces: tuple[str | Named, ...]


@dataclass(frozen=True, slots=True)
class TextOf:
    """What one node before has put out, as a text."""

    writer: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """What all nodes before have put out whose edge was taken."""


Source: TypeAlias = Pieces | TextOf | Upstream
_REQUEST: Final = Pieces((Named(Reference(INPUT), InRequest(())),))


class _NoSourceError(Exception):
    """It can't be said what a node reads."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


@dataclass(frozen=True, slots=True)
class _Found:
    """What all nodes of a plan read, and what is wrong with it."""

    sources: Mapping[str, Source]
    problems: tuple[str, ...]


# What is found holds nothing of the plan, so that it is forgotten with it.
_FOUND: Final[WeakKeyDictionary[Plan, _Found]] = WeakKeyDictionary()


def source_of(plan: Plan, node_id: str) -> Source:
    """What a node reads. The plan is one without input problems, and the node no fallback."""
    return _found(plan).sources[node_id]


def input_problems(plan: Plan) -> list[str]:
    """All that is wrong with what the nodes of a plan read."""
    return list(_found(plan).problems)


def _found(plan: Plan) -> _Found:
    if plan not in _FOUND:
        _FOUND[plan] = _looked_up(plan)
    return _FOUND[plan]


def _looked_up(plan: Plan) -> _Found:
    places = Places(plan)
    sources: dict[str, Source] = {}
    problems: list[str] = []
    # A fallback is given the task of the node that it stands in for.
    for node in (node for node in plan.definition.nodes if node.id not in plan.fallbacks):
        try:
            sources[node.id] = _source(plan, node, places)
        except _NoSourceError as error:
            problems += [f"node {node.id!r} {problem}" for problem in error.problems]
    return _Found(sources, tuple(problems))


def _source(plan: Plan, node: Node, places: Places) -> Source:
    """What a node reads. Raises _NoSourceError with all that is wrong."""
    ways = [way for way in _WAYS if getattr(node, way) is not None]
    if len(ways) > 1:
        raise _NoSourceError(f"says what it reads in several ways: {', '.join(ways)}; keep one")
    try:
        if node.template is not None:
            return _pieces(node, parts_of(node.template), places)
        if node.input_key is not None:
            return _pieces(node, (Reference.of(node.input_key),), places)
    except TemplateError as error:
        raise _NoSourceError(f"has a {ways[0]} in which {error}") from None
    if node.reads == "upstream":
        return Upstream()
    return _REQUEST if node.reads == "request" else _implied(plan, node)


def _pieces(node: Node, parts: Sequence[Part], places: Places) -> Pieces:
    pieces: list[str | Named] = []
    problems: list[str] = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        try:
            pieces.append(Named(part, places.place_of(node.id, part.name)))
        except UnreadableError as error:
            problems.append(f"reads {part.name!r}, and {error}")
    if problems:
        raise _NoSourceError(*problems)
    return Pieces(tuple(pieces))


def _implied(plan: Plan, node: Node) -> Source:
    """What a node reads that does not say it. Raises _NoSourceError if that is not plain."""
    before = list(dict.fromkeys(edge.source for edge in plan.incoming(node.id)))
    loops = [edge.source for edge in plan.incoming(node.id) if plan.is_back(edge)]
    if loops:
        raise _NoSourceError(
            f"has to say what it reads, as {listed(loops)} leads back to it: give it an input_key, a template such as "
            f"'{{{{input}}}} {{{{{loops[0]}.key?}}}}', reads='request' or reads='upstream'"
        )
    if before in ([], [START]):
        return _REQUEST
    is_router = len(before) == 1 and _is_router(plan, before[0])
    if len(before) == 1 and not is_router:
        return TextOf(before[0])
    why = "it comes after a router, which may say nothing: " if is_router else "several lead to it: "
    raise _NoSourceError(
        f"has to say what it reads, as {why}{listed(before)}; give it an input_key, a template, reads='request' or "
        "reads='upstream'"
    )


def _is_router(plan: Plan, node_id: str) -> bool:
    return plan.has_node(node_id) and main_key(plan.node(node_id)) is None
