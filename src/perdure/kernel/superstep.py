"""Plan and fold a superstep: pure functions on frozen values, from activations and their effects to the next snapshot.

Effects are folded in plan order, never in completion order, so the next snapshot does not depend on timing.
"""

from __future__ import annotations

from dataclasses import field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from perdure.data_classes import evolve, new_dict, value_class
from perdure.kernel.snapshot import Delayed, Delivery, Limits, Output, Request, Snapshot, Suspended

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.kernel.snapshot import Moment, StateKey, Value


@value_class
class Activation:
    """One handler call in one superstep. `ordinal` counts the calls of its executor."""

    executor_id: str
    ordinal: int
    delivery: Delivery

    @property
    def key(self) -> str:
        """Return a name that is unique in the superstep and stable across attempts."""
        return f"{self.executor_id}#{self.ordinal}"


@value_class
class RoutedMessage:
    """A sent message with its destinations: executors, fan-in groups; now, or when it is due.

    `asked_for` is the target that the sender named.
    """

    data: Value
    asked_for: str | None
    targets: tuple[str, ...]
    fan_ins: tuple[str, ...]
    due: Moment | None = None


@value_class
class PendingEvent:
    """An event that the commit will number."""

    type: str
    data: Value | None = None
    executor_id: str | None = None
    path: tuple[str, ...] = ()
    request_id: str | None = None
    iteration: int | None = None
    details: Value | None = None
    lost: str | None = None
    """Why the data is missing, if it could not be encoded."""
    inner: PendingEvent | None = None
    """For a `sub_workflow` event: the event of the sub-workflow."""


@value_class
class Suspension:
    """The wait of a suspended activation: until a moment or for a request, with its records so far by key.

    `given_up` lists requests of an earlier attempt that it no longer waits for.
    """

    wake_at: Moment | None
    awaits: str | None
    carried: Mapping[str, Value]
    given_up: tuple[str, ...] = ()


@value_class
class Write:
    """A new value for a state key; `erase` removes the key."""

    key: StateKey
    value: Value
    erase: bool = False


@value_class
class Effects:
    """Everything one activation produced. `executor_state` and `child` are None if there is none or it is unchanged.

    A suspended activation has only `suspension`, `events` and the requests that it waits for. Its handler repeats
    everything else when it is re-entered.
    """

    activation: Activation
    sends: tuple[RoutedMessage, ...] = ()
    writes: tuple[Write, ...] = ()
    requests: tuple[Request, ...] = ()
    outputs: tuple[Output, ...] = ()
    executor_state: Value = None
    child: Snapshot | None = None
    events: tuple[PendingEvent, ...] = ()
    spent: Mapping[str, float] = field(default_factory=new_dict)
    suspension: Suspension | None = None


@value_class
class UnroutedMessage:
    """A sent message before routing. Routing looks at `message`; `data` is its encoded form."""

    data: Value
    asked_for: str | None
    message: object
    due: Moment | None = None


@value_class
class ActivationResult:
    """An ended activation before its messages are routed. This is what a journal records.

    `updates` holds the updates of keys with a reducer, which are merged when the superstep ends; None removes the key.
    """

    effects: Effects
    unrouted: tuple[UnroutedMessage, ...]
    updates: Mapping[StateKey, tuple[Value | None, ...]]


@value_class
class Conflict:
    """A state key that several executors wrote in one superstep."""

    key: StateKey
    executor_ids: tuple[str, ...]


@value_class
class FanIn:
    """A fan-in group: the sources that must have sent, in order, and the target of the list."""

    source_ids: tuple[str, ...]
    target_id: str


@value_class
class Sending:
    """A message on its way, with its source and the id of the sending."""

    source_id: str
    send_id: str
    message: RoutedMessage


def plan(snapshot: Snapshot) -> tuple[Activation, ...]:
    """Return the handler calls of the next superstep: one for each delivery, in order."""
    calls: dict[str, int] = {}
    activations: list[Activation] = []
    for delivery in snapshot.deliveries:
        target_id = delivery.target_id
        ordinal = calls.get(target_id, 0)
        calls[target_id] = ordinal + 1
        activations.append(Activation(target_id, ordinal, delivery))
    return tuple(activations)


