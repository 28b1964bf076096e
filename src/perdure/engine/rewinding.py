"""Moving in a run's history: back in the same run, or into a new one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.engine import opening
from perdure.engine.ledger import StoreLedger
from perdure.engine.presence import PRESENCE
from perdure.errors import WorkflowCheckpointException

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.engine.blueprint import Blueprint
    from perdure.engine.opening import Tenure
    from perdure.kernel import Snapshot
    from perdure.storage import Binding


async def _arrive(run_id: str) -> None:
    """The caller has closed its own stream, and nothing is driven here."""
    del run_id


async def rewind(blueprint: Blueprint, binding: Binding, *, run_id: str, checkpoint_id: str) -> Tenure:
    """Move the head of a run back to one of its checkpoints, with a new nonce: what follows is another life."""
    store = binding.store
    manifest = await store.manifest(checkpoint_id)
    if manifest.run_id != run_id:
        raise WorkflowCheckpointException(
            f"checkpoint {checkpoint_id!r} is of run {manifest.run_id!r}, not of {run_id!r}: fork it instead"
        )
    snapshot, written = await opening.found(blueprint, binding, manifest)
    nonce = blueprint.clock.new_id()
    async with PRESENCE.at(store.place, run_id):
        claim = await store.claim(run_id)
        try:
            record = await store.run(run_id)
            assert record is not None, "a run that has a checkpoint is known"
            assert record.head is not None, "a run that has a checkpoint has a head"
            await store.rewind(claim, expected_head=record.head, to=checkpoint_id, nonce=nonce)
        finally:
            await store.release(claim)
    origin = replace(opening.origin(record), nonce=nonce)
    position = record.position
    return opening.Tenure(origin, snapshot, binding.values, binding, head=manifest, position=position, written=written)


async def fork(
    blueprint: Blueprint,
    binding: Binding,
    *,
    checkpoint_id: str,
    change: Callable[[Snapshot], Snapshot] | None,
) -> Tenure:
    """A new run at a checkpoint; a change is its first commit."""
    manifest = await binding.store.manifest(checkpoint_id)
    snapshot = await opening.read(blueprint, binding, manifest)
    changed = snapshot if change is None else change(snapshot)
    tenure = await opening.fork(blueprint, binding, _arrive, manifest)
    await opening.begin(tenure)
    claim = tenure.claim
    assert claim is not None, "a fork is claimed when it is made"
    try:
        if change is not None:
            ledger = StoreLedger.of(blueprint, binding, tenure)
            await ledger.commit(changed, "edit")
            tenure = replace(tenure, snapshot=changed, head=ledger.head, position=ledger.position)
    finally:
        await binding.store.release(claim)
    return tenure
