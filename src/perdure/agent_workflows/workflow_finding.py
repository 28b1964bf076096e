"""Finding executions in a workflow store: by id, the latest, all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Host, RunExistsError, RunNotFoundError
from perdure.agent_workflows.definition_store import DefinitionStore
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError

if TYPE_CHECKING:
    from perdure import CheckpointStorage, PendingRequest, RunInfo


async def latest_execution(storage: CheckpointStorage, name: str) -> str:
    """The execution that was advanced last. Raises ExecutionNotFoundError."""
    checkpoint = await storage.get_latest(workflow_name=name)
    if checkpoint is None:
        raise ExecutionNotFoundError(
            name, None, reason=f"there is no execution of workflow {name!r} in its store: begin one with run(...)"
        )
    return checkpoint.run_id


async def found_execution(storage: Any, name: str, execution_id: str) -> None:
    """Raise ExecutionNotFoundError if there is no such execution of this workflow."""
    try:
        desk = Host(storage)
    except TypeError:
        # An object of a user's own is asked by the engine, which looks among the executions of this workflow alone.
        return
    try:
        info = await desk.info(execution_id)
    except RunNotFoundError as error:
        raise ExecutionNotFoundError(
            name,
            execution_id,
            reason=f"there is no execution {execution_id!r} in the store of workflow {name!r}; executions() tells "
            "which there are",
        ) from error
    if info.workflow_name != name:
        raise ExecutionNotFoundError(
            name,
            execution_id,
            reason=f"execution {execution_id!r} is one of workflow {info.workflow_name!r}, not of {name!r}: resume it "
            "with that one",
        )


async def is_begun(storage: Any, name: str, execution_id: str) -> bool:
    """Whether there is such an execution. Raises RunExistsError if it is one of another workflow.

    An object of a user's own knows of none.
    """
    try:
        info = await Host(storage).info(execution_id)
    except (RunNotFoundError, TypeError):
        return False
    if info.workflow_name != name:
        raise RunExistsError(execution_id, workflow_name=info.workflow_name)
    return True


async def requests_of(storage: Any, execution_id: str) -> list[PendingRequest] | None:
    """What an execution asks, also what has an answer that waits; None if the storage knows nothing of requests."""
    if not hasattr(storage, "requests"):
        return None
    try:
        return await storage.requests(execution_id)
    except RunNotFoundError:
        return []


async def executions_of(storage: Any, name: str) -> list[RunInfo]:
    """The executions of a workflow, in the order in which they began. Raises AgentWorkflowError."""
    try:
        desk = Host(storage)
    except TypeError as error:
        raise AgentWorkflowError(
            f"a {type(storage).__name__} keeps checkpoints and knows nothing of executions: use a storage that ships "
            "with perdure"
        ) from error
    return await desk.runs(workflow=name)


def definitions_in(storage: CheckpointStorage) -> DefinitionStore | None:
    """Where definitions are kept beside checkpoints. A user's own object has no such place."""
    try:
        return DefinitionStore(storage)
    except AgentWorkflowError:
        return None
