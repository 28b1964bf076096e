"""The part of the builder that is about the workflow as a whole: its name, its stores, its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from perdure import LatestOnly
from perdure.agent_workflows.builder_noting import Noting
from perdure.agent_workflows.checking_words import told
from perdure.agent_workflows.definition import Conversation, Iterations
from perdure.agent_workflows.stores import given_store, in_memory_store, json_store, sqlite_store

if TYPE_CHECKING:
    import os
    from datetime import timedelta

    from perdure import CheckpointStorage, Clock, SupportsChatGetResponse
    from perdure.agent_workflows.stores import Keep
    from perdure.threads import SessionStore

_SESSION_STORE: Final = ("append", "messages", "thread", "fork")
"""Methods that every session store has."""


class SettingsBuilder(Noting):
    """Keeps what is said of the workflow as a whole."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock
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
        if not isinstance(cast("object", enabled), bool):
            self._note(f"with_checkpointing takes True or False, not {told(enabled)}")
        self._is_checkpointed = bool(enabled)
        return self

    def with_in_memory_workflow_store(self, retention: Keep = LatestOnly()) -> Self:  # noqa: B008 - a frozen value
        """Keep definitions and checkpoints in this process: for tests, and for runs that need not outlast it."""
        return self.with_workflow_store(in_memory_store(retention, self._clock))

    def with_json_workflow_store(
        self,
        root_directory: str | os.PathLike[str],
        retention: Keep = LatestOnly(),  # noqa: B008 - a frozen value
    ) -> Self:
        """Keep definitions and checkpoints in a directory of readable files."""
        return self.with_workflow_store(json_store(root_directory, retention, self._clock))

    def with_sqlite_workflow_store(
        self,
        path: str | os.PathLike[str],
        retention: Keep = LatestOnly(),  # noqa: B008 - a frozen value
    ) -> Self:
        """Keep definitions and checkpoints in one SQLite file."""
        return self.with_workflow_store(sqlite_store(path, retention, self._clock))

    def with_workflow_store(self, storage: CheckpointStorage | str, retention: Keep | None = None) -> Self:
        """Keep definitions and checkpoints in this storage, or in that of a URL.

        In that of a URL the latest checkpoint of each execution is kept, unless `retention` says otherwise. A storage
        object keeps what it was made to keep. Both have a clock of their own. A storage that you wrote, with the six
        methods, keeps checkpoints, and no definitions.
        """
        try:
            self._storage = given_store(storage, retention)
        except TypeError as error:
            self._note(f"with_workflow_store: {error}")
            self._storage = cast("Any", storage)
        return self

    def with_session_store(self, store: SessionStore) -> Self:
        """Keep conversations here, if there is a conversation policy. It is no part of the workflow store."""
        if not all(callable(getattr(store, name, None)) for name in _SESSION_STORE):
            # A URL may hold a password.
            given = "a text" if isinstance(store, str) else told(store)
            self._note(
                f"with_session_store takes a session store, as SqliteSessionStore(path) of perdure.threads, not {given}"
            )
        self._session_store = store
        return self

    def with_in_memory_session_store(self) -> Self:
        """Keep conversations in this process."""
        from perdure.threads import InMemorySessionStore  # noqa: PLC0415 - loaded where there are conversations

        return self.with_session_store(InMemorySessionStore(clock=self._clock))

    def with_json_session_store(self, root_directory: str | os.PathLike[str]) -> Self:
        """Keep conversations in a directory of readable files."""
        from perdure.threads import FileSessionStore  # noqa: PLC0415 - loaded where there are conversations

        return self.with_session_store(FileSessionStore(root_directory, clock=self._clock))

    def with_sqlite_session_store(self, path: str | os.PathLike[str]) -> Self:
        """Keep conversations in one SQLite file."""
        from perdure.threads import SqliteSessionStore  # noqa: PLC0415 - loaded where there are conversations

        return self.with_session_store(SqliteSessionStore(path, clock=self._clock))

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
        if not isinstance(cast("object", tools), Mapping):
            self._note(f"with_tools takes a dict, by name the tools, not {told(tools)}")
            return self
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
        # A text is a row of letters to Python, and would be taken for as many keys.
        is_several = isinstance(cast("object", ignored_keys), Iterable) and not isinstance(ignored_keys, str)
        keys = frozenset(ignored_keys) if is_several else cast("Any", ignored_keys)
        self._iterations = Iterations(limit, then, converges, keys, change_aware)
        return self

    def with_timeout(self, timeout: timedelta) -> Self:
        """Limit the time of an execution, waiting for people included. It is cancelled then, and can be resumed."""
        self._timeout = timeout
        return self
