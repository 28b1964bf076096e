"""Runs the Python of a page of the guide, block after block, as a reader would who types it in.

A block that begins with a comment that is a file name is a program of its own: it is saved under that name and run by
another process. What a block prints must be what the `text` block right after it shows.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_BLOCK = re.compile(
    r"^```python\n(?P<source>.*?)^```\n(?:\s*^```text\n(?P<printed>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
_PROGRAM = re.compile(r"# (?P<name>\w+\.py)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of Python: where it stands, and what it says that it prints."""

    line: int
    source: str
    printed: str

    @property
    def program(self) -> str | None:
        """The file that the block is, if it is one."""
        found = _PROGRAM.match(self.source)
        return None if found is None else found["name"]


def blocks_of(page: Path) -> list[Block]:
    """The Python of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start("source")), found["source"], found["printed"] or "")
        for found in _BLOCK.finditer(text)
    ]


async def run_here(block: Block, module: ModuleType, page: str) -> str:
    """Run a block among the names of those before it; what it prints."""
    source = "\n" * block.line + block.source
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    told = io.StringIO()
    with redirect_stdout(told):
        outcome = eval(code, module.__dict__)
        if inspect.isawaitable(outcome):
            await outcome
    return told.getvalue()


async def run_there(block: Block, name: str) -> str:
    """Save a program and run it in a process of its own; what it prints."""
    Path(name).write_text(block.source, encoding="utf-8")  # noqa: ASYNC240 - nothing else runs in this loop
    command = [sys.executable, "-W", "error", name]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


async def run_page(page: Path) -> None:
    """Run every block of a page. Raises AssertionError if one does not print what the page shows."""
    module = ModuleType("guide")
    sys.modules["guide"] = module
    for block in blocks_of(page):
        program = block.program
        printed = await (run_there(block, program) if program else run_here(block, module, str(page)))
        assert printed == block.printed, f"{page.name}, line {block.line}, prints:\n{printed}"


if __name__ == "__main__":
    asyncio.run(run_page(Path(sys.argv[1])))
