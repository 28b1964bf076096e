"""Where a fork comes from: the executions before it, when they began, and what they had told until it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import EventsForgottenError, Host, RunNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure import WorkflowEvent


async def origins_of(storage: Any, execution_id: str) -> tuple[str, ...]:
    """The executions that one is a fork of, the first of them first. An object of a user's own knows of none."""
    return tuple(run_id for run_id, _ in await _points(storage, execution_id))


async def begun_at(storage: Any, execution_id: str) -> str | None:
    """When an execution has begun, that of a fork with the first one; None if the storage does not know."""
    first = next(iter(await origins_of(storage, execution_id)), execution_id)
    for each in dict.fromkeys((first, execution_id)):
        try:
            return (await Host(storage).info(each)).created_at.isoformat()
        except (RunNotFoundError, TypeError):
            continue
    return None


async def told_by(storage: Any, execution_id: str) -> AsyncGenerator[WorkflowEvent[Any]]:
    """What an execution has told so far, that of a fork after what those before it had told when it was made.

    Nothing if the storage keeps no events, or has forgotten some.
    """
    if not hasattr(storage, "events"):
        return
    try:
        for run_id, number in await _points(storage, execution_id):
            async for event in _told_until(storage, run_id, number):
                yield event
        async for event in storage.events(execution_id):
            yield event
    except (RunNotFoundError, EventsForgottenError):
        return


async def _told_until(storage: Any, run_id: str, number: int) -> AsyncGenerator[WorkflowEvent[Any]]:
    """What a run had told at one of its checkpoints."""
    pending: list[WorkflowEvent[Any]] = []
    async for event in storage.events(run_id):
        pending.append(event)
        if event.type == "checkpoint":
            if _place(event.data.checkpoint_id)[1] > number:
                return
            for each in pending:
                yield each
            pending.clear()


async def _points(storage: Any, execution_id: str) -> list[tuple[str, int]]:
    """The checkpoints from which forks lead to an execution, by run and number, that of the first run first."""
    found: list[tuple[str, int]] = []
    try:
        desk, run_id = Host(storage), execution_id
        while (parent_id := (await desk.info(run_id)).parent_checkpoint_id) is not None:
            run_id, number = _place(parent_id)
            found.insert(0, (run_id, number))
    except (RunNotFoundError, TypeError):
        # Those before it are gone, or it is kept by an object that knows nothing of runs.
        pass
    return found


def _place(checkpoint_id: str) -> tuple[str, int]:
    """The run of a checkpoint, and its number there, as its id says also when the checkpoint is gone.

    One that was made by hand stands for a run of its own.
    """
    run_id, _, number = checkpoint_id.rpartition("@")
    return (run_id, int(number)) if run_id and number.isdecimal() else (checkpoint_id, 0)
