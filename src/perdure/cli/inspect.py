"""The command that opens the inspector in the browser."""

from typing import Annotated

import typer

from perdure.cli.app import Context, app, command, refuse


@command(app, "inspect", writes=True)
async def inspect(
    context: Context,
    *,
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="The address to listen on. Others than this machine's need --token.")] = (
        "127.0.0.1"
    ),
    token: Annotated[str | None, typer.Option(help="The secret that pages need, instead of a random one.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Leave out everything that changes a run.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Open the inspector: look at runs, answer their requests, rewind them, in a browser. Ctrl-C ends it."""
    try:
        from perdure.inspector import serve  # noqa: PLC0415 - optional
    except ImportError:
        refuse("the inspector needs starlette and uvicorn: pip install 'perdure[inspector]'", code=1)
    await serve(
        context.storage,
        host=host,
        port=port,
        token=token,
        read_only=read_only,
        opens_browser=not no_browser,
        announce=lambda address: print(f"The inspector is at {address}", flush=True),  # noqa: T201
    )
