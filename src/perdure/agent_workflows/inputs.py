"""Inputs of nodes: templates, and the values that names refer to. All of it is resolved when a workflow is built.

A name is `input`, a key, or `node.key`. Further parts lead into the value: a key of a dict, or the number of a list
element. `START.input` is the request too, for nodes after one that has an output `input`.

In a template, `{{name}}` is a value, `{{name?}}` is empty if there is none, and `{{{{` is a literal `{{`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from perdure import Message
from perdure.agent_workflows.definition.conditions import MISSING, look_inside
from perdure.agent_workflows.definition.values import INPUT, START, Node
from perdure.agent_workflows.errors import MissingInputError, quoted
from perdure.agent_workflows.outputs import find_dead_end, json_text, main_key, readable_keys

if TYPE_CHECKING:
    from perdure.agent_workflows.messages import NodeOutput
    from perdure.agent_workflows.plan import Plan

_OPENING: Final = "{{"
_LITERAL: Final = "{{{{"
_MARK: Final = re.compile(r"\{\{\{\{|\{\{([^{}]*)\}\}")


class TemplateError(ValueError):
    """A template cannot be parsed. The message says why."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in a template. An optional one is empty if there is no value."""

    name: str
    is_optional: bool = False

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a name, with `?` after it if it is optional. Raises TemplateError."""
        name = text.strip()
        is_optional = name.endswith("?")
        name = name.removesuffix("?").rstrip()
        if not name or not all(name.split(".")):
            raise TemplateError(f"{text!r} names nothing; write the key of an output, or 'node.key'")
        return cls(name, is_optional)


def parse_template(template: str) -> tuple[str | Reference, ...]:
    """Split a template into texts and references. Raises TemplateError."""
    parts: list[str | Reference] = []
    end = 0
    for found in _MARK.finditer(template):
        is_literal = found.group() == _LITERAL
        parts += [
            _require_closed(template[end : found.start()]),
            _OPENING if is_literal else Reference.parse(found.group(1)),
        ]
        end = found.end()
    parts.append(_require_closed(template[end:]))
    return tuple(part for part in parts if part)


def _require_closed(text: str) -> str:
    place = text.find(_OPENING)
    if place >= 0:
        raise TemplateError(
            f"{text[place : place + 20]!r} starts a name that has no end; write it as '{{{{name}}}}', or two literal "
            f"braces as {_LITERAL!r}"
        )
    return text


@dataclass(frozen=True, slots=True)
class KnownValues:
    """The values that exist when a node gets its task: the request, and the results of the nodes before it.

    `taken` are the nodes whose edge to it was taken. `skipped` and `failed` say why nodes have no output.
    """

    request: Any
    outputs: Mapping[str, NodeOutput] = field(default_factory=dict[str, "NodeOutput"])
    taken: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


class _MissingError(Exception):
    """A value does not exist. The message says why."""


Reader: TypeAlias = Callable[[KnownValues], str]
"""Returns a value as a text. Raises _MissingError."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a node reads. `what` names it in errors."""

    what: str
    read: Reader
    is_optional: bool = False


Pieces: TypeAlias = tuple[str | Value, ...]
"""The texts and values that a node reads, joined."""


def _request_reader(*path: str) -> Reader:
    return lambda known: render(_walk(known.request, path, "the request"))


_REQUEST: Final[Pieces] = (Value(repr(INPUT), _request_reader()),)


class _InputError(ValueError):
    """The input of a node is wrong. `problems` says why."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


# The inputs of all nodes, and the problems with them. Neither refers to the plan, so an entry goes away with its plan.
_INPUTS: Final[WeakKeyDictionary[Plan, tuple[Mapping[str, Pieces], Sequence[str]]]] = WeakKeyDictionary()


def input_problems(plan: Plan) -> list[str]:
    """Return all problems with the inputs of a plan's nodes."""
    return list(_inputs_of(plan)[1])


def _inputs_of(plan: Plan) -> tuple[Mapping[str, Pieces], Sequence[str]]:
    if plan not in _INPUTS:
        resolver = _Resolver(plan)
        inputs: dict[str, Pieces] = {}
        problems: list[str] = []
        for node in plan.definition.nodes:
            if node.id in plan.fallbacks:
                continue  # It gets the task of the node that it replaces.
            try:
                inputs[node.id] = _input_of(plan, node, resolver)
            except _InputError as error:
                problems += [f"node {node.id!r} {problem}" for problem in error.problems]
        _INPUTS[plan] = inputs, problems
    return _INPUTS[plan]


