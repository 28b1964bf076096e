"""Workflow stores: storages for executions, which are runs, and for numbered versions of definitions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from perdure import (
    FullHistory,
    KeepFor,
    KeepLast,
    LatestOnly,
    Message,
    Retention,
    RunInfo,
    RunNotFoundError,
    open_storage,
)
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError, describe, quoted
from perdure.threads import SessionStore, ThreadConflictError

if TYPE_CHECKING:
    from perdure import CheckpointStorage, PendingRequest

_STORAGE_METHODS: Final = ("save", "load", "list_checkpoints", "delete", "get_latest", "list_checkpoint_ids")
Keep: TypeAlias = LatestOnly | FullHistory | KeepLast | KeepFor | Retention
"""The checkpoints that a workflow store keeps of an execution: the latest, all, the last few, or those of a time."""

LATEST: Final = LatestOnly()
"""The default of a workflow store: enough to resume."""


def retention_of(keep: Keep) -> Retention:
    """Return the retention of a storage. Raises TypeError for any other object."""
    if isinstance(keep, Retention):
        return keep
    if isinstance(keep, (LatestOnly, FullHistory, KeepLast, KeepFor)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        return Retention(checkpoints=keep)
    raise TypeError(
        f"retention is LatestOnly(), FullHistory(), KeepLast(...), KeepFor(...) or a Retention, not {keep!r}"
    )


def open_store(storage: CheckpointStorage | str, retention: Keep | None = None) -> CheckpointStorage:
    """Return a storage, or open the one of a URL, which keeps the latest checkpoint unless `retention` is given.

    Raises TypeError if it is no storage, or if `retention` is given for a storage object.
    """
    if isinstance(storage, str):
        return open_storage(storage, retention=retention_of(LATEST if retention is None else retention))
    missing = [name for name in _STORAGE_METHODS if not callable(getattr(storage, name, None))]
    if missing:
        raise TypeError(f"{describe(storage)} is neither a storage nor the URL of one: it has no {missing[0]}()")
    if retention is not None:
        raise TypeError(
            f"retention is for a storage given as a URL; {describe(storage)} has its own: give the retention to its "
            "class"
        )
    return storage


async def latest_execution(storage: CheckpointStorage, name: str) -> str:
    """Return the execution that was advanced last. Raises ExecutionNotFoundError."""
    checkpoint = await storage.get_latest(workflow_name=name)
    if checkpoint is None:
        raise ExecutionNotFoundError(
            name, None, reason=f"there is no execution of workflow {name!r} in its store: begin one with run(...)"
        )
    return checkpoint.run_id


async def find_run(storage: Any, run_id: str) -> RunInfo | None:
    """Return a run of a storage that ships with perdure; None if there is none, or for a user's own storage."""
    store: Any = getattr(storage, "store", None)
    record = await store.run(run_id) if hasattr(store, "run") else None
    return None if record is None else RunInfo.of(record)


async def require_execution(storage: Any, name: str, execution_id: str) -> None:
    """Raise ExecutionNotFoundError if this workflow has no such execution."""
    if not hasattr(storage, "store"):
        return  # The engine asks a user's own storage, and only about this workflow.
    info = await find_run(storage, execution_id)
    if info is None:
        reason = f"there is no execution {execution_id!r} in the store of workflow {name!r}; executions() lists all"
        raise ExecutionNotFoundError(name, execution_id, reason=reason)
    if info.workflow_name != name:
        raise ExecutionNotFoundError(
            name,
            execution_id,
            reason=f"execution {execution_id!r} is one of workflow {info.workflow_name!r}, not of {name!r}: resume it "
            "with that one",
        )


async def answered_requests(storage: Any, execution_id: str) -> set[str]:
    """Return the ids of the requests whose answers are stored; none if the storage keeps no requests."""
    try:
        asked: list[PendingRequest] = await storage.requests(execution_id) if hasattr(storage, "requests") else []
    except RunNotFoundError:
        return set()
    return {each.request_id for each in asked if each.answered_by is not None}


async def executions_of(storage: Any, name: str) -> list[RunInfo]:
    """Return the executions of a workflow in the order of their start. Raises AgentWorkflowError."""
    store: Any = getattr(storage, "store", None)
    if store is None:
        raise AgentWorkflowError(
            f"a {type(storage).__name__} keeps checkpoints but cannot list executions: use a storage that ships with "
            "perdure"
        )
    return [RunInfo.of(record) for record in await store.runs(workflow_name=name)]


