"""Definitions as JSON and back.

JSON holds no agents, classes and functions. What is left out is named and marked, and whoever reads the JSON gives it
anew. Nothing is imported by a name that stands in the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, get_args

from perdure.agent_workflows.config_entries import Problems, entry_of
from perdure.agent_workflows.config_given import Given
from perdure.agent_workflows.config_nodes import read_node
from perdure.agent_workflows.config_when import read_edge_when
from perdure.agent_workflows.config_writing import Writing
from perdure.agent_workflows.definition import (
    END,
    START,
    Conversation,
    ConversationKind,
    Definition,
    Edge,
    Iterations,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure import SupportsAgentRun
    from perdure.agent_workflows.agents import AgentConfig
    from perdure.agent_workflows.conditions import Condition
    from perdure.agent_workflows.config_entries import Entry
    from perdure.agent_workflows.definition import Node
    from perdure.agent_workflows.workflow import AgentWorkflow

_NONE: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Exported:
    """A definition as JSON, and what could not be exported: where it stands, what it is, and what to do about it."""

    config: dict[str, Any]
    left_out: tuple[str, ...]


def to_config(definition: Definition) -> Exported:
    """A definition as JSON. What is as usual is not written.

    Raises AgentWorkflowBuildError if an output has no JSON schema.
    """
    writing = Writing(definition)
    return Exported(writing.written(), tuple(writing.left_out))


def definition_of(
    config: Mapping[str, Any],
    *,
    agents: Mapping[str, SupportsAgentRun | AgentConfig | AgentWorkflow] = _NONE,
    types: Mapping[str, type[Any]] = _NONE,
    predicates: Mapping[str, Callable[..., Any] | Condition] = _NONE,
) -> Definition:
    """The definition that JSON holds, with what was left out given anew.

    `agents` are by node. `types` are classes for JSON schemas and of errors, by path (`agents.draft.output.schema`) or
    by name. `predicates` are functions of edges, approvals and retries, by path (`edges[0].when`) or by name.

    Raises AgentWorkflowBuildError with all that is wrong, each with its path.
    """
    problems = Problems()
    given = Given(agents, types, predicates, problems)
    entry = entry_of(config, "", problems)
    definition = None if entry is None else _definition(entry, given)
    given.note_unused()
    if entry is not None and definition is not None and problems.found:
        _note_unknown_nodes(entry, definition, problems)
    problems.require_none()
    assert definition is not None, "it is read, or a problem is noted"
    return definition


def _definition(entry: Entry, given: Given) -> Definition:
    entry.only("$schema", "name", "description", "version", "agents", "edges", "settings")
    entry.text("$schema")
    settings = entry.entry("settings")
    if settings is not None:
        settings.only("timeout", "iterations", "conversation")
    return Definition(
        name=entry.name("name"),
        description=entry.text("description"),
        version=entry.text("version"),
        nodes=_nodes(entry, given),
        edges=tuple(edge for path, each in entry.elements("edges") for edge in _edges(path, each, given)),
        timeout=None if settings is None else settings.duration("timeout"),
        iterations=_iterations(None if settings is None else settings.entry("iterations")),
        conversation=_conversation(None if settings is None else settings.entry("conversation")),
    )


def _nodes(entry: Entry, given: Given) -> tuple[Node, ...]:
    agents = entry.entry("agents") if entry.need("agents") else None
    if agents is not None and not agents.values:
        entry.wrong("agents", "one node at least")
    found: list[Node] = []
    for node_id in agents.values if agents is not None else ():
        assert agents is not None, "it has nodes"
        node = agents.entry(node_id)
        if not node_id:
            given.problems.note("agents", "a node has no id; give it one")
        elif node is not None:
            found.append(read_node(node_id, node, given))
    return tuple(found)


def _edges(path: str, value: Any, given: Given) -> list[Edge]:
    """From each of the sources to each of the targets."""
    entry = entry_of(value, path, given.problems)
    if entry is None:
        return []
    entry.only("from", "to", "when", "default")
    entry.need("from", "to")
    for key in ("from", "to"):
        if entry[key] == []:
            entry.wrong(key, "at least one node")
    condition, predicate = read_edge_when(entry, given)
    is_default = entry.flag("default") or False
    if is_default and "when" in entry:
        given.problems.note(path, "it has `when` and is the default; a default edge is taken if no other one was")
    sources, targets = entry.name_or_names("from"), entry.name_or_names("to")
    return [Edge(source, target, condition, predicate, is_default) for source in sources for target in targets]


def _note_unknown_nodes(entry: Entry, definition: Definition, problems: Problems) -> None:
    """Note edges to nodes that there are not: it won't be built, where this would be said."""
    agents: object = entry["agents"]
    known = {START, END, *(cast("Mapping[str, Any]", agents) if isinstance(agents, dict) else ())}
    unknown = {end: None for edge in definition.edges for end in (edge.source, edge.target) if end not in known}
    for node_id in unknown:
        problems.note("edges", f"there is no node {node_id!r}")


def _iterations(entry: Entry | None) -> Iterations:
    if entry is None:
        return Iterations()
    entry.only("limit", "then", "converges", "ignored_keys", "change_aware")
    usual, converges = Iterations(), entry.flag("converges")
    return Iterations(
        limit=entry.whole("limit") or usual.limit,
        then=entry.choice("then", ("fail", "leave")) or usual.then,
        converges=usual.converges if converges is None else converges,
        ignored_keys=frozenset(entry.names("ignored_keys")),
        change_aware=entry.flag("change_aware") or usual.change_aware,
    )


def _conversation(entry: Entry | None) -> Conversation:
    if entry is None:
        return Conversation()
    entry.only("kind", "session_id", "thread_id", "thread_prefix")
    return Conversation(
        kind=entry.choice("kind", get_args(ConversationKind)) or "none",
        session_id=entry.name("session_id"),
        thread_id=entry.name("thread_id"),
        thread_prefix=entry.text("thread_prefix"),
    )
