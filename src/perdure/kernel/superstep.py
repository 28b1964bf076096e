"""Planning and folding a superstep: pure functions on frozen values.

Effects are folded in the order of the plan, never of completion, so the next snapshot does not depend on timing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from perdure.data import value
from perdure.kernel.effects import Activation, Conflict
from perdure.kernel.snapshot import Delayed, Delivery, Snapshot, Suspended

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.kernel.effects import Effects, Sent
    from perdure.kernel.snapshot import Limits, Request, StateKey, Value


@value
class FanIn:
    """A fan-in group as the kernel needs it: who must have sent, in order, and who gets the list."""

    source_ids: tuple[str, ...]
    target_id: str


def plan(snapshot: Snapshot) -> tuple[Activation, ...]:
    """The handler calls of the next superstep: one for each delivery, in order."""
    calls: dict[str, int] = {}
    activations: list[Activation] = []
    for delivery in snapshot.deliveries:
        target_id = delivery.target_id
        ordinal = calls.get(target_id, 0)
        calls[target_id] = ordinal + 1
        activations.append(Activation(target_id, ordinal, delivery))
    return tuple(activations)


def home_of(snapshot: Snapshot, activation: Activation) -> str:
    """Where an activation was entered first: the name of its records and keys, the same however often it is entered."""
    scope = f"{snapshot.scope}:" if snapshot.scope else ""
    return activation.delivery.home or f"{scope}{snapshot.turn}.{snapshot.iteration}/{activation.key}"


def scope_of(home: str) -> str:
    """What begins the homes inside of a sub-workflow's activation: its own home without the name of the executor.

    The turns of a sub-workflow alone would not do: one that failed leaves its number to the next.
    """
    superstep, _, rest = home.partition("/")
    return f"{superstep}#{rest.rpartition('#')[2]}"


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
    sent = _sendings(effects)
    later = tuple(_delayed(sent))
    if later:
        sent = [each for each in sent if each.sent.due is None]
    deliveries, fan_in = arrived(snapshot.fan_in, sent, fan_ins)
    # Most activations do nothing but send.
    more = [effect for effect in effects if not effect.only_sends]
    # Every field by name, and not dataclasses.replace: that is several times slower, and this runs in every superstep.
    return Snapshot(
        turn=snapshot.turn,
        iteration=snapshot.iteration + 1,
        since_input=snapshot.since_input + 1,
        deliveries=deliveries,
        fan_in=fan_in,
        state=_written(snapshot.state, more, merged or {}) if more else snapshot.state,
        executors=_with_states(snapshot.executors, more) if more else snapshot.executors,
        requests=_opened(snapshot, effects) if more or snapshot.requests else snapshot.requests,
        answered=snapshot.answered,
        outputs=snapshot.outputs.extended([output for e in more for output in e.outputs]) if more else snapshot.outputs,
        children=_with_children(snapshot.children, more) if more else snapshot.children,
        kwargs=snapshot.kwargs,
        withheld_kwargs=snapshot.withheld_kwargs,
        received=snapshot.received,
        suspended=(*snapshot.suspended, *_suspended(snapshot, more)) if more else snapshot.suspended,
        delayed=snapshot.delayed + later,
        carried=_carried(snapshot, effects) if more or snapshot.carried else snapshot.carried,
        cancelled=snapshot.cancelled,
        limits=_spent(snapshot, effects) if more or snapshot.limits.budget else snapshot.limits,
        scope=snapshot.scope,
    )


def conflicts(effects: Sequence[Effects]) -> tuple[Conflict, ...]:
    """The keys that more than one executor wrote."""
    writers: dict[StateKey, dict[str, None]] = {}
    for effect in effects:
        for write in effect.writes:
            writers.setdefault(write.key, {})[effect.activation.executor_id] = None
    return tuple(Conflict(key, tuple(ids)) for key, ids in writers.items() if len(ids) > 1)


@value
class Sending:
    """A message on its way: who sent it, and the name of the sending."""

    source_id: str
    send: str
    sent: Sent


def arrived(
    buffers: Mapping[str, Mapping[str, tuple[Value, ...]]], sendings: Sequence[Sending], fan_ins: Mapping[str, FanIn]
) -> tuple[tuple[Delivery, ...], Mapping[str, Mapping[str, tuple[Value, ...]]]]:
    """What messages become when they arrive: deliveries, those of complete fan-in groups last; and the rest."""
    direct = tuple(_deliveries(sendings))
    filled = _gathered(buffers, sendings)
    if not filled:
        return direct, buffers
    complete = [key for key, group in fan_ins.items() if key in filled and _is_complete(filled[key], group)]
    gathered = tuple(_release(group_id, fan_ins[group_id], filled[group_id]) for group_id in complete)
    return direct + gathered, {key: buffer for key, buffer in filled.items() if key not in complete}


def _sendings(effects: Iterable[Effects]) -> list[Sending]:
    sendings: list[Sending] = []
    for effect in effects:
        if effect.sends:
            source_id, key = effect.activation.executor_id, effect.activation.key
            sendings += [Sending(source_id, f"{key}/{ordinal}", sent) for ordinal, sent in enumerate(effect.sends)]
    return sendings


def _deliveries(sendings: Iterable[Sending]) -> list[Delivery]:
    return [
        Delivery(target_id, (each.source_id,), (each.sent.data,), each.send, asked_for=each.sent.asked_for)
        for each in sendings
        for target_id in each.sent.targets
    ]


def _gathered(
    before: Mapping[str, Mapping[str, tuple[Value, ...]]], sendings: Iterable[Sending]
) -> Mapping[str, Mapping[str, tuple[Value, ...]]]:
    fresh: dict[str, dict[str, list[Value]]] = {}
    for each in sendings:
        for group_id in each.sent.fan_ins:
            fresh.setdefault(group_id, {}).setdefault(each.source_id, []).append(each.sent.data)
    if not fresh:
        return before
    return {**before, **{key: _appended(before.get(key, {}), values) for key, values in fresh.items()}}


def _appended(
    buffer: Mapping[str, tuple[Value, ...]], fresh: Mapping[str, Sequence[Value]]
) -> Mapping[str, tuple[Value, ...]]:
    return {**buffer, **{source_id: (*buffer.get(source_id, ()), *values) for source_id, values in fresh.items()}}


def _delayed(sendings: Iterable[Sending]) -> Iterable[Delayed]:
    for each in sendings:
        sent = each.sent
        if sent.due is not None and (sent.targets or sent.fan_ins):
            yield Delayed(sent.due, each.source_id, each.send, sent.data, sent.asked_for, sent.targets, sent.fan_ins)


def _suspended(snapshot: Snapshot, effects: Iterable[Effects]) -> Iterable[Suspended]:
    for effect in effects:
        if effect.suspension is not None:
            delivery = replace(effect.activation.delivery, home=home_of(snapshot, effect.activation))
            yield Suspended(delivery, effect.suspension.wake_at, effect.suspension.awaits)


def _carried(snapshot: Snapshot, effects: Sequence[Effects]) -> Mapping[str, Value]:
    """The records of what goes on: those of activations that have ended now are of no use any more."""
    fresh = {key: value for effect in effects if effect.suspension for key, value in effect.suspension.carried.items()}
    if not snapshot.carried and not fresh:
        return snapshot.carried
    homes = {home_of(snapshot, effect.activation) for effect in effects}
    kept = {key: value for key, value in snapshot.carried.items() if homes.isdisjoint(_homes_in(key))}
    return {**kept, **fresh}


def _homes_in(key: str) -> Iterable[str]:
    """All homes that a record of this key can belong to: the key itself, and what stands before any slash in it."""
    return accumulate(key.split("/"), "{}/{}".format)


def _spent(snapshot: Snapshot, effects: Sequence[Effects]) -> Limits:
    amounts = [amount for effect in effects for amount in effect.spent.items()]
    if snapshot.limits.budget:
        # What the engine counts is kept only where it is limited: it would change with every superstep.
        amounts += [amount for amount in _counted(effects) if amount[0] in snapshot.limits.budget]
    if not amounts:
        return snapshot.limits
    spent = dict(snapshot.limits.spent)
    for name, amount in amounts:
        spent[name] = spent.get(name, 0) + amount
    return replace(snapshot.limits, spent=spent)


def _counted(effects: Sequence[Effects]) -> Iterable[tuple[str, float]]:
    yield "supersteps", 1
    # One that was left to wait is the same activation when it is entered again.
    yield "activations", sum(effect.suspension is None for effect in effects)


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


def _with_states(before: Mapping[str, Value], effects: Iterable[Effects]) -> Mapping[str, Value]:
    fresh = {e.activation.executor_id: e.executor_state for e in effects if e.executor_state is not None}
    return {**before, **fresh} if fresh else before


def _with_children(before: Mapping[str, Snapshot], effects: Iterable[Effects]) -> Mapping[str, Snapshot]:
    fresh = {e.activation.executor_id: e.child for e in effects if e.child is not None}
    return {**before, **fresh} if fresh else before


def _opened(snapshot: Snapshot, effects: Sequence[Effects]) -> Mapping[str, Request]:
    """The requests that are open now. What an activation has asked for itself is of no use once it has ended."""
    before = snapshot.requests
    opened = {request.id: request for effect in effects for request in effect.requests}
    if not before:
        return opened or before
    ended = {home_of(snapshot, effect.activation) for effect in effects if effect.suspension is None}
    given_up = {key for key, request in before.items() if request.resumes in ended}
    given_up |= {key for effect in effects if effect.suspension is not None for key in effect.suspension.given_up}
    given_up |= {key for effect in effects for key in _given_up_inside(snapshot, effect)}
    if not given_up and not opened:
        return before
    return {**{key: request for key, request in before.items() if key not in given_up}, **opened}


def _given_up_inside(snapshot: Snapshot, effects: Effects) -> Iterable[str]:
    """The requests that a sub-workflow had passed on and does not wait for any more."""
    name, after = effects.activation.executor_id, effects.child
    before = snapshot.children.get(name)
    if before is not None and after is not None:
        for key, request in snapshot.requests.items():
            if request.executor_id == name and key in before.requests and key not in after.requests:
                yield key
