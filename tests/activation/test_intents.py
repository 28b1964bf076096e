"""What is written before a step is no sign that the run gets on; what is written after it is."""

from __future__ import annotations

import pytest

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor


class Attempts:
    """Looks how many attempts are counted."""

    def __init__(self, storage: InMemoryCheckpointStorage) -> None:
        self._storage = storage
        self.seen: list[int] = []

    async def look(self) -> None:
        record = await self._storage.store.run("r")
        assert record is not None
        self.seen.append(record.attempts)


async def test_a_life_that_only_says_that_a_step_begins_counts_as_an_attempt_in_vain() -> None:
    storage = InMemoryCheckpointStorage()
    attempts = Attempts(storage)

    @executor
    async def work(message: str, ctx: WorkflowContext) -> None:
        await ctx.step(f"before {len(attempts.seen)}", attempts.look, if_interrupted="ask")
        await attempts.look()
        raise ConnectionError(message)

    workflow = WorkflowBuilder(start_executor=work, checkpoint_storage=storage).build()
    with pytest.raises(ConnectionError):
        await workflow.run("first", run_id="r")
    with pytest.raises(ConnectionError):
        await workflow.run(run_id="r")
    # The first life has committed the message before; the second has claimed the run and got nowhere yet.
    assert attempts.seen == [0, 0, 1, 0]
