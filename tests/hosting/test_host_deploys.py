"""Two versions of a program on one store: what one can't read it leaves to the other."""

from __future__ import annotations

import logging
from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosting.flows import row, shout, until
from tests.hosting.places import opened
from tests.workflow.nodes import node

from perdure import Host, InMemoryCheckpointStorage, RunFailedError, UntrustedTypeError, Workflow, WorkflowBuilder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.workflow.nodes import Context


def order_of(*fields: str) -> Any:
    """The class of orders as a version of the program has it."""
    made = make_dataclass("Order", [(name, int) for name in fields])
    made.__module__ = __name__
    return made


OLD, NEW = order_of("a"), order_of("a", "b")


def by_message(order: Any) -> Workflow:
    """Sends an order on."""

    async def send(_: Any, ctx: Context) -> None:
        await ctx.send_message(order(*range(1, 1 + len(order.__dataclass_fields__))))

    async def tell(message: Any, ctx: Context) -> None:
        await ctx.yield_output(str(message))

    nodes = [node("send", send, sends=order), node("tell", tell, takes=order)]
    return WorkflowBuilder(name="w", start_executor=nodes[0]).add_chain(nodes).build()


def by_state(order: Any) -> Workflow:
    """Keeps an order in the state."""

    async def keep(message: Any, ctx: Context) -> None:
        ctx.set_state("order", order(*range(1, 1 + len(order.__dataclass_fields__))))
        await ctx.send_message(message)

    async def tell(_: Any, ctx: Context) -> None:
        await ctx.yield_output(str(ctx.get_state("order")))

    nodes = [node("keep", keep, sends=str | order, takes=str | order), node("tell", tell)]
    return WorkflowBuilder(name="w", start_executor=nodes[0]).add_chain(nodes).build()


@pytest.mark.parametrize("build", [by_message, by_state])
async def test_a_run_that_only_another_version_can_read_is_left_to_that_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, build: Callable[[Any], Workflow]
) -> None:
    async with opened("sqlite", tmp_path) as storage:
        stream = build(NEW).run("hi", stream=True, run_id="r", checkpoint_storage=storage)
        async for event in stream:
            if event.type == "superstep_completed":
                break
        await stream.aclose()
    async with opened("sqlite", tmp_path) as storage:
        older = Host(storage)
        older.register(lambda: build(OLD))
        older.register(row("other", shout))
        with caplog.at_level(logging.WARNING):
            async with older:
                for number in range(3):
                    await (await older.start("other", number)).result()
                info = await until(older, "r", "blocked")
        warnings = [record.getMessage() for record in caplog.records if "can't be loaded" in record.getMessage()]
        assert len(warnings) == 1
        assert info.blocked is not None
        assert [*info.blocked] == [older.host_id]
        assert info.attempts == 0
    async with opened("sqlite", tmp_path) as storage:
        newer = Host(storage)
        newer.register(lambda: build(NEW))
        async with newer:
            assert (await (await newer.run("r")).result()).get_outputs() == ["Order(a=1, b=2)"]


async def test_a_handler_that_cannot_decode_its_own_data_fails_the_run() -> None:
    async def read_elsewhere(*_: object) -> None:
        raise UntrustedTypeError(type_name="elsewhere.Thing", path="a thing")

    host = Host(InMemoryCheckpointStorage())
    host.register(row("w", read_elsewhere))
    async with host:
        run = await host.start("w", "hi")
        with pytest.raises(RunFailedError, match="UntrustedTypeError"):
            await run.result()
