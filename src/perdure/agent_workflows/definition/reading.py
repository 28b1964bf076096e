"""Reading definitions from JSON, with live objects given again for what JSON cannot hold.

Nothing is imported by a name in JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from perdure import SupportsAgentRun
from perdure.agent_workflows.definition.document import Document, is_function_mark, is_live, kind_of_edge_when
from perdure.agent_workflows.definition.problems import describe, path_of, problems_in
from perdure.agent_workflows.definition.values import END, START, AgentConfig
from perdure.agent_workflows.errors import AgentWorkflowBuildError

if TYPE_CHECKING:
    from perdure.agent_workflows.definition.conditions import Condition
    from perdure.agent_workflows.definition.problems import Place
    from perdure.agent_workflows.definition.values import Definition


@dataclass(slots=True)
class Given:
    """The live objects that a reader gives for a document, and which of them were used."""

    agents: Mapping[str, Any]
    types: Mapping[str, Any]
    functions: Mapping[str, Any]
    problems: list[str] = field(default_factory=list[str])
    _used: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def fill(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document with live objects in place of what JSON cannot hold."""
        filled = dict(config)
        if isinstance(agents := config.get("agents"), Mapping):
            nodes = cast("Mapping[str, Any]", agents)
            filled["agents"] = {node_id: self._node(node_id, node) for node_id, node in nodes.items()}
        if isinstance(edges := config.get("edges"), list):
            filled["edges"] = [
                self._entry(edge, when=lambda value, place=place: self._edge_when(f"edges[{place}].when", value))
                for place, edge in enumerate(cast("list[Any]", edges))
            ]
        return filled

    def unused(self) -> Iterator[str]:
        """Name what nothing in the document asked for: a typing error in a path would go unnoticed otherwise."""
        kinds = (("agents", self.agents), ("types", self.types), ("predicates", self.functions))
        for kind, given in kinds:
            for key in given:
                if (kind, key) not in self._used:
                    yield f"{kind}[{key!r}] was given, but nothing in the definition asks for it; check its spelling"

    @staticmethod
    def _entry(value: Any, **changes: Callable[[Any], Any]) -> Any:
        """Return a JSON object with some of its values changed; anything else as it is."""
        if not isinstance(value, Mapping):
            return value
        entry = cast("Mapping[str, Any]", value)
        return {key: changes[key](each) if key in changes else each for key, each in entry.items()}

    def _node(self, node_id: str, node: Any) -> Any:
        path = f"agents.{node_id}"
        filled = self._entry(
            node,
            output=lambda value: self._entry(
                value,
                schema=lambda schema: self._type(f"{path}.output.schema", schema),
                types=lambda types: self._types(f"{path}.output.types", types),
            ),
            retry=lambda value: self._entry(
                value,
                backoff=lambda each: self._function(f"{path}.retry.backoff", each),
                on=lambda each: (
                    self._types(f"{path}.retry.on", each)
                    if isinstance(each, list)
                    else self._function(f"{path}.retry.on", each)
                ),
            ),
            approval=lambda value: self._entry(value, when=lambda each: self._function(f"{path}.approval.when", each)),
        )
        agent = self._found("agents", self.agents, (node_id,))
        if agent is not None and isinstance(node, Mapping):
            if isinstance(agent, AgentConfig | SupportsAgentRun):
                return {**filled, "agent": agent}
            self.problems.append(f"agents[{node_id!r}]: it is {describe(agent)}; give an agent")
        return filled

    def _types(self, path: str, values: Any) -> Any:
        if not isinstance(values, list):
            return values
        return [self._type(f"{path}[{place}]", each) for place, each in enumerate(cast("list[Any]", values))]

    def _type(self, path: str, value: Any) -> Any:
        name = _name_in(value)
        found = self._found("types", self.types, (path, name))
        if found is None or isinstance(found, type):
            return value if found is None else found
        self.problems.append(f"{path}: types= has {describe(found)} for it; give a class")
        return value

    def _edge_when(self, path: str, value: Any) -> Any:
        if kind_of_edge_when(value) != "mixed":
            return self._function(path, value)
        return self._entry(
            value,
            conditions=lambda parts: [
                self._function(f"{path}.conditions[{place}]", part) for place, part in enumerate(parts)
            ],
        )

    def _function(self, path: str, value: Any) -> Any:
        if not is_function_mark(value):
            return value
        found = self._found("predicates", self.functions, (path, value.get("name")))
        if found is None or is_live(found):
            return value if found is None else found
        self.problems.append(f"{path}: predicates= has {describe(found)} for it; give a function")
        return value

    def _found(self, kind: str, given: Mapping[str, Any], keys: tuple[object, ...]) -> Any:
        for key in keys:
            if isinstance(key, str) and key in given:
                self._used.add((kind, key))
                return given[key]
        return None


