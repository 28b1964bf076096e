"""`Edit`: what a fork changes of the checkpoint that it begins at, checked against what stands there."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from perdure.data import frozen
from perdure.engine import accepts
from perdure.graph import INTERNAL_SOURCE_ID, SHARED_SCOPE
from perdure.kernel import Delivery
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.codec import Values
    from perdure.graph import Graph
    from perdure.kernel import Snapshot


@frozen
class Edit:
    """A change to a checkpoint.

    `state` sets keys of the shared state, `delete` removes keys. `executors` replaces the saved states of executors.
    `messages`, by executor, replaces everything that waits for the next superstep. A value takes the place of one of
    the same type, a message must be one that its executor handles; `retype` names keys whose type is meant to change.
    What a superstep that was stopped half-way has finished is done anew with the change, but for activations that wait.
    """

    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    delete: Sequence[str] = ()
    executors: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, "dict[str, Any]"])
    messages: Mapping[str, Sequence[Any]] | None = None
    retype: Sequence[str] = ()


def edited(snapshot: Snapshot, edit: Edit, graph: Graph, values: Values) -> Snapshot:
    """The snapshot with the change. Raises ValueError or TypeError that says what does not fit."""
    if edit == Edit():
        return snapshot
    state = dict(snapshot.state)
    for key in edit.delete:
        if state.pop((SHARED_SCOPE, key), None) is None:
            raise ValueError(f"there is no state key {key!r} to delete")
    for key, value in edit.state.items():
        _require_same_type(key, value, snapshot, edit, values)
        state[SHARED_SCOPE, key] = values.fix(value, f"state[{key!r}]")
    executors = dict(snapshot.executors)
    for executor_id, saved in edit.executors.items():
        if executor_id not in executors:
            raise ValueError(f"executor {executor_id!r} has no saved state to replace")
        executors[executor_id] = values.fix(saved, f"state of executor {executor_id!r}")
    deliveries = snapshot.deliveries if edit.messages is None else _deliveries(edit.messages, graph, values)
    return replace(
        snapshot, state=state, executors=executors, deliveries=deliveries, carried=_carried(snapshot, deliveries)
    )


def _carried(snapshot: Snapshot, deliveries: Sequence[Delivery]) -> Mapping[str, object]:
    """The records that hold after a change: those inside of activations that wait, or go on after they did.

    All others are run anew, whatever a superstep that was stopped had finished of them.
    """
    homes = {each.activation_id for each in (*deliveries, *(waiting.delivery for waiting in snapshot.suspended))}
    inside = tuple(f"{home}/" for home in homes if home is not None)
    return {key: value for key, value in snapshot.carried.items() if key.startswith(inside)}


def _require_same_type(key: str, value: Any, snapshot: Snapshot, edit: Edit, values: Values) -> None:
    present = snapshot.state.get((SHARED_SCOPE, key))
    if present is None or key in edit.retype:
        return
    before = values.give(present)
    if before is not None and value is not None and type(value) is not type(before):
        raise TypeError(
            f"state[{key!r}] is a {type_of(before)}, the edit makes it a {type_of(value)}; "
            f"if that is meant, say retype=[{key!r}]"
        )


def _deliveries(messages: Mapping[str, Sequence[Any]], graph: Graph, values: Values) -> tuple[Delivery, ...]:
    found: list[Delivery] = []
    for executor_id, given in messages.items():
        executor = graph.executors.get(executor_id)
        if executor is None:
            raise ValueError(f"there is no executor {executor_id!r} to give a message to")
        for ordinal, message in enumerate(given):
            if not accepts(executor, message):
                raise TypeError(f"executor {executor_id!r} has no handler for a {type_of(message)}")
            found.append(
                Delivery(
                    executor_id,
                    (INTERNAL_SOURCE_ID(executor_id),),
                    (values.fix(message, f"message for executor {executor_id!r}"),),
                    send=f"edit:{executor_id}/{ordinal}",
                    asked_for=executor_id,
                )
            )
    return tuple(found)
