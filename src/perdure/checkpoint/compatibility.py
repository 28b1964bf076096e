"""Compare a changed graph with an older checkpoint: what changed, and which stored things it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.errors import IncompatibleTypeError, UntrustedTypeError
from perdure.graph import private_owner, wiring
from perdure.kernel import Delivery
from perdure.typenames import describe, type_of
from perdure.types import is_instance_of, is_type_compatible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from perdure.codec import Values
    from perdure.graph import Executor, Graph, Route
    from perdure.kernel import Delayed, Request, Snapshot


@dataclass(frozen=True, slots=True)
class Affected:
    """Something stored that the present graph can't use."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """The differences between a graph and the one that wrote a checkpoint, and what they break."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    retyped: tuple[str, ...] = ()
    edges_added: tuple[str, ...] = ()
    edges_removed: tuple[str, ...] = ()
    affected: tuple[Affected, ...] = ()

    @property
    def is_compatible(self) -> bool:
        """True if the present graph can use everything stored."""
        return not self.affected

    def __str__(self) -> str:
        lines = [
            f"  {label}: {', '.join(names)}"
            for label, names in (
                ("added executors", self.added),
                ("removed executors", self.removed),
                ("renamed executors", tuple(f"{old} to {new}" for old, new in self.renamed.items())),
                ("changed types", self.retyped),
                ("added edges", self.edges_added),
                ("removed edges", self.edges_removed),
            )
            if names
        ]
        lines.extend(f"  affected: {item.what}: {item.why}" for item in self.affected)
        return "\n".join(lines) or "  no difference"


def compare(
    stored: Mapping[str, Any],
    graph: Graph,
    snapshot: Snapshot,
    values: Values,
    *,
    accepts: Callable[[Executor, Any], bool],
    renamed: Mapping[str, str] | None = None,
) -> CompatibilityReport:
    """Compare the graph that wrote a checkpoint with the present one. `snapshot` is migrated already."""
    names = dict(renamed or {})
    then: dict[str, Any] = stored.get("signature", {})
    then_executors: dict[str, Any] = then.get("executors", {})
    now = graph.signature
    old_ids: set[str] = {names.get(executor_id, executor_id) for executor_id in then_executors}
    new_ids: set[str] = set(now["executors"])
    old_edges, new_edges = _edges(then, names), _edges(now, {})
    return CompatibilityReport(
        added=tuple(sorted(new_ids - old_ids)) if then else (),
        removed=tuple(sorted(old_ids - new_ids)),
        renamed=names,
        retyped=tuple(_retyped(stored.get("interfaces", {}), graph.document["interfaces"], names)),
        edges_added=tuple(sorted(new_edges - old_edges)) if then else (),
        edges_removed=tuple(sorted(old_edges - new_edges)),
        affected=tuple(_affected(graph, snapshot, values, accepts, "")),
    )


def _edges(signature: Mapping[str, Any], names: Mapping[str, str]) -> set[str]:
    return {
        f"{names.get(edge['source'], edge['source'])}->{names.get(edge['target'], edge['target'])}"
        for group in signature.get("edge_groups", ())
        if group["group_type"] != "InternalEdgeGroup"
        for edge in group["edges"]
    }


