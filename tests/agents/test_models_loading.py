"""What is loaded for other providers and for MCP servers, and when."""

from __future__ import annotations

import subprocess
import sys

NAMED = (
    "import sys, perdure.models, perdure.mcp; print([name for name in ('pydantic_ai', 'mcp') if name in sys.modules])"
)
MISSING = """
import asyncio, sys
sys.modules.update({"pydantic_ai": None, "mcp": None})
from perdure.mcp import MCPStdioTool
from perdure.models import ModelClient
for use in (lambda: ModelClient("test"), lambda: asyncio.run(MCPStdioTool("a", "b").connect())):
    try:
        use()
    except ImportError as error:
        print(error)
"""


def told(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_the_heavy_libraries_are_not_loaded_by_whoever_only_names_a_client_or_a_server() -> None:
    assert told(NAMED) == "[]\n"


def test_a_library_that_is_not_installed_is_told_with_the_extra_that_brings_it() -> None:
    first, second = told(MISSING).splitlines()
    assert first.endswith("pip install 'perdure[models]'")
    assert second.endswith("pip install 'perdure[mcp]'")
