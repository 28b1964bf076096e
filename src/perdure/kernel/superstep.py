"""Planning and folding a superstep: pure functions on frozen values.

Effects are folded in the order of the plan, never of completion, so the next snapshot does not depend on timing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from perdure.kernel.effects import Activation, Conflict
from perdure.kernel.snapshot import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.kernel.effects import Effects
    from perdure.kernel.snapshot import Request, Snapshot, StateKey, Value


ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class FanIn:
    """A fan-in group as the kernel needs it: who must have sent, in order, and who gets the list."""

    source_ids: tuple[str, ...]
    target_id: str


def plan(snapshot: Snapshot) -> tuple[Activation, ...]:
    """The handler calls of the next superstep: one for each delivery, in order."""
    calls: Counter[str] = Counter()
    activations: list[Activation] = []
    for delivery in snapshot.deliveries:
        activations.append(Activation(delivery.target_id, calls[delivery.target_id], delivery))
        calls[delivery.target_id] += 1
    return tuple(activations)


def fold(
    snapshot: Snapshot,
    effects: Sequence[Effects],
    *,
    fan_ins: Mapping[str, FanIn],
    merged: Mapping[StateKey, Value] | None = None,
) -> Snapshot:
    """The snapshot after a superstep whose activations, in the order of the plan, did this.

    `merged` holds the values that reducers made of several writes to one key.
    """
    direct = tuple(_deliveries(effects))
    buffers = _gathered(snapshot.fan_in, effects)
    complete = tuple(group_id for group_id in fan_ins if _is_complete(buffers.get(group_id, {}), fan_ins[group_id]))
    gathered = tuple(_release(group_id, fan_ins[group_id], buffers[group_id]) for group_id in complete)
    return replace(
        snapshot,
        iteration=snapshot.iteration + 1,
        since_input=snapshot.since_input + 1,
        deliveries=direct + gathered,
        fan_in={group_id: buffer for group_id, buffer in buffers.items() if group_id not in complete},
        state=_written(snapshot.state, effects, merged or {}),
        executors=_updated(snapshot.executors, ((e.activation.executor_id, e.executor_state) for e in effects)),
        requests=_opened(snapshot.requests, effects),
        outputs=snapshot.outputs.extended(output for e in effects for output in e.outputs),
        children=_updated(snapshot.children, ((e.activation.executor_id, e.child) for e in effects)),
    )


def conflicts(effects: Sequence[Effects]) -> tuple[Conflict, ...]:
    """The keys that more than one executor wrote."""
    writers: dict[StateKey, dict[str, None]] = {}
    for effect in effects:
        for write in effect.writes:
            writers.setdefault(write.key, {})[effect.activation.executor_id] = None
    return tuple(Conflict(key, tuple(ids)) for key, ids in writers.items() if len(ids) > 1)


def _deliveries(effects: Iterable[Effects]) -> Iterable[Delivery]:
    for effect in effects:
        source = effect.activation.executor_id
        for ordinal, sent in enumerate(effect.sends):
            send = f"{effect.activation.key}/{ordinal}"
            for target_id in sent.targets:
                yield Delivery(target_id, (source,), (sent.data,), send, asked_for=sent.asked_for)


def _gathered(
    before: Mapping[str, Mapping[str, tuple[Value, ...]]], effects: Iterable[Effects]
) -> Mapping[str, Mapping[str, tuple[Value, ...]]]:
    buffers = {group_id: dict(buffer) for group_id, buffer in before.items()}
    for effect in effects:
        source = effect.activation.executor_id
        for sent in effect.sends:
            for group_id in sent.fan_ins:
                buffer = buffers.setdefault(group_id, {})
                buffer[source] = (*buffer.get(source, ()), sent.data)
    return buffers


def _is_complete(buffer: Mapping[str, tuple[Value, ...]], group: FanIn) -> bool:
    return all(buffer.get(source_id) for source_id in group.source_ids)


def _release(group_id: str, group: FanIn, buffer: Mapping[str, tuple[Value, ...]]) -> Delivery:
    values = tuple(value for source_id in group.source_ids for value in buffer[source_id])
    return Delivery(group.target_id, group.source_ids, values, send=group_id, is_gathered=True)


def _written(
    before: Mapping[StateKey, Value], effects: Iterable[Effects], merged: Mapping[StateKey, Value]
) -> Mapping[StateKey, Value]:
    writes = [write for effect in effects for write in effect.writes]
    if not writes:
        return before
    state = dict(before)
    for write in writes:
        if write.erase:
            state.pop(write.key, None)
        else:
            state[write.key] = merged.get(write.key, write.value)
    return state


def _updated(before: Mapping[str, ValueT], changes: Iterable[tuple[str, ValueT | None]]) -> Mapping[str, ValueT]:
    fresh = {key: value for key, value in changes if value is not None}
    return {**before, **fresh} if fresh else before


def _opened(before: Mapping[str, Request], effects: Iterable[Effects]) -> Mapping[str, Request]:
    opened = {request.id: request for effect in effects for request in effect.requests}
    return {**before, **opened} if opened else before
