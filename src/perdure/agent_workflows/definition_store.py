"""Definitions kept beside checkpoints: by the name of the workflow, each that differs from the one before as a version.

They are threads of a session store on the store of the storage, in a tenant of their own: runs and definitions never
see each other, and what holds for appending to a thread (durable when it returns, all or nothing) holds for saving.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from perdure import Message
from perdure.agent_workflows.conditions_values import json_of
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.threads import SessionStore, ThreadConflictError

if TYPE_CHECKING:
    from perdure import CheckpointStorage

_TENANT: Final = "perdure:definitions"
_SESSION: Final = "definitions"


class DefinitionStore:
    """Keeps definitions, as `to_config` writes them, in a storage that ships with perdure.

    Each tenant has its own. They are kept, whatever the storage was told to forget of runs.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        """Raise AgentWorkflowError for a storage that has no store of its own."""
        self._sessions = _sessions(storage)

    async def save(self, config: Mapping[str, Any], *, expected: int | None = None) -> int:
        """Keep a definition; the number of its version, from 1. The same as the newest one is no new version.

        With `expected` it is kept only if that is the number of the newest version, 0 if there is none. Raises
        AgentWorkflowError if it is not, or if this is no definition with a name.
        """
        name, text = _name(config), _text(config)
        while True:
            newest = await self._newest(name)
            if newest and await self._read(name, newest) == text:
                return newest
            if expected is not None and expected != newest:
                raise AgentWorkflowError(
                    f"the definition of workflow {name!r} is at version {newest}, not at {expected}, and nothing was "
                    f"saved; look at what is new, and save with expected={newest}"
                )
            try:
                return await self._sessions.append(_SESSION, name, Message("user", [text]), expected=newest)
            except ThreadConflictError:
                continue  # Somebody else has saved one. It may be the same.

    async def load(self, name: str, version: int | None = None) -> dict[str, Any]:
        """A definition as it was saved, the newest one if no version is named. Raises AgentWorkflowError."""
        newest = await self._newest(name)
        if not newest:
            known = ", ".join(map(repr, await self.names())) or "none"
            raise AgentWorkflowError(f"there is no definition of a workflow {name!r}; there are {known}")
        wanted = newest if version is None else version
        if not 1 <= wanted <= newest:
            raise AgentWorkflowError(
                f"workflow {name!r} has no definition of version {wanted}; its versions are 1 to {newest}"
            )
        text = await self._read(name, wanted)
        if text is None:
            raise AgentWorkflowError(
                f"version {wanted} of the definition of workflow {name!r} was forgotten, as the retention of the "
                "storage says; load another one, or save it again"
            )
        return json.loads(text)

    async def names(self) -> list[str]:
        """The workflows of which there are definitions, in the order in which their first ones were saved."""
        return [thread.thread_id for thread in await self._sessions.threads(_SESSION)]

    async def versions(self, name: str) -> list[int]:
        """The versions of a definition, the newest last; none if there is no such definition."""
        return list(range(1, await self._newest(name) + 1))

    async def _newest(self, name: str) -> int:
        thread = await self._sessions.thread(_SESSION, name)
        return 0 if thread is None else thread.sequence

    async def _read(self, name: str, version: int) -> str | None:
        events = await self._sessions.read(_SESSION, name, after=version - 1, until=version)
        return events[0].message.text if events else None


def _sessions(storage: object) -> SessionStore:
    store: Any = getattr(storage, "store", None)
    if not hasattr(store, "tenant"):
        raise AgentWorkflowError(
            f"a {type(storage).__name__} has no store to keep definitions in; take a storage that ships with perdure, "
            "or keep what to_config() gives where you like"
        )
    return SessionStore(store, tenant=_TENANT, clock=getattr(storage, "clock", None))


def _name(config: object) -> str:
    if not isinstance(config, Mapping):
        raise AgentWorkflowError(f"a definition is a dict, as to_config() gives it, not a {type(config).__name__}")
    name = cast("Mapping[str, Any]", config).get("name")
    if isinstance(name, str) and name:
        return name
    raise AgentWorkflowError(f"a definition is kept by its name, and this one has {name!r}; give it one")


def _text(config: Mapping[str, Any]) -> str:
    """As JSON, in its own order: that of agents and edges means something."""
    try:
        return json.dumps(json_of(config, "the definition"))
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentWorkflowError(f"a definition is JSON, and this one is not: {error}") from error