def activation_id_of(snapshot: Snapshot, activation: Activation) -> str:
    """Return the id of an activation. It names its records and keys and is the same for every attempt."""
    scope = f"{snapshot.scope}:" if snapshot.scope else ""
    return activation.delivery.activation_id or f"{scope}{snapshot.turn}.{snapshot.iteration}/{activation.key}"


def scope_of(activation_id: str) -> str:
    """Return the prefix of activation ids inside a sub-workflow: the parent's id without the executor's name.

    The turn of the sub-workflow alone is not unique: a failed turn leaves its number to the next.
    """
    superstep, _, rest = activation_id.partition("/")
    return f"{superstep}#{rest.rpartition('#')[2]}"


def fold(
    snapshot: Snapshot,
    effects: Sequence[Effects],
    *,
    fan_ins: Mapping[str, FanIn],
    merged: Mapping[StateKey, Value] | None = None,
) -> Snapshot:
    """Return the snapshot after a superstep with these effects, which are in plan order.

    `merged` holds the values that reducers made of several writes to one key.
    """
    sendings: list[Sending] = []
    delayed: list[Delayed] = []
    for effect in effects:
        key, source_id = effect.activation.key, effect.activation.executor_id
        for ordinal, sent in enumerate(effect.sends):
            send_id = f"{key}/{ordinal}"
            if sent.due is None:
                sendings.append(Sending(source_id, send_id, sent))
            elif sent.targets or sent.fan_ins:
                delayed.append(
                    Delayed(sent.due, source_id, send_id, sent.data, sent.asked_for, sent.targets, sent.fan_ins)
                )
    deliveries, buffers = (), snapshot.fan_in
    if sendings or buffers:
        deliveries, buffers = deliver(buffers, sendings, fan_ins)
    writes = [write for effect in effects for write in effect.writes]
    states = {e.activation.executor_id: e.executor_state for e in effects if e.executor_state is not None}
    advanced = {e.activation.executor_id: e.child for e in effects if e.child is not None}
    waiting = [effect for effect in effects if effect.suspension is not None]
    has_requests = bool(snapshot.requests) or any(effect.requests for effect in effects)
    has_spent = bool(snapshot.limits.budget) or any(effect.spent for effect in effects)
    # What has not changed stays the same object: the writer of the checkpoint then knows it without comparing.
    return evolve(
        snapshot,
        iteration=snapshot.iteration + 1,
        since_input=snapshot.since_input + 1,
        deliveries=deliveries,
        fan_in=buffers,
        state=_apply_writes(snapshot.state, writes, merged or {}) if writes else snapshot.state,
        executors={**snapshot.executors, **states} if states else snapshot.executors,
        requests=_open_requests(snapshot, effects) if has_requests else snapshot.requests,
        outputs=snapshot.outputs.extended([output for effect in effects for output in effect.outputs]),
        children={**snapshot.children, **advanced} if advanced else snapshot.children,
        suspended=(*snapshot.suspended, *_suspended(snapshot, waiting)) if waiting else snapshot.suspended,
        delayed=(*snapshot.delayed, *delayed) if delayed else snapshot.delayed,
        carried=_carried(snapshot, effects) if snapshot.carried or waiting else snapshot.carried,
        limits=_add_spending(snapshot, effects) if has_spent else snapshot.limits,
    )


def conflicts(effects: Sequence[Effects]) -> tuple[Conflict, ...]:
    """Return the state keys that more than one executor wrote."""
    writers: dict[StateKey, dict[str, None]] = {}
    for effect in effects:
        for write in effect.writes:
            writers.setdefault(write.key, {})[effect.activation.executor_id] = None
    return tuple(Conflict(key, tuple(ids)) for key, ids in writers.items() if len(ids) > 1)