def _input_of(plan: Plan, node: Node, resolver: _Resolver) -> Pieces:
    given = [name for name in ("template", "input_key", "reads") if getattr(node, name) is not None]
    if len(given) > 1:
        raise _InputError(f"says what it reads in several ways: {', '.join(given)}; keep one")
    try:
        if node.template is not None:
            return _resolve(node, parse_template(node.template), resolver)
        if node.input_key is not None:
            return _resolve(node, (Reference.parse(node.input_key),), resolver)
    except TemplateError as error:
        raise _InputError(f"has a {given[0]} in which {error}") from None
    if node.reads == "upstream":
        return (Value("what nodes before it have put out", _upstream_text),)
    return _REQUEST if node.reads == "request" else _implied_input(plan, node)


def _resolve(node: Node, parts: Sequence[str | Reference], resolver: _Resolver) -> Pieces:
    pieces: list[str | Value] = []
    problems: list[str] = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        try:
            pieces.append(Value(repr(part.name), resolver.reader(node.id, part.name), part.is_optional))
        except _InputError as error:
            problems.append(f"reads {part.name!r}, and {error}")
    if problems:
        raise _InputError(*problems)
    return tuple(pieces)


def _implied_input(plan: Plan, node: Node) -> Pieces:
    before = list(dict.fromkeys(plan.incoming.sources(node.id)))
    loops = [edge.source for edge in plan.incoming[node.id] if plan.is_back(edge)]
    if loops:
        raise _InputError(
            f"has to say what it reads, as {quoted(loops)} leads back to it: give it an input_key, a template such as "
            f"'{{{{input}}}} {{{{{loops[0]}.key?}}}}', reads='request' or reads='upstream'"
        )
    if before in ([], [START]):
        return _REQUEST
    is_router = len(before) == 1 and before[0] in plan.nodes and main_key(plan.nodes[before[0]].output) is None
    if len(before) == 1 and not is_router:
        return (Value(f"what {before[0]!r} has put out", partial(_text_of, before[0])),)
    why = "it comes after a router, which may say nothing: " if is_router else "several lead to it: "
    raise _InputError(
        f"has to say what it reads, as {why}{quoted(before)}; give it an input_key, a template, reads='request' or "
        "reads='upstream'"
    )


class _Resolver:
    """Finds the values of names. What is the same for all nodes of a plan is computed once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._nodes = {node.id: node for node in plan.definition.nodes}
        self._keys = {id_: readable_keys(node, self._nodes) for id_, node in self._nodes.items()}
        # The writers of each key, in the order of declaration.
        self._writers: dict[str, list[str]] = {}
        for id_, keys in self._keys.items():
            for key in keys or ():
                self._writers.setdefault(key, []).append(id_)
        # The nodes whose keys are not known in advance.
        self._unknown = [id_ for id_, keys in self._keys.items() if keys is None]
        self._leading_to = cache(plan.leading_to)

    def reader(self, node_id: str, name: str) -> Reader:
        """Return the reader of a name in the input of a node. Raises _InputError."""
        parts = name.split(".")
        if parts[:2] == [START, INPUT]:
            return _request_reader(*parts[2:])
        if parts[0] == INPUT:
            self._require_unambiguous(node_id, name)
            return _request_reader(*parts[1:])
        # An id may contain dots; the longest match counts.
        starts = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
        writer = next((id_ for id_ in starts if id_ in self._nodes), None)
        if writer is not None:
            return self._in_node(node_id, writer, name.removeprefix(f"{writer}."))
        return self._in_any(node_id, name)

    def _require_unambiguous(self, node_id: str, name: str) -> None:
        writers = sorted(self._leading_to(node_id).intersection(self._writers.get(INPUT, ())) - {node_id})
        if writers:
            names = quoted(f"{writer}.{name}" for writer in writers)
            raise _InputError(
                f"{quoted(writers)} before it writes that, too; write {names} for what was made of the request, or "
                f"'{START}.{name}' for the request itself"
            )

    def _in_node(self, node_id: str, writer: str, name: str) -> Reader:
        if writer not in self._leading_to(node_id):
            raise _InputError(f"{writer!r} does not come before it; join them by an edge, or read something else")
        keys = self._keys[writer]
        key, *path = name.split(".")
        if keys is not None and name in keys:  # A key may contain dots.
            key, path = name, []
        elif keys is not None and key not in keys:
            raise _InputError(f"{writer!r} does not write that; it writes {quoted(sorted(keys))}")
        why = find_dead_end(self._nodes[writer], self._nodes, key, path)
        if why is not None:
            raise _InputError(why)
        return partial(_output_text, writer, key, path)

    def _in_any(self, node_id: str, name: str) -> Reader:
        before = self._leading_to(node_id) - {node_id}
        key, *path = name.split(".")
        candidates = dict.fromkeys((*self._writers.get(name, ()), *self._writers.get(key, ())))
        found = [writer for writer in candidates if writer in before]
        direct = set(self._plan.incoming.sources(node_id))
        if len(found) > 1:
            names = sorted(f"{writer}.{name}" for writer in found)
            found = [writer for writer in found if writer in direct]
            if len(found) != 1:
                raise _InputError(f"several nodes before it write that; write which one is meant: {quoted(names)}")
        if found:
            return self._in_node(node_id, found[0], name)
        possible = tuple(writer for writer in self._unknown if writer in before)
        if not possible:
            known = (f"{writer}.{key}" for writer in before for key in self._keys.get(writer) or ())
            raise _InputError(f"nobody before it writes that; there is {quoted(sorted([INPUT, *known]))}")
        return lambda known: _output_text(_find_writer(possible, direct, key, known), key, path, known)


def task_text(plan: Plan, node_id: str, known: KnownValues) -> str:
    """Return the text of a node's task. Raises MissingInputError if a value does not exist."""
    pieces = _inputs_of(plan)[0][node_id]
    return "".join(each if isinstance(each, str) else _read(node_id, each, known) for each in pieces)


