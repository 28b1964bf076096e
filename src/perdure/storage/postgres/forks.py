"""What a forked child has to leave alone: the connections of its parent.

A child inherits the sockets. Were it to close such a connection, the server would end the session of the parent; were
it to keep the socket, the server would not notice the death of the parent. So in the child each of them becomes a way
to nowhere, and what was built on them is kept for good, unused.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from perdure.storage.worker import abandoned


class Connected(Protocol):
    """What has a socket."""

    @property
    def closed(self) -> bool: ...

    def fileno(self) -> int: ...


_connections: weakref.WeakSet[Connected] = weakref.WeakSet()
_lock = threading.Lock()


def left_alone_by_children(connection: Connected) -> None:
    """See to it that no child of this process does harm to the connection."""
    with _lock:
        _connections.add(connection)


def _before_fork() -> None:
    _lock.acquire()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - the child's own, which nobody holds
    _lock = threading.Lock()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in list(_connections):
        if not connection.closed:
            os.dup2(nowhere, connection.fileno(), inheritable=False)
        abandoned.append(connection)
    os.close(nowhere)
    _connections.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
