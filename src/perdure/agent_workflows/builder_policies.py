"""Short names for what a builder is told: which conversations are kept, who stands in for a node that has failed."""

from __future__ import annotations

from perdure.agent_workflows.definition import Conversation, OnError


class ConversationPolicies:
    """Where what agents say is kept, beside checkpoints. All but `none` need a session store."""

    @staticmethod
    def none() -> Conversation:
        """Nowhere."""
        return Conversation()

    @staticmethod
    def shared_thread(*, session_id: str | None = None, thread_id: str | None = None) -> Conversation:
        """All nodes speak in one thread, and each hears what was said before it."""
        return Conversation("shared", session_id=session_id, thread_id=thread_id)

    @staticmethod
    def thread_per_agent(*, session_id: str | None = None, thread_prefix: str | None = None) -> Conversation:
        """Each node has a thread of its own, in which it hears what it has said itself."""
        return Conversation("per_agent", session_id=session_id, thread_prefix=thread_prefix)

    @staticmethod
    def fork_thread_per_agent(
        *, session_id: str | None = None, root_thread_id: str | None = None, thread_prefix: str | None = None
    ) -> Conversation:
        """A root thread has the request, and each node has a fork of it."""
        return Conversation(
            "fork_per_agent", session_id=session_id, thread_id=root_thread_id, thread_prefix=thread_prefix
        )


def fallback(node_id: str) -> OnError:
    """What `on_error` says to let another node stand in: it gets the same task, and the error."""
    return OnError("fallback", node_id)
