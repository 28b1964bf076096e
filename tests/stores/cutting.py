"""A go-between for a PostgreSQL server that cuts connections at the worst moment: when a transaction is committed."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

Cut: TypeAlias = Literal["before", "after"]
"""Before the server hears of it, or after it has done it and before anybody is told."""

_COMMIT = b"COMMIT\0"


class Cutter:
    """Listens where a client looks for the server, and hands everything on until it is told to cut."""

    def __init__(self, directory: Path, server: Path) -> None:
        self.directory = directory
        self._server = str(server / ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
        self._cut: Cut | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_next(self, cut: Cut) -> None:
        """Cut the connection that commits next."""
        self._cut = cut

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                threading.Thread(target=self._hand_on, args=(client, server), daemon=True).start()
                threading.Thread(target=_hand_back, args=(server, client), daemon=True).start()

    def _hand_on(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                cut = self._cut if _COMMIT in data else None
                if cut is not None:
                    self._cut, self.cuts = None, self.cuts + 1
                    # From here on the client hears nothing any more.
                    client.shutdown(socket.SHUT_WR)
                    if cut == "after":
                        server.sendall(data)
                    break
                server.sendall(data)
            # The server ends the session when it has done what it was told.
            server.shutdown(socket.SHUT_WR)


def _hand_back(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(65536):
            client.sendall(data)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
    client.close()
    server.close()
