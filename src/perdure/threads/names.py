"""How a thread is called in the store: a run of its own, under the name of its session."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from perdure.errors import WorkflowCheckpointException
from perdure.storage import RUN_ID_LENGTH_MAX, require_run_id
from perdure.threads.errors import ThreadNameError

_SESSION = "session "
_ESCAPED = {"%": "%25", ":": "%3A", "/": "%2F", "\\": "%5C"}
"""What separates the two ids must not be in them, and an id is never a path."""

TENANT = "perdure:sessions"
"""What session stores keep is in a tenant of its own, so that runs on the same place are left alone."""


def tenant_name(tenant: str | None) -> str:
    """The tenant of a store in which the sessions of a user's tenant are."""
    return TENANT if tenant is None else f"{TENANT}:{tenant}"


def session_of(workflow_name: str) -> str:
    """The session whose threads are runs of that name."""
    return workflow_name.removeprefix(_SESSION)


def session_name(session_id: str) -> str:
    """The name that all threads of a session have as runs."""
    if not session_id:
        raise ThreadNameError(session_id, "", reason="a session id can't be empty; give one")
    return f"{_SESSION}{session_id}"


@dataclass(frozen=True)
class ThreadName:
    """One thread of one session."""

    session_id: str
    thread_id: str

    def __post_init__(self) -> None:
        for kind, value in (("session", self.session_id), ("thread", self.thread_id)):
            if not value:
                raise self._refused(f"a {kind} id can't be empty; give one")
        if len(self.run_id) > RUN_ID_LENGTH_MAX:
            raise self._refused(
                f"session id {self.session_id[:40]!r}... and thread id {self.thread_id[:40]!r}... have together "
                f"{len(self.run_id)} characters, where %, :, / and \\ count as three, more than {RUN_ID_LENGTH_MAX}; "
                "shorten them"
            )
        try:
            require_run_id(self.run_id)
        except WorkflowCheckpointException as error:
            reason = f"session id {self.session_id!r} or thread id {self.thread_id!r} has control characters in it"
            raise self._refused(f"{reason}; leave them out") from error

    @cached_property
    def run_id(self) -> str:
        """The run that the thread is: another one for each pair of ids."""
        return f"{_escaped(self.session_id)}:{_escaped(self.thread_id)}"

    @property
    def workflow_name(self) -> str:
        """What the threads of its session have in common."""
        return session_name(self.session_id)

    @classmethod
    def of_run(cls, run_id: str, *, workflow_name: str) -> ThreadName:
        """The thread that a run is."""
        return cls(session_of(workflow_name), _unescaped(run_id.partition(":")[2]))

    def sibling(self, thread_id: str) -> ThreadName:
        """Another thread of the session."""
        return ThreadName(self.session_id, thread_id)

    def _refused(self, reason: str) -> ThreadNameError:
        return ThreadNameError(self.session_id, self.thread_id, reason=reason)


def _escaped(value: str) -> str:
    return "".join([_ESCAPED.get(character, character) for character in value])


def _unescaped(value: str) -> str:
    # What stands for the percent sign last: it may be part of another one's text.
    for character, code in reversed(_ESCAPED.items()):
        value = value.replace(code, character)
    return value
