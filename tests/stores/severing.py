"""A go-between for a PostgreSQL server that loses its clients, while the server still takes them for connected."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SOCKET = ".s.PGSQL.5432"


class Severer:
    """Listens where a client looks for the server, and hands everything on."""

    def __init__(self, directory: Path, server: Path) -> None:
        self._server = str(server / _SOCKET)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / _SOCKET))
        self._listener.listen()
        self._clients: list[socket.socket] = []
        self._severed: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_clients(self) -> None:
        """End the connections of all clients. The server does not hear of it."""
        self._severed, self._servers = self._servers, []
        for client in self._clients:
            _shut(client)
        self._clients = []

    def tell_server(self) -> None:
        """Let the server know of those that are lost."""
        for server in self._severed:
            _shut(server)

    def close(self) -> None:
        """Take no further clients, and lose those that are there."""
        _shut(self._listener)
        self.lose_clients()
        self.tell_server()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._clients.append(client)
                self._servers.append(server)
                threading.Thread(target=_hand_on, args=(client, server), daemon=True).start()
                threading.Thread(target=_hand_on, args=(server, client), daemon=True).start()


def _hand_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