def deliver(
    buffers: Mapping[str, Mapping[str, tuple[Value, ...]]], sendings: Sequence[Sending], fan_ins: Mapping[str, FanIn]
) -> tuple[tuple[Delivery, ...], Mapping[str, Mapping[str, tuple[Value, ...]]]]:
    """Turn messages into deliveries, those of complete fan-in groups last. Return them and the remaining buffers."""
    direct = [
        Delivery(target_id, (each.source_id,), (each.message.data,), each.send_id, asked_for=each.message.asked_for)
        for each in sendings
        for target_id in each.message.targets
    ]
    fresh: dict[str, dict[str, list[Value]]] = {}
    for each in sendings:
        for group_id in each.message.fan_ins:
            fresh.setdefault(group_id, {}).setdefault(each.source_id, []).append(each.message.data)
    filled: dict[str, Mapping[str, tuple[Value, ...]]] = dict(buffers)
    for group_id, by_source in fresh.items():
        buffer = filled.get(group_id, {})
        filled[group_id] = {
            **buffer,
            **{source_id: (*buffer.get(source_id, ()), *values) for source_id, values in by_source.items()},
        }
    gathered: list[Delivery] = []
    for group_id, group in fan_ins.items() if filled else ():
        buffer = filled.get(group_id, {})
        if buffer and all(buffer.get(source_id) for source_id in group.source_ids):
            values = tuple(value for source_id in group.source_ids for value in buffer[source_id])
            gathered.append(Delivery(group.target_id, group.source_ids, values, send=group_id, is_gathered=True))
            del filled[group_id]
    return (*direct, *gathered), filled if fresh or gathered else buffers


def _suspended(snapshot: Snapshot, effects: Iterable[Effects]) -> list[Suspended]:
    return [
        Suspended(
            replace(effect.activation.delivery, activation_id=activation_id_of(snapshot, effect.activation)),
            effect.suspension.wake_at,
            effect.suspension.awaits,
        )
        for effect in effects
        if effect.suspension is not None
    ]


def _carried(snapshot: Snapshot, effects: Sequence[Effects]) -> Mapping[str, Value]:
    """Return the records of suspended activations, without those of activations that have ended now."""
    fresh = {key: value for effect in effects if effect.suspension for key, value in effect.suspension.carried.items()}
    ids = {activation_id_of(snapshot, effect.activation) for effect in effects}

    def has_ended(key: str) -> bool:
        # The owner of a record is its key, or a prefix of it before a slash.
        return not ids.isdisjoint(accumulate(key.split("/"), "{}/{}".format))

    return {**{key: value for key, value in snapshot.carried.items() if not has_ended(key)}, **fresh}


def _add_spending(snapshot: Snapshot, effects: Sequence[Effects]) -> Limits:
    amounts = [amount for effect in effects for amount in effect.spent.items()]
    # Supersteps and activations are counted only where they are limited: otherwise every commit would write them.
    budget = snapshot.limits.budget
    if "supersteps" in budget:
        amounts.append(("supersteps", 1))
    if "activations" in budget:
        # A suspended activation is counted when it ends.
        amounts.append(("activations", sum(effect.suspension is None for effect in effects)))
    if not amounts:
        return snapshot.limits
    spent = dict(snapshot.limits.spent)
    for name, amount in amounts:
        spent[name] = spent.get(name, 0) + amount
    return replace(snapshot.limits, spent=spent)


def _apply_writes(
    before: Mapping[StateKey, Value], writes: Iterable[Write], merged: Mapping[StateKey, Value]
) -> Mapping[StateKey, Value]:
    state = dict(before)
    for write in writes:
        if write.erase:
            state.pop(write.key, None)
        else:
            state[write.key] = merged.get(write.key, write.value)
    return state


def _open_requests(snapshot: Snapshot, effects: Sequence[Effects]) -> Mapping[str, Request]:
    """Return the open requests. A request that an activation itself awaited closes when the activation ends."""
    before = snapshot.requests
    opened = {request.id: request for effect in effects for request in effect.requests}
    if not before:
        return opened or before
    ended = {activation_id_of(snapshot, effect.activation) for effect in effects if effect.suspension is None}
    given_up = {key for key, request in before.items() if request.resumes in ended}
    given_up |= {key for effect in effects if effect.suspension is not None for key in effect.suspension.given_up}
    given_up |= {key for effect in effects for key in _given_up_inside(snapshot, effect)}
    if not given_up and not opened:
        return before
    return {**{key: request for key, request in before.items() if key not in given_up}, **opened}


def _given_up_inside(snapshot: Snapshot, effects: Effects) -> Iterable[str]:
    """Return the requests that a sub-workflow passed on and no longer waits for."""
    name, after = effects.activation.executor_id, effects.child
    before = snapshot.children.get(name)
    if before is not None and after is not None:
        for key, request in snapshot.requests.items():
            if request.executor_id == name and key in before.requests and key not in after.requests:
                yield key
