"""The program that `tests.warm` starts: it imports libraries, and forks a process for each order. It has no threads."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import json
import os
import runpy
import socket
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
ORDER_SIZE_MAX = 100_000
OURS = "tests"


def main() -> None:
    """Serve until nobody gives orders any more. In a child that was forked: be the program."""
    del sys.path[0]
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        command = served(orders)
    if command:
        be(command)


def served(orders: socket.socket) -> list[str]:
    """Have a process for each order. Returns in each of these, with its command line; here in the end, with none."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, ORDER_SIZE_MAX, 4)
        if not message:
            return []
        order = json.loads(message)
        warm_up(source_of(order["command"]))
        assert threading.active_count() == 1, "what was imported has started a thread"
        gc.freeze()
        if os.fork() == 0:
            keep_or_be_born(*descriptors)
            os.chdir(order["cwd"])
            os.environ.clear()
            os.environ.update(order["env"])
            return order["command"]
        for descriptor in descriptors:
            os.close(descriptor)
        bury()


def source_of(command: list[str]) -> Path:
    """The file that a command line means."""
    return ROOT / Path(*command[1].split(".")).with_suffix(".py") if command[0] == "-m" else Path(command[0])


@functools.cache
def warm_up(source: Path) -> None:
    """Import the libraries that a program of ours needs, at first or second hand, and nothing of our own.

    Programs have types of the same names, and each is to have only its own.
    """
    for node in ast.parse(source.read_bytes()).body:
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        if any(name.split(".")[0] == OURS for name in names):
            for module in filter(Path.exists, (source_of(["-m", name]) for name in names)):
                warm_up(module)
        elif names:
            with contextlib.suppress(ImportError):  # a neighbour of the program, which finds it by itself
                exec(compile(ast.Module([node], []), source, "exec"), {})


def keep_or_be_born(reading: int, writing: int, erring: int, telling: int) -> None:
    """Have a child, which is the program, and tell who it is and how it ends. Returns in the program only."""
    pid = os.fork()
    if pid:
        try:
            for descriptor in (reading, writing, erring):
                os.close(descriptor)
            os.write(telling, f"{pid}\n".encode())
            os.write(telling, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
        finally:
            os._exit(0)
    for number, descriptor in enumerate((reading, writing, erring)):
        os.dup2(descriptor, number)
    for descriptor in (reading, writing, erring, telling):
        os.close(descriptor)


def bury() -> None:
    """Forget those who have told all that there was to tell."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def be(command: list[str]) -> None:
    """Run a program as the interpreter does that was started for it."""
    if command[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(command[0]).parent))
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
