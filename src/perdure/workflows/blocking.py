"""`run_sync`: the blocking entry, for scripts and notebooks without an event loop."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure.engine import ABSENT
from perdure.workflows.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from perdure.workflows.result import WorkflowRunResult

T = TypeVar("T")


@overload
def run_sync(work: Workflow, message: Any = ABSENT, **options: Any) -> WorkflowRunResult: ...
@overload
def run_sync(work: Awaitable[T]) -> T: ...
def run_sync(work: Workflow | Awaitable[Any], message: Any = ABSENT, **options: Any) -> Any:
    """Run a workflow, or await anything else, and wait for its end here.

    `run_sync(workflow, message, ...)` takes what `workflow.run` takes; `run_sync(storage.requests())` gives what the
    awaitable gives. Each call has an event loop of its own, and storages may be used by one after the other.

    Raises RuntimeError if an event loop runs in this thread already: there, `await` instead.
    """
    _require_no_loop(work)
    if not isinstance(work, Workflow):
        if message is not ABSENT or options:
            raise _refused(work, TypeError("a message and options go with a workflow; what is awaited has its own"))
        return asyncio.run(_awaited(work))
    if options.pop("stream", False):
        raise TypeError("a stream is read as it is told, so nobody can wait for it here; leave stream=True out")
    return asyncio.run(_run(work, message, options))


async def _run(workflow: Workflow, message: Any, options: dict[str, Any]) -> WorkflowRunResult:
    return await workflow.run(message, stream=False, **options)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _require_no_loop(work: object) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    instead = "await workflow.run(...)" if isinstance(work, Workflow) else "await ..."
    raise _refused(
        work,
        RuntimeError(
            f"an event loop is running here, and run_sync would hold it up; write `{instead}` instead, as notebooks "
            "and async functions can"
        ),
    )


def _refused(work: object, error: Exception) -> Exception:
    """The error, with nothing left that would complain of not having been awaited."""
    if inspect.iscoroutine(work):
        work.close()
    return error
