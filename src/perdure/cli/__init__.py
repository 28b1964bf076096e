"""The `perdure` command: look at a store and act on its runs. It needs the extra `perdure[cli]`."""
# pyright: reportUnusedImport=false

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the command, the script entry of the package. Without its extra, say what to install."""
    try:
        # Optional, so imported on first use.
        import rich  # noqa: F401, PLC0415
        import typer  # noqa: F401, PLC0415
    except ImportError:
        sys.exit("the perdure command needs typer and rich: pip install 'perdure[cli]'")
    load()()


def load() -> typer.Typer:
    """Return the command with all its subcommands."""
    # They add their commands.
    from perdure.cli import checkpoints, doctor, execution, graph, inspect, requests, runs, store, transfers  # noqa: F401, PLC0415
    from perdure.cli.app import app  # noqa: PLC0415

    return app
