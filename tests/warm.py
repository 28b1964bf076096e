"""Processes that begin warm: forked from one that has imported the libraries, so that a test can start many.

Each has pipes, signals, an exit code and the interpreter's own end, as any process has. What it has not is a start of
its own, and all have the same seed of hashes. In the soak each is a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import IO, TYPE_CHECKING, TypeAlias

from tests.soak import IS_SOAK

if TYPE_CHECKING:
    from typing import Self

ORDER_SIZE_MAX = 100_000
_NURSERY = Path(__file__).with_name("nursery.py")


class WarmProcess:
    """A process out of the nursery: as much of `subprocess.Popen` as tests need, in text."""

    def __init__(
        self, *command: str, cwd: Path | None, stdin: int | None, stdout: int | None, stderr: int | None
    ) -> None:
        with contextlib.ExitStack() as theirs:
            self.stdin, reading = _stream(stdin, 0, theirs)
            self.stdout, writing = _stream(stdout, 1, theirs)
            self.stderr, erring = _stream(stderr, 2, theirs)
            self._status, telling = _stream(PIPE, 1, theirs)
            order = {"command": command, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ)}
            message = json.dumps(order).encode()
            assert len(message) <= ORDER_SIZE_MAX
            socket.send_fds(_nursery(), [message], [reading, writing, erring, telling])
        self.pid = int(self._told())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended."""
        if self.returncode is None:
            assert self._status is not None
            # Not select(), which knows no more than 1024 files: stores that nobody has closed have many.
            told = select.poll()
            told.register(self._status, select.POLLIN)
            if not told.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._told())
            self._status.close()
        return self.returncode

    def _told(self) -> str:
        """The next that the nursery says of it: who it is, then how it has ended."""
        assert self._status is not None
        line = self._status.readline()
        assert line, "the nursery has ended"
        return line

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002 - as Popen has it
        """What it tells until its end."""
        told = {"out": "", "err": ""}

        def read(name: str, stream: IO[str]) -> None:
            told[name] = stream.read()

        pipes = {"out": self.stdout, "err": self.stderr}
        readers = [
            threading.Thread(target=read, args=(name, pipe)) for name, pipe in pipes.items() if pipe and not pipe.closed
        ]
        for reader in readers:
            reader.start()
        _finish(self.stdin, input or "")
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            for reader in readers:
                reader.join()
            self._close()
        return told["out"], told["err"]

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        _finish(self.stdin, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()


Process: TypeAlias = WarmProcess | subprocess.Popen[str]


def start(
    *command: str,
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Process:
    """Python with this command line: a path or `-m` and a module, then arguments. Streams are those of Popen."""
    if IS_SOAK:
        return subprocess.Popen(
            [sys.executable, *command], cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, text=True
        )
    return WarmProcess(*command, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)


def run(*command: str, cwd: Path | None = None, timeout: float | None = None) -> CompletedProcess[str]:
    """The same, to its end, with what it has printed."""
    with start(*command, cwd=cwd, stdout=PIPE, stderr=PIPE) as process:
        out, err = process.communicate(timeout=timeout)
        return CompletedProcess([*command], process.wait(), out, err)


def _stream(given: int | None, number: int, theirs: contextlib.ExitStack) -> tuple[IO[str] | None, int]:
    """Our end of a stream, if it is a pipe, and the descriptor that the child gets."""
    if given != PIPE:
        return None, number if given is None else given
    reading, writing = os.pipe()
    ours, other = (writing, reading) if number == 0 else (reading, writing)
    theirs.callback(os.close, other)
    return os.fdopen(ours, "w" if number == 0 else "r", encoding="utf-8"), other


def _finish(stream: IO[str] | None, text: str) -> None:
    """Write what is left to say, to somebody who may be gone, and close."""
    if stream is not None and not stream.closed:
        with contextlib.suppress(BrokenPipeError):
            stream.write(text)
            stream.close()


@functools.cache
def _nursery() -> socket.socket:
    """The process that others are forked from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, str(_NURSERY), str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    starter = os.getpid()

    def close() -> None:
        ours.close()
        if os.getpid() == starter:
            process.wait()

    atexit.register(close)
    return ours