async def origins_of(storage: Any, execution_id: str) -> tuple[str, ...]:
    """Return the executions that one is a fork of, the first one first. A user's own storage knows none."""
    found: list[str] = []
    info = await find_run(storage, execution_id)
    while info is not None and info.parent_checkpoint_id is not None:
        run_id, _, number = info.parent_checkpoint_id.rpartition("@")
        # A checkpoint made by hand is a run of its own.
        found.insert(0, run_id if run_id and number.isdecimal() else info.parent_checkpoint_id)
        info = await find_run(storage, found[0])
    return tuple(found)


_TENANT: Final = "perdure:definitions"
_SESSION: Final = "definitions"


class DefinitionStore:
    """Keep definitions, as `to_config` writes them, in a storage that ships with perdure.

    Each tenant has its own. The retention of the storage does not apply to them.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        """Use the store of `storage`. Raises AgentWorkflowError if it has none."""
        store: Any = getattr(storage, "store", None)
        if not hasattr(store, "tenant"):
            raise AgentWorkflowError(
                f"a {type(storage).__name__} has no store for definitions; use a storage that ships with perdure, or "
                "keep the result of to_config() yourself"
            )
        self._sessions = SessionStore(store, tenant=_TENANT, clock=getattr(storage, "clock", None))

    async def save(self, config: Mapping[str, Any], *, expected: int | None = None) -> int:
        """Save a definition and return its version, from 1. Saving the newest version again changes nothing.

        With `expected` it is saved only if that is the newest version, 0 for none. Raises AgentWorkflowError if it is
        not, or if the definition has no name.
        """
        if not isinstance(config, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise AgentWorkflowError(
                f"a definition is a dict, as to_config() returns it, not a {type(config).__name__}"
            )
        name: object = config.get("name")
        if not isinstance(name, str) or not name:
            raise AgentWorkflowError(f"a definition is stored by its name, and this one has {name!r}; give it one")
        try:
            # Keys keep their order: the order of agents and edges has a meaning.
            text = json.dumps(config, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise AgentWorkflowError(f"a definition is JSON, and this one is not: {error}") from error
        while True:
            newest = await self._newest(name)
            if newest and await self._read(name, newest) == text:
                return newest
            if expected is not None and expected != newest:
                raise AgentWorkflowError(
                    f"the definition of workflow {name!r} is at version {newest}, not at {expected}, and nothing was "
                    f"saved; look at the changes, and save with expected={newest}"
                )
            try:
                return await self._sessions.append(_SESSION, name, Message("user", [text]), expected=newest)
            except ThreadConflictError:
                continue  # Another process saved one, maybe the same.

    async def load(self, name: str, version: int | None = None) -> dict[str, Any]:
        """Load a definition: the newest, or that of a version. Raises AgentWorkflowError."""
        newest = await self._newest(name)
        if not newest:
            known = quoted(await self.names()) or "none"
            raise AgentWorkflowError(f"there is no definition of a workflow {name!r}; there are {known}")
        wanted = newest if version is None else version
        if not 1 <= wanted <= newest:
            raise AgentWorkflowError(
                f"workflow {name!r} has no definition of version {wanted}; its versions are 1 to {newest}"
            )
        text = await self._read(name, wanted)
        if text is None:
            raise AgentWorkflowError(
                f"version {wanted} of the definition of workflow {name!r} was deleted by the retention of the storage; "
                "load another one, or save it again"
            )
        return json.loads(text)

    async def names(self) -> list[str]:
        """List the workflows that have definitions, in the order of their first versions."""
        return [thread.thread_id for thread in await self._sessions.threads(_SESSION)]

    async def versions(self, name: str) -> list[int]:
        """List the versions of a definition, the newest last."""
        return list(range(1, await self._newest(name) + 1))

    async def _newest(self, name: str) -> int:
        thread = await self._sessions.thread(_SESSION, name)
        return 0 if thread is None else thread.sequence

    async def _read(self, name: str, version: int) -> str | None:
        events = await self._sessions.read(_SESSION, name, after=version - 1, until=version)
        return events[0].message.text if events else None
