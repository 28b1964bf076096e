"""One store of each kind for all tests that only read, filled once for each test process."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.postgres_server import shared_server


@functools.cache
def filled(kind: str) -> str:
    """Return the URL of a store with a run in each state."""
    place = Path(tempfile.mkdtemp(prefix=f"perdure-cli-{kind}-"))
    match kind:
        case "file":
            url = f"file:{place / 'runs'}"
        case "sqlite":
            url = f"sqlite:///{place / 'runs.db'}"
        case _:
            url = shared_server().fresh_database()
    # Another process, so that this one knows none of the types.
    subprocess.run([sys.executable, "-m", "tests.cli.shop", "fill", url], check=True)
    return url
