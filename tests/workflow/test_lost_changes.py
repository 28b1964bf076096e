"""An executor that changes and has no hooks: a resumed run would not have the change, and is warned of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from perdure import Executor, InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, handler

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker(Executor):
    """Does to itself what it is told."""

    def __init__(self, do: Callable[[Any], None]) -> None:
        super().__init__(id="worker")
        self.seen = [1]
        self.count = 5
        self._do = do

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
        self._do(self)
        if number:
            await ctx.send_message(number - 1)


async def warnings_of(do: Callable[[Any], None]) -> list[str]:
    """What is told of a worker that does this three times."""
    worker = Worker(do)
    workflow = WorkflowBuilder(start_executor=worker, checkpoint_storage=InMemoryCheckpointStorage())
    result = await workflow.add_edge(worker, worker).build().run(2)
    return [event.data for event in result if event.type == "warning"]


def grow(worker: Any) -> None:
    worker.seen.append(2)


def replace_it(worker: Any) -> None:
    worker.count += 1


def replace_by_an_equal_one(worker: Any) -> None:
    worker.seen = list(worker.seen)


def rename(worker: Any) -> None:
    if hasattr(worker, "count"):
        worker.number = worker.count
        del worker.count


def delete(worker: Any) -> None:
    worker.__dict__.pop("seen", None)


@pytest.mark.parametrize(
    ("do", "name"),
    [(grow, "seen"), (replace_it, "count"), (replace_by_an_equal_one, "seen"), (rename, "number"), (delete, "seen")],
)
async def test_the_first_change_of_an_executor_is_warned_of_once(do: Callable[[Any], None], name: str) -> None:
    (warning,) = await warnings_of(do)
    assert warning.startswith(f"executor 'worker' changed its attribute {name!r} but has no on_checkpoint_save")


def leave(_: Any) -> None:
    """Change nothing."""


def set_again(worker: Any) -> None:
    seen = worker.seen
    del worker.seen
    worker.seen = seen


@pytest.mark.parametrize("do", [leave, set_again])
async def test_what_is_the_same_afterwards_has_not_changed(do: Callable[[Any], None]) -> None:
    assert await warnings_of(do) == []
