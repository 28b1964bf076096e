"""A workflow of one executor, and the means to look into its supersteps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perdure import FunctionExecutor, Workflow, WorkflowBuilder, WorkflowContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.clock import Clock

Context: TypeAlias = WorkflowContext[Any, Any]


@dataclass
class Receipt:
    """What a step may give."""

    number: int
    lines: list[str]


def lone(
    do: Callable[[Any, Context], Awaitable[None]],
    *,
    storage: Any = None,
    clock: Clock | None = None,
    record_payloads: bool = False,
    on_checkpoint_error: Literal["stop", "warn"] = "stop",
    **policy: Any,
) -> Workflow:
    """A workflow of one executor that does this with each message."""

    async def process(message: Any, ctx: Context) -> None:
        await do(message, ctx)

    node = FunctionExecutor(process, "node", input=Any, output=Any, workflow_output=Any, **policy)
    return WorkflowBuilder(
        name="w",
        start_executor=node,
        checkpoint_storage=storage,
        clock=clock,
        record_payloads=record_payloads,
        on_checkpoint_error=on_checkpoint_error,
    ).build()


class MendableError(Exception):
    """Raised until the cause is mended."""
