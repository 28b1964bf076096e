"""A checkpoint that was made by hand, from the documented fields, as a snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import EXECUTOR_STATE_KEY, WORKFLOW_RUN_KWARGS_KEY
from perdure.engine.routing import route
from perdure.errors import WorkflowCheckpointException
from perdure.graph import INTERNAL_SOURCE_ID, SHARED_SCOPE
from perdure.kernel import Activation, Delivery, Effects, FanIn, Request, RoutedMessage, Snapshot, fold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.codec import Values
    from perdure.events import WorkflowEvent
    from perdure.graph import Graph, WorkflowMessage


async def snapshot_of_fields(graph: Graph, fields: Mapping[str, Any], values: Values, *, iteration: int) -> Snapshot:
    """The fields as a snapshot. Messages that are not addressed yet are routed now."""
    state = dict(fields["state"])
    executors = state.pop(EXECUTOR_STATE_KEY, {})
    kwargs = state.pop(WORKFLOW_RUN_KWARGS_KEY, None)
    _require_known(graph, executors)
    snapshot = Snapshot(
        turn=1,
        iteration=iteration - 1,
        since_input=iteration - 1,
        state={(SHARED_SCOPE, key): values.fix(value, f"state[{key!r}]") for key, value in state.items()},
        executors={key: values.fix(value, f"state of executor {key!r}") for key, value in executors.items()},
        requests={key: _request(event, values) for key, event in fields["pending_request_info_events"].items()},
        kwargs=values.fix(kwargs, "run kwargs") if kwargs else None,
    )
    effects: list[Effects] = []
    addressed: list[Delivery] = []
    for source_id, messages in fields["messages"].items():
        for ordinal, message in enumerate(messages):
            if source_id.startswith(INTERNAL_SOURCE_ID("")):
                addressed.append(_addressed(message, source_id, ordinal, values))
            else:
                effects.append(await _sent(graph, message, source_id, ordinal, values))
    fan_ins = {key: FanIn(tuple(g.source_executor_ids), g.target_id) for key, g in graph.fan_ins.items()}
    folded = fold(snapshot, effects, fan_ins=fan_ins)
    return replace(folded, deliveries=(*addressed, *folded.deliveries))


def _require_known(graph: Graph, executors: object) -> None:
    if not isinstance(executors, dict):
        raise WorkflowCheckpointException(f"{EXECUTOR_STATE_KEY!r} must be a dict of executors' states")
    for executor_id, state in executors.items():  # pyright: ignore[reportUnknownVariableType]
        if executor_id not in graph.executors:
            raise WorkflowCheckpointException(
                f"the checkpoint has a state of executor {executor_id!r}, which is unknown"
            )
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):  # pyright: ignore[reportUnknownVariableType]
            raise WorkflowCheckpointException(f"the state of executor {executor_id!r} must be a dict with str keys")


def _request(event: WorkflowEvent[Any], values: Values) -> Request:
    return Request(
        event.request_id,
        event.source_executor_id,
        values.fix(event.data, f"request {event.request_id!r}"),
        event.request_type,
        event.response_type,
    )


def _addressed(message: WorkflowMessage, source_id: str, ordinal: int, values: Values) -> Delivery:
    target_id = message.target_id or source_id.removeprefix(INTERNAL_SOURCE_ID(""))
    event = message.original_request_info_event
    return Delivery(
        target_id,
        (source_id,),
        (values.fix(message.data, f"message for executor {target_id!r}"),),
        send=f"saved:{source_id}/{ordinal}",
        asked_for=target_id,
        answers=None if event is None else _request(event, values),
    )


async def _sent(graph: Graph, message: WorkflowMessage, source_id: str, ordinal: int, values: Values) -> Effects:
    if source_id not in graph.executors:
        raise WorkflowCheckpointException(f"the checkpoint has a message of executor {source_id!r}, which is unknown")
    routing = await route(graph, source_id=source_id, target_id=message.target_id, message=message.data)
    if routing.undelivered is not None:
        raise WorkflowCheckpointException(
            f"the checkpoint has a message of executor {source_id!r} that can't be delivered: {routing.undelivered}"
        )
    data = values.fix(message.data, f"message of executor {source_id!r}")
    origin = Activation(source_id, ordinal, Delivery(source_id, (), (), send="saved"))
    return Effects(origin, sends=(RoutedMessage(data, message.target_id, routing.targets, routing.fan_ins),))
