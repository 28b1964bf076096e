"""Reducers merge the writes of a superstep to one key, in plan order, and a lone writer commits what it saw."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import State

Act: TypeAlias = "Callable[[State], None]"


def add(amount: list[str]) -> Act:
    return lambda state: state.set("log", amount)


def erase(state: State) -> None:
    if state.has("log"):
        state.delete("log")


async def seen_and_committed(acts: list[Act], *, before: list[str]) -> tuple[list[str] | None, list[str] | None]:
    """What a lone writer sees after these acts in one superstep, and what the next superstep finds."""
    seen: list[Any] = []

    @executor
    async def first(message: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("log", before)
        await ctx.send_message(message)

    @executor
    async def second(message: str, ctx: WorkflowContext[str]) -> None:
        for act in acts:
            act(ctx.state)
        seen.append(ctx.get_state("log"))
        await ctx.send_message(message)

    @executor
    async def third(_: str, ctx: WorkflowContext[str]) -> None:
        seen.append(ctx.get_state("log"))

    builder = WorkflowBuilder(
        start_executor=first,
        reducers={"log": lambda present, update: present + update},
        checkpoint_storage=InMemoryCheckpointStorage(),
    )
    await builder.add_chain([first, second, third]).build().run("go")
    return seen[0], seen[1]


ACTS: dict[str, Act] = {"x": add(["x"]), "y": add(["y"]), "erase": erase}


@pytest.mark.parametrize("names", [names for size in (1, 2, 3) for names in permutations(ACTS, size)], ids="-".join)
async def test_what_a_lone_writer_of_a_reduced_key_sees_is_what_is_committed(names: tuple[str, ...]) -> None:
    seen, committed = await seen_and_committed([ACTS[name] for name in names], before=["old"])
    expected: list[str] = ["old"]
    for name in names:
        expected = [] if name == "erase" else [*expected, name]
    assert (seen or []) == expected
    assert (committed or []) == expected
