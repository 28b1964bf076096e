"""What of a graph is written into its checkpoints, so that a changed graph can be told from the one that wrote them."""

from __future__ import annotations

import hashlib
import json.encoder
from typing import TYPE_CHECKING, Any

from perdure.graph.edges import FanOutEdgeGroup
from perdure.graph.executor import wiring
from perdure.stored_names import pinned_name
from perdure.typenames import describe_stored, module_name, stored_short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perdure.graph.definition import Graph
    from perdure.graph.edges import Edge, EdgeGroup
    from perdure.graph.executor import Executor

# The order of groups is that of their JSON texts. json.dumps takes six times as long for these, and wide graphs have a
# group for every executor.
_quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii


def graph_signature(graph: Graph) -> dict[str, Any]:
    """The documented signature: the start, the executors' classes, the edges. A script and its import are the same."""
    return {
        "start_executor": graph.start_id,
        "executors": {executor_id: _executor(executor) for executor_id, executor in graph.executors.items()},
        "edge_groups": sorted((_group(group) for group in graph.groups), key=_sort_key),
    }


def graph_document(graph: Graph) -> dict[str, Any]:
    """What a checkpoint says of the graph that wrote it."""
    return {
        "signature": graph_signature(graph),
        "interfaces": interfaces(graph),
        "version": graph.rules.version,
        "children": {executor_id: graph_document(child) for executor_id, child in graph.children.items()},
    }


def signature_hash(signature: dict[str, Any]) -> str:
    """The signature as one hash."""
    text = json.dumps(signature, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def interfaces(graph: Graph) -> dict[str, Any]:
    """What each executor takes, sends, and asks: the part of the graph that a change of types shows in."""
    return {executor_id: _interface(executor) for executor_id, executor in graph.executors.items()}


def _interface(executor: Executor) -> dict[str, Any]:
    answers = wiring(executor).dispatch.answers
    return {
        "takes": sorted(map(describe_stored, executor.input_types)),
        "sends": sorted(map(describe_stored, executor.output_types)),
        "answers": sorted([list(map(describe_stored, route.types.takes)) for route in answers]) if answers else [],
    }


def class_name(executor: Executor) -> str:
    """`module.Class`, where a script run as `__main__` has the name under which it would be imported."""
    cls = executor.__class__
    pinned = pinned_name(cls)
    module = module_name(cls.__module__) if pinned is None else pinned.partition(":")[0]
    return f"{module}.{stored_short_name(cls)}"


def _executor(executor: Executor) -> Any:
    child = executor.child_graph()
    if child is None:
        return class_name(executor)
    return {"type": class_name(executor), "sub_workflow": graph_signature(child)}


def _group(group: EdgeGroup) -> dict[str, Any]:
    told: dict[str, Any] = {
        "group_type": group.type,
        "sources": sorted({edge.source_id for edge in group.edges}),
        "targets": sorted({edge.target_id for edge in group.edges}),
        "edges": [
            {"source": edge.source_id, "target": edge.target_id, "condition": edge.condition_name}
            for edge in sorted(group.edges, key=_edge_order)
        ],
    }
    if isinstance(group, FanOutEdgeGroup):
        told["selection_func"] = group.selection_func_name
    return told


def _edge_order(edge: Edge) -> tuple[str, str, str]:
    return edge.source_id, edge.target_id, edge.condition_name or ""


def _sort_key(group: dict[str, Any]) -> tuple[str, ...]:
    return (
        group["group_type"],
        _array(map(_quoted, group["sources"])),
        _array(map(_quoted, group["targets"])),
        _array(map(_edge_text, group["edges"])),
        _quoted_or_null(group.get("selection_func")),
    )


def _edge_text(edge: dict[str, Any]) -> str:
    condition, source, target = _quoted_or_null(edge["condition"]), _quoted(edge["source"]), _quoted(edge["target"])
    return f'{{"condition": {condition}, "source": {source}, "target": {target}}}'


def _array(texts: Iterable[str]) -> str:
    return f"[{', '.join(texts)}]"


def _quoted_or_null(name: str | None) -> str:
    return "null" if name is None else _quoted(name)