def _retyped(then: Mapping[str, Any], now: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    for old_id, old in then.items():
        executor_id = names.get(old_id, old_id)
        new = now.get(executor_id)
        if new is None:
            continue
        for aspect in ("takes", "sends", "answers"):
            if old.get(aspect) != new[aspect]:
                yield f"{executor_id} {aspect} {_listed(new[aspect])}, before {_listed(old.get(aspect))}"


def _listed(types: Any) -> str:
    return "[" + ", ".join(map(str, types or ())) + "]"


def _affected(
    graph: Graph, snapshot: Snapshot, values: Values, accepts: Callable[[Executor, Any], bool], path: str
) -> Iterator[Affected]:
    yield from _affected_here(graph, snapshot, values, accepts, path)
    for executor_id, child in snapshot.children.items():
        inner = graph.children.get(executor_id)
        if inner is not None:
            yield from _affected(inner, child, values, accepts, f"{path}{executor_id}/")
        elif child.executors or child.requests or child.state or child.suspended or child.delayed or child.fan_in:
            yield Affected(f"the sub-workflow '{path}{executor_id}'", "it is gone")


def _affected_here(
    graph: Graph, snapshot: Snapshot, values: Values, accepts: Callable[[Executor, Any], bool], path: str
) -> Iterator[Affected]:
    yield from _affected_states(graph, snapshot, path)
    waiting = [("a message for executor", each) for each in snapshot.deliveries]
    waiting += [("a suspended activation of executor", each.delivery) for each in snapshot.suspended]
    for what, delivery in waiting:
        why = _delivery_fault(graph, delivery, values, accepts)
        if why is not None:
            yield Affected(f"{what} '{path}{delivery.target_id}'", why)
    for request in snapshot.requests.values():
        why = _request_fault(graph, request, values)
        if why is not None:
            yield Affected(f"request {request.id!r} of executor '{path}{request.executor_id}'", why)
    for delayed in snapshot.delayed:
        why = _delayed_fault(graph, delayed, values, accepts)
        if why is not None:
            yield Affected(f"a delayed message of executor '{path}{delayed.source_id}'", why)
    for group_id, buffer in snapshot.fan_in.items():
        group = graph.fan_ins.get(group_id)
        if group is None or not buffer.keys() <= set(group.source_executor_ids):
            sources = ", ".join(buffer)
            yield Affected(
                f"messages of {sources} that a fan-in has gathered", "the fan-in is gone or has other sources"
            )


def _affected_states(graph: Graph, snapshot: Snapshot, path: str) -> Iterator[Affected]:
    private = dict.fromkeys(private_owner(scope) for scope, _ in snapshot.state)
    owned = [("state", executor_id) for executor_id in snapshot.executors]
    owned.extend(("private state", executor_id) for executor_id in private if executor_id is not None)
    for what, executor_id in owned:
        if executor_id not in graph.executors:
            yield Affected(f"the {what} of executor '{path}{executor_id}'", "the executor is gone")


def _delivery_fault(
    graph: Graph, delivery: Delivery, values: Values, accepts: Callable[[Executor, Any], bool]
) -> str | None:
    executor = graph.executors.get(delivery.target_id)
    if executor is None:
        return "the executor is gone"
    if delivery.woken_at is not None:
        return None if executor.child_graph() is not None else "it is no sub-workflow any more"
    if delivery.answers is not None:
        return _request_fault(graph, delivery.answers, values)
    try:
        given = [values.give(value) for value in delivery.values]
    except (UntrustedTypeError, IncompatibleTypeError) as error:
        return str(error)
    message = given if delivery.is_gathered else given[0]
    if accepts(executor, message):
        return None
    return f"it has no handler for a {type_of(message)}"


def _delayed_fault(
    graph: Graph, delayed: Delayed, values: Values, accepts: Callable[[Executor, Any], bool]
) -> str | None:
    for target_id in delayed.targets:
        fault = _delivery_fault(graph, Delivery(target_id, (), (delayed.data,), delayed.send), values, accepts)
        if fault is not None:
            return f"executor {target_id!r}: {fault}"
    for group_id in delayed.fan_ins:
        group = graph.fan_ins.get(group_id)
        if group is None or delayed.source_id not in group.source_executor_ids:
            return "the fan-in that it goes to is gone or has other sources"
    return None


def _request_fault(graph: Graph, request: Request, values: Values) -> str | None:
    executor = graph.executors.get(request.executor_id)
    if executor is None:
        return "the executor is gone"
    try:
        data = values.give(request.data)
    except (UntrustedTypeError, IncompatibleTypeError) as error:
        return str(error)
    if request.resumes is not None:
        return None  # the handler that asked continues with the answer
    if executor.child_graph() is not None or any(_may_take(route, data, request) for route in _answers(executor)):
        return None
    return f"it has no response handler for a {describe(request.response_type)} to a {type_of(data)}"


def _answers(executor: Executor) -> tuple[Route, ...]:
    return wiring(executor).dispatch.answers


def _may_take(route: Route, data: object, request: Request) -> bool:
    """Return True if a response handler could take an answer to this request. Its types may be wider or narrower."""
    asked, answered = route.types.takes
    return is_instance_of(data, asked) and (
        is_type_compatible(request.response_type, answered) or is_type_compatible(answered, request.response_type)
    )
