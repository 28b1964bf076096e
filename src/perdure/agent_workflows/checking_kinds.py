"""Values of the wrong kind in a definition: each is told, and left out, so that the rest can be looked at as well.

Users' code is not always checked by its types, and what is wrong with a number as a text must not hide what else is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from perdure import Retry
from perdure.agent_workflows.checking_words import Kinds, told
from perdure.agent_workflows.conditions import Condition
from perdure.agent_workflows.definition import (
    Approval,
    Conversation,
    ConversationKind,
    Handoffs,
    Iterations,
    OnError,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)

if TYPE_CHECKING:
    from perdure.agent_workflows.definition import Definition, Edge, Node, Output

ValueT = TypeVar("ValueT")


def sound(definition: Definition) -> tuple[Definition, list[str]]:
    """The definition without what is of the wrong kind, and what that was."""
    kinds = Kinds()
    found = replace(
        definition,
        name=kinds.text("the name of the workflow", definition.name, is_empty_fine=False),
        description=kinds.text("the description of the workflow", definition.description),
        version=kinds.text("the version of the workflow", definition.version),
        nodes=tuple(_node(kinds, node) for node in definition.nodes),
        edges=tuple(_edge(kinds, edge) for edge in definition.edges),
        iterations=_iterations(kinds, definition.iterations),
        timeout=kinds.duration("the timeout of the workflow", definition.timeout),
        conversation=_conversation(kinds, definition.conversation),
    )
    return found, kinds.problems


def _iterations(kinds: Kinds, given: object) -> Iterations:
    if not isinstance(given, Iterations):
        return kinds.wrong("what is said of loops", given, "an Iterations", Iterations())
    usual, limit = Iterations(), cast("object", given.limit)
    is_whole = isinstance(limit, int) and not isinstance(limit, bool)
    keys = cast("object", given.ignored_keys)
    are_texts = isinstance(keys, frozenset) and {str} >= set(map(type, cast("frozenset[object]", keys)))
    return Iterations(
        limit=given.limit if is_whole else kinds.wrong("the limit of loops", limit, "a whole number", usual.limit),
        then=kinds.choice("what happens at the limit of loops", given.then, ("fail", "leave"), usual.then),
        converges=kinds.flag("converges", given.converges, usual.converges),
        ignored_keys=given.ignored_keys
        if are_texts
        else kinds.wrong("ignored_keys", cast("object", keys), "a list of keys", usual.ignored_keys),
        change_aware=kinds.flag("change_aware", given.change_aware, usual.change_aware),
    )


def _conversation(kinds: Kinds, given: object) -> Conversation:
    if not isinstance(given, Conversation):
        wanted = "one of ConversationPolicies, called, as ConversationPolicies.shared_thread()"
        return kinds.wrong("the conversation policy", given, wanted, Conversation())
    about = "of the conversation policy"
    return Conversation(
        kind=kinds.choice(f"the kind {about}", given.kind, get_args(ConversationKind), "none"),
        session_id=kinds.text(f"the session_id {about}", given.session_id, is_empty_fine=False),
        thread_id=kinds.text(f"the thread {about}", given.thread_id, is_empty_fine=False),
        thread_prefix=kinds.text(f"the thread_prefix {about}", given.thread_prefix),
    )


def _node(kinds: Kinds, node: Node) -> Node:
    id_: Any = node.id
    if not isinstance(id_, str):
        kinds.problems.append(f"the id of a node is a text, not {told(id_)}")
    about = f"node {node.id!r}:"
    seconds = kinds.seconds(f"{about} its timeout", node.timeout)
    return replace(
        node,
        id=str(id_),
        output=_output(kinds, about, node.output),
        input_key=kinds.text(f"{about} input_key", node.input_key),
        template=kinds.text(f"{about} template", node.template),
        reads=kinds.choice(f"{about} reads", node.reads, (None, "request", "upstream"), None),
        instructions=kinds.text(f"{about} instructions", node.instructions),
        retry=kinds.instance(f"{about} retry", node.retry, Retry, "a Retry or a number of attempts"),
        timeout=seconds,
        on_error=_on_error(kinds, about, node.on_error),
        approval=_approval(kinds, about, node.approval),
    )


def _output(kinds: Kinds, about: str, given: object) -> Output:
    match given:
        case TextOutput(key):
            return TextOutput(kinds.text(f"{about} output_key", key, is_empty_fine=False) or TextOutput().key)
        case Handoffs():
            return _handoffs(kinds, about, given)
        case UnionOutput(types) if isinstance(cast("object", types), tuple):
            return given
        case UnionOutput(types):
            wanted = "a list of pydantic models and JSON schemas"
            return kinds.wrong(f"{about} union_output", cast("object", types), wanted, TextOutput())
        case StructuredOutput():
            return given
        case _:
            return kinds.wrong(f"{about} its output", given, "a TextOutput, StructuredOutput, ...", TextOutput())


def _handoffs(kinds: Kinds, about: str, given: Handoffs) -> Handoffs:
    targets: Any = given.targets
    default = kinds.text(f"{about} its default handoff", given.default)
    wanted = "a dict, by node when to choose it"
    if not isinstance(targets, Mapping):
        return Handoffs(kinds.wrong(f"{about} handoffs", targets, wanted, {}), default)
    pairs = cast("Mapping[object, object]", targets)
    kept = {key: text for key, text in pairs.items() if isinstance(key, str) and isinstance(text, str)}
    for key, text in pairs.items():
        if key not in kept:
            wrong = text if isinstance(key, str) else key
            kinds.problems.append(f"{about} handoffs have a text for each node, and {told(wrong)} is none")
    return Handoffs(kept, default)


def _on_error(kinds: Kinds, about: str, given: object) -> OnError:
    if not isinstance(given, OnError):
        return kinds.wrong(f"{about} on_error", given, "an OnError", OnError())
    if not isinstance(cast("object", given.mode), str):
        return kinds.wrong(f"{about} the mode of on_error", given.mode, "a text", OnError())
    return replace(given, fallback=kinds.text(f"{about} its fallback", given.fallback))


def _approval(kinds: Kinds, about: str, given: object) -> Approval | None:
    if given is None:
        return None
    if not isinstance(given, Approval):
        return kinds.wrong(f"{about} approval", given, "True, what to ask or an Approval", None)
    when: Any = given.when
    if when is not None and not isinstance(when, Condition) and not callable(when):
        when = kinds.wrong(f"{about} when of its approval", when, "a condition or a function of the outputs", None)
    return Approval(
        message=kinds.text(f"{about} the message of its approval", given.message),
        when=cast("Any", when),
        timeout=kinds.duration(f"{about} the timeout of its approval", given.timeout),
    )


def _edge(kinds: Kinds, edge: Edge) -> Edge:
    way = f"edge {edge.source!r} -> {edge.target!r}:"
    for end in (edge.source, edge.target):
        if not isinstance(cast("object", end), str):
            kinds.problems.append(f"{way} the id of a node is a text, not {told(end)}")
    condition: Any = edge.condition
    if condition is not None and not isinstance(condition, Condition):
        condition = kinds.wrong(f"{way} its condition", condition, "a Condition", None)
    predicate: Any = edge.predicate
    if predicate is not None and not callable(predicate):
        predicate = kinds.wrong(f"{way} its predicate", predicate, "a function of an EdgeContext", None)
    is_default = kinds.flag(f"{way} is_default", edge.is_default, usual=False)
    return replace(
        edge,
        source=str(edge.source),
        target=str(edge.target),
        condition=condition,
        predicate=predicate,
        is_default=is_default,
    )
