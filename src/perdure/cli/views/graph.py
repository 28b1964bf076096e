"""The graph of a run as stored, with the run's position in it: as data, and as a Mermaid or DOT picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Never, TypeAlias, cast

from perdure.cli.views.text import moment
from perdure.graph import Edge, EdgeGroup, Executor, FanInEdgeGroup, Graph, InternalEdgeGroup, WorkflowContext, handler
from perdure.viz import draw

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.inspector.views import Row
    from perdure.storage import RunInfo, SnapshotView, StoreStorage

Position: TypeAlias = Literal["failed", "waiting", "sleeping", "next"]

_COLORS: Mapping[str, str] = {"failed": "#f4a6a6", "waiting": "#f7e29c", "sleeping": "#b9d7ea", "next": "#b7e1b0"}


async def graph_view(storage: StoreStorage, run: RunInfo, checkpoint_id: str) -> Row:
    """Describe the stored graph, with the position of the run at a checkpoint.

    `position` of an executor is `failed`, `waiting` for an answer, `sleeping`, `next` (a message waits for it) or None,
    and `because` says why. `path` holds the enclosing executors inside sub-workflows.
    """
    view = await storage.view(checkpoint_id)
    is_head = checkpoint_id == run.checkpoint_id
    return {
        "run_id": run.run_id,
        "workflow_name": run.workflow_name,
        "checkpoint_id": checkpoint_id,
        "superstep": view.iteration,
        "executors": list(_executors(view.graph, view, run if is_head else None, ())),
        "edges": list(_edges(view.graph, ())),
        "signature": view.graph,
    }


def _executors(
    signature: Mapping[str, Any], content: SnapshotView | None, run: RunInfo | None, path: tuple[str, ...]
) -> Iterator[Row]:
    found = {} if content is None else _positions(content)
    failure = None if run is None else run.failure
    if failure is not None and failure.path == path and failure.executor_id is not None:
        found[failure.executor_id] = ("failed", f"{failure.error_type}: {failure.message}")
    for executor_id, described in signature.get("executors", {}).items():
        inner = _inner(described)
        position, because = found.get(executor_id, (None, None))
        yield {
            "executor_id": executor_id,
            "path": list(path),
            "type": described["type"] if inner is not None else described,
            "is_start": executor_id == signature.get("start_executor"),
            "position": position,
            "because": because,
        }
        if inner is not None:
            child = None if content is None else content.sub_workflows.get(executor_id)
            yield from _executors(inner, child, run, (*path, executor_id))


def _inner(described: Any) -> dict[str, Any] | None:
    """Return the signature inside an executor that is a sub-workflow."""
    return cast("dict[str, Any]", described)["sub_workflow"] if isinstance(described, dict) else None


def _positions(content: SnapshotView) -> dict[str, tuple[Position, str]]:
    """Return where a run stands and why, by executor. What needs a person overrides what goes on by itself."""
    found: dict[str, tuple[Position, str]] = {}
    counts: dict[str, int] = {}
    for message in content.messages:
        if message.due is None:
            counts[message.target] = number = counts.get(message.target, 0) + 1
            found[message.target] = ("next", "1 message" if number == 1 else f"{number} messages")
        else:
            found.setdefault(message.target, ("sleeping", f"a message until {moment(message.due)}"))
    for each in content.suspended:
        wakes, awaits = each.get("wake_at"), each.get("awaits")
        target: str = each["delivery"]["target"]
        found[target] = (
            ("sleeping", f"until {moment(wakes)}") if awaits is None else ("waiting", f"for an answer to {awaits}")
        )
    for request_id, request in content.requests.items():
        executor_id = request.get("executor")
        if isinstance(executor_id, str):
            found[executor_id] = ("waiting", f"for an answer to {request_id}")
    return found


def _edges(signature: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Row]:
    for group in signature.get("edge_groups", ()):
        if group["group_type"] == InternalEdgeGroup.type:
            continue
        for edge in group["edges"]:
            yield {
                "path": list(path),
                "source": edge["source"],
                "target": edge["target"],
                "group_type": group["group_type"],
                "condition": edge.get("condition"),
                "selection": group.get("selection_func"),
            }
    for executor_id, described in signature.get("executors", {}).items():
        if (inner := _inner(described)) is not None:
            yield from _edges(inner, (*path, executor_id))


def picture(view: Row, notation: Literal["mermaid", "dot"]) -> str:
    """Draw a graph view. The colours show the position."""
    places = {(*each["path"], each["executor_id"]): each["position"] for each in view["executors"]}
    colors = {place: _COLORS[position] for place, position in places.items() if position is not None}
    return draw(_graph(view["signature"]), notation, colors=colors)


class _Stored(Executor):
    """Stands for an executor whose class is not here."""

    def __init__(self, executor_id: str, child: Graph | None) -> None:
        super().__init__(executor_id)
        self._child = child

    @handler
    async def take(self, message: Any, ctx: WorkflowContext[Never]) -> None:
        """Take nothing: this graph never runs."""
        del message, ctx
        raise AssertionError("a stored graph does not run")

    def child_graph(self) -> Graph | None:
        return self._child


def _graph(signature: Mapping[str, Any]) -> Graph:
    """Make a graph of a stored signature, to be drawn."""
    executors: dict[str, Executor] = {}
    for executor_id, described in signature["executors"].items():
        inner = _inner(described)
        executors[executor_id] = _Stored(executor_id, None if inner is None else _graph(inner))
    groups = tuple(map(_group, signature["edge_groups"]))
    return Graph("stored", signature["start_executor"], executors, groups)


def _group(stored: Mapping[str, Any]) -> EdgeGroup:
    edges: Sequence[Mapping[str, Any]] = stored["edges"]
    match stored["group_type"]:
        case FanInEdgeGroup.type:
            return FanInEdgeGroup([each["source"] for each in edges], edges[0]["target"])
        case InternalEdgeGroup.type:
            return InternalEdgeGroup(edges[0]["target"])
        case _:
            return EdgeGroup(
                [
                    Edge(each["source"], each["target"], None if each.get("condition") is None else _unknown)
                    for each in edges
                ]
            )


def _unknown(_: object) -> bool:
    raise AssertionError("a stored graph does not run")
