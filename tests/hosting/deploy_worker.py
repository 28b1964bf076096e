"""A host of one version of a program, in a process of its own.

Its arguments are those of a place, and the name of the version. It serves the workflow `w`, one run at a time. Each
version has an executor that the others lack, so it can't load their runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

from tests.hosting.chaos.place import Place
from tests.hosting.porter import pass_gate
from tests.workflow.nodes import node

from perdure import Host, Workflow, WorkflowBuilder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.workflow.nodes import Context


def version(name: str, gate: Path) -> Callable[[], Workflow]:
    """The factory of a version of the workflow `w`."""

    async def work(message: Any, ctx: Context) -> None:
        await pass_gate(gate, (os.getpid(), name, message))
        await ctx.yield_output(f"{message} by {name}")

    return lambda: WorkflowBuilder(name="w", start_executor=node(f"work of {name}", work)).build()


if __name__ == "__main__":
    *place, name = sys.argv[1:]
    at = Place.of(*place)
    host = Host(at.storage(), max_runs=1)
    host.register(version(name, at.directory / "gate"))
    asyncio.run(host.serve())
