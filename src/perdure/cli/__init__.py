"""The `perdure` command: look at a store and act on its runs. It needs the extra `perdure[cli]`."""
# pyright: reportUnusedImport=false

import sys


def main() -> None:
    """Run the command, the script entry of the package. Without its extra, say what to install."""
    try:
        # Optional, so imported on first use.
        import rich  # noqa: F401, PLC0415
        import typer  # noqa: F401, PLC0415
    except ImportError:
        sys.exit("the perdure command needs typer and rich: pip install 'perdure[cli]'")
    from perdure.cli import checkpoints, inspect, requests, runs, store  # noqa: F401, PLC0415 - they add their commands
    from perdure.cli.app import app  # noqa: PLC0415

    app()