def _name_in(value: object) -> object:
    """Return the name of an error, or the title of a schema."""
    if not isinstance(value, Mapping):
        return value
    entry = cast("Mapping[str, Any]", value)
    return entry.get("name" if entry.get("type") == "class" else "title")


_NONE: Final[dict[str, Any]] = {}


def definition_of(
    config: Any,
    *,
    agents: Mapping[str, SupportsAgentRun | AgentConfig] = _NONE,
    types: Mapping[str, type[Any]] = _NONE,
    predicates: Mapping[str, Callable[..., Any] | Condition] = _NONE,
) -> Definition:
    """Read a definition from JSON, with what JSON cannot hold given again.

    `agents` are by node. `types` replace JSON schemas and name errors, by path (`agents.draft.output.schema`) or name.
    `predicates` are functions of edges, approvals and retries, by path (`edges[0].when`) or name.

    Raises AgentWorkflowBuildError with all problems, each with its path.
    """
    if not isinstance(config, Mapping):
        raise AgentWorkflowBuildError(f"a definition is a JSON object, not {describe(config)}")
    given = Given(agents, types, predicates)
    filled = given.fill(cast("Mapping[str, Any]", config))
    problems: list[str] = []
    document: Document | None = None
    try:
        document = Document.model_validate(filled)
    except ValidationError as error:
        found = problems_in(error, filled)
        problems = [_name_key(text, place) for place, text in found.items()]
    problems += [*given.problems, *given.unused()]
    if document is None or problems:
        raise AgentWorkflowBuildError([*problems, *_unknown_nodes(cast("Mapping[str, Any]", config))])
    return document.definition()


def _name_key(text: str, place: Place) -> str:
    """Put the key into a text under which a live object can be given."""
    text = text.replace("<path>", repr(path_of(place)))
    return text.replace("<node>", repr(place[1])) if "<node>" in text else text


def _unknown_nodes(config: Mapping[str, Any]) -> list[str]:
    """Name targets of edges that do not exist. A document that can be read has this checked by `build()`."""
    agents, edges = config.get("agents"), config.get("edges")
    known = {START, END, *(cast("Mapping[str, Any]", agents) if isinstance(agents, Mapping) else ())}
    ends: dict[str, None] = {}
    for edge in cast("list[Any]", edges) if isinstance(edges, list) else ():
        for key in ("from", "to"):
            value: object = cast("Mapping[str, Any]", edge).get(key) if isinstance(edge, Mapping) else None
            names: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
            ends.update((name, None) for name in names if isinstance(name, str) and name and name not in known)
    return [f"edges: there is no node {name!r}" for name in ends]


_BOM: Final = "\N{ZERO WIDTH NO-BREAK SPACE}"
_SHOWN_MAX: Final = 100
_EITHER: Final = "give the path of a file, or JSON itself, which starts with a brace"


def read_text(source: str | os.PathLike[str]) -> Any:
    """Parse the JSON of a file, or of a text that starts with a brace. Raises AgentWorkflowBuildError or TypeError."""
    if not isinstance(source, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"from_json reads a file or a text, not a {type(source).__name__}; from_config takes a dict")
    is_text = isinstance(source, str) and source.lstrip(f"{_BOM} \t\r\n").startswith(("{", "["))
    text = source if is_text and isinstance(source, str) else _read_file(source)
    repeated: list[str] = []
    try:
        found = json.loads(text.removeprefix(_BOM), object_pairs_hook=lambda pairs: _object(pairs, repeated))
    except (ValueError, RecursionError) as error:
        raise AgentWorkflowBuildError(f"this is not JSON: {error}") from error
    if repeated:
        raise AgentWorkflowBuildError(repeated)
    return found


def _object(pairs: list[tuple[str, Any]], repeated: list[str]) -> dict[str, Any]:
    """Make a dict, and note repeated keys: JSON would silently take the last of them."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            repeated.append(f"the key {key!r} appears twice in one object; rename or remove one")
        found[key] = value
    return found


def _read_file(source: str | os.PathLike[str]) -> str:
    name = str(source)
    shown = repr(name if len(name) <= _SHOWN_MAX else f"{name[: _SHOWN_MAX - 1]}…")
    try:
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AgentWorkflowBuildError(f"the file {shown} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise AgentWorkflowBuildError(f"the file {shown} can't be read: {error.strerror}; {_EITHER}") from error
    except ValueError as error:  # A path has no zero bytes.
        raise AgentWorkflowBuildError(f"{shown} is not a path: {error}; {_EITHER}") from error