def _read(node_id: str, value: Value, known: KnownValues) -> str:
    try:
        return value.read(known)
    except _MissingError as why:
        if value.is_optional:
            return ""
        raise MissingInputError(
            f"node {node_id!r} reads {value.what}, which is not there: {why}; let the node act only if it is, or read "
            "it in a template as '{{name?}}', which is empty then"
        ) from None


def _output_text(writer: str, key: str, path: Sequence[str], known: KnownValues) -> str:
    output = known.outputs.get(writer)
    if output is None or key not in output.outputs:
        raise _MissingError(_why_missing(writer, known))
    return render(_walk(output.outputs[key], path, f"{key!r} of {writer!r}"))


def _find_writer(writers: Sequence[str], direct: Collection[str], key: str, known: KnownValues) -> str:
    """Return the node that has written a key, of those whose keys were not known when the workflow was built."""
    if len(writers) == 1:
        return writers[0]
    found = [writer for writer in writers if writer in known.outputs and key in known.outputs[writer].outputs]
    if len(found) > 1:
        found = [writer for writer in found if writer in direct] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise _MissingError(f"{quoted(found)} have written it; write 'node.{key}' with the node that is meant")
    raise _MissingError(f"none of {quoted(writers)} has written it")


def _walk(value: Any, path: Sequence[str], what: str) -> Any:
    for key in path:
        found = look_inside(value, key)
        if found is MISSING:
            raise _MissingError(f"{what} has no {key!r}")
        value, what = found, f"{key!r} of {what}"
    return value


def _why_missing(writer: str, known: KnownValues) -> str:
    if writer in known.skipped:
        return f"{writer!r} was skipped: {known.skipped[writer]}"
    if writer in known.failed:
        return f"{writer!r} has failed: {known.failed[writer]}"
    output = known.outputs.get(writer)
    if output is None:
        return f"{writer!r} has not acted yet"
    return f"{writer!r} has put out only {quoted(output.outputs)}"


def _text_of(writer: str, known: KnownValues) -> str:
    if writer == START:
        return render(known.request)
    output = known.outputs.get(writer)
    if output is None or writer in known.skipped or writer in known.failed:
        raise _MissingError(_why_missing(writer, known))
    return output.text


def _upstream_text(known: KnownValues) -> str:
    """Join the outputs of the nodes before, each under its id if there are several."""
    found: dict[str, str] = {}
    missing: list[str] = []
    for writer in known.taken:
        try:
            found[INPUT if writer == START else writer] = _text_of(writer, known)
        except _MissingError as why:
            missing.append(str(why))
    texts = {name: text for name, text in found.items() if text}
    if not texts:
        silent = [f"{name!r} has said nothing" for name in found]
        raise _MissingError("; ".join([*missing, *silent]) or "no edge to it was taken")
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in texts.items())


def render(value: object) -> str:
    """Return a value as an agent reads it: a text as it is, everything else as JSON."""
    match value:
        case str():
            return value
        case Message():
            return value.text
        case list() if any(isinstance(each, Message) for each in cast("list[object]", value)):
            return "\n".join(render(each) for each in cast("list[object]", value))
        case _:
            return json_text(value, is_strict=False)
