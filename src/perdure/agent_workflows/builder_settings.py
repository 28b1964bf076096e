"""The part of the builder that is about the workflow as a whole: its name, its stores, its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from perdure import LatestOnly
from perdure.agent_workflows.definition import Conversation, Iterations
from perdure.agent_workflows.stores import given_store, in_memory_store, json_store, sqlite_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from perdure import CheckpointStorage, SupportsChatGetResponse
    from perdure.agent_workflows.stores import Keep
    from perdure.threads import SessionStore


class SettingsBuilder:
    """Keeps what is said of the workflow as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self._name: str | None = None
        self._description: str | None = None
        self._version: str | None = None
        self._is_checkpointed = False
        self._storage: CheckpointStorage | None = None
        self._session_store: SessionStore | None = None
        self._conversation = Conversation()
        self._iterations = Iterations()
        self._timeout: timedelta | None = None
        self._client: SupportsChatGetResponse | None = None
        self._tools: dict[str, Any] = {}

    def with_name(self, name: str) -> Self:
        """Name the workflow. Its executions and definitions are found in the store by this name."""
        self._name = name
        return self

    def with_description(self, description: str) -> Self:
        """Say what the workflow does, to people and to models that may use it as a tool."""
        self._description = description
        return self

    def with_version(self, version: str) -> Self:
        """Say which version of the workflow this is. It is written down with the definition, and decides nothing."""
        self._version = version
        return self

    def with_checkpointing(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - reads as in the seed's builder
        """Keep executions in the workflow store, so that they can be resumed. Without this only definitions are."""
        self._is_checkpointed = enabled
        return self

    def with_in_memory_workflow_store(self, retention: Keep = LatestOnly()) -> Self:  # noqa: B008 - a frozen value
        """Keep definitions and checkpoints in this process: for tests, and for runs that need not outlast it."""
        return self.with_workflow_store(in_memory_store(retention))

    def with_json_workflow_store(
        self,
        root_directory: str | os.PathLike[str],
        retention: Keep = LatestOnly(),  # noqa: B008 - a frozen value
    ) -> Self:
        """Keep definitions and checkpoints in a directory of readable files."""
        return self.with_workflow_store(json_store(root_directory, retention))

    def with_sqlite_workflow_store(
        self,
        path: str | os.PathLike[str],
        retention: Keep = LatestOnly(),  # noqa: B008 - a frozen value
    ) -> Self:
        """Keep definitions and checkpoints in one SQLite file."""
        return self.with_workflow_store(sqlite_store(path, retention))

    def with_workflow_store(self, storage: CheckpointStorage | str) -> Self:
        """Keep definitions and checkpoints in this storage, or in that of a URL; what it keeps is its own affair.

        An object of your own with the six methods of a storage keeps checkpoints, and no definitions.
        """
        self._storage = given_store(storage)
        return self

    def with_session_store(self, store: SessionStore) -> Self:
        """Keep conversations here, if there is a conversation policy. It is no part of the workflow store."""
        self._session_store = store
        return self

    def with_in_memory_session_store(self) -> Self:
        """Keep conversations in this process."""
        from perdure.threads import InMemorySessionStore  # noqa: PLC0415 - loaded where there are conversations

        return self.with_session_store(InMemorySessionStore())

    def with_json_session_store(self, root_directory: str | os.PathLike[str]) -> Self:
        """Keep conversations in a directory of readable files."""
        from perdure.threads import FileSessionStore  # noqa: PLC0415 - loaded where there are conversations

        return self.with_session_store(FileSessionStore(root_directory))

    def with_sqlite_session_store(self, path: str | os.PathLike[str]) -> Self:
        """Keep conversations in one SQLite file."""
        from perdure.threads import SqliteSessionStore  # noqa: PLC0415 - loaded where there are conversations

        return self.with_session_store(SqliteSessionStore(path))

    def with_conversation(self, policy: Conversation) -> Self:
        """Say which threads the nodes speak in: one of `ConversationPolicies`."""
        self._conversation = policy
        return self

    def with_chat_client(self, client: SupportsChatGetResponse) -> Self:
        """Make the agents that are given as `AgentConfig`s with this client."""
        self._client = client
        return self

    def with_tools(self, tools: Mapping[str, Any]) -> Self:
        """Give the tools that `AgentConfig`s name."""
        self._tools = {**self._tools, **tools}
        return self

    def with_max_iterations(
        self,
        limit: int,
        *,
        then: Literal["fail", "leave"] = "fail",
        converges: bool = True,
        ignored_keys: Iterable[str] = (),
        change_aware: bool = False,
    ) -> Self:
        """Limit the passes of loops. At the limit the execution fails, or the loop is left.

        With `converges` a loop is left when a pass has changed no output, `ignored_keys` aside. With `change_aware` a
        node whose task is the same as in the pass before does not act again.
        """
        self._iterations = Iterations(limit, then, converges, frozenset(ignored_keys), change_aware)
        return self

    def with_timeout(self, timeout: timedelta) -> Self:
        """Limit the time of an execution, waiting for people included. It is cancelled then, and can be resumed."""
        self._timeout = timeout
        return self
