"""A snapshot whose values are kept another way: when a run moves between memory and storages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.codec import Kept, as_kept, with_parts
from perdure.kernel import Trail

if TYPE_CHECKING:
    from perdure.codec import Values
    from perdure.kernel import Delivery, Output, Request, Snapshot


def rekept(snapshot: Snapshot, before: Values, after: Values) -> Snapshot:
    """The same snapshot with every value taken out of the one keeping and put into the other."""

    def move(value: object) -> object:
        kept = as_kept(value)
        return kept if kept.is_lost else after.fix(before.give(value), kept.path)

    def carry(value: object) -> object:
        """A record is a document of ours and stays as it is, but has to bring its parts to another store."""
        kept = as_kept(value)
        if kept.stored is None:
            return kept
        encoded = kept.require_encoded()
        whole = encoded.with_parts(with_parts(encoded.refs, kept.stored))
        return Kept(path=kept.path, encoded=whole, checkpoint_id=kept.checkpoint_id)

    def request(old: Request) -> Request:
        return replace(old, data=move(old.data), default=None if old.default is None else move(old.default))

    def delivery(old: Delivery) -> Delivery:
        answers = None if old.answers is None else request(old.answers)
        return replace(old, values=tuple(map(move, old.values)), answers=answers)

    def output(old: Output) -> Output:
        return replace(old, data=move(old.data))

    return replace(
        snapshot,
        deliveries=tuple(map(delivery, snapshot.deliveries)),
        fan_in={
            group_id: {source: tuple(map(move, kept)) for source, kept in buffer.items()}
            for group_id, buffer in snapshot.fan_in.items()
        },
        state={place: move(value) for place, value in snapshot.state.items()},
        executors={key: move(value) for key, value in snapshot.executors.items()},
        requests={key: request(value) for key, value in snapshot.requests.items()},
        outputs=Trail().extended(map(output, snapshot.outputs)),
        children={key: rekept(child, before, after) for key, child in snapshot.children.items()},
        kwargs=None if snapshot.kwargs is None else move(snapshot.kwargs),
        suspended=tuple(replace(each, delivery=delivery(each.delivery)) for each in snapshot.suspended),
        delayed=tuple(replace(each, data=move(each.data)) for each in snapshot.delayed),
        carried={key: carry(value) for key, value in snapshot.carried.items()},
    )
