"""The frame of every command: its common options, the store it means, and exit codes."""

import asyncio
import functools
import inspect
import os
import sys
import tomllib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, NoReturn, ParamSpec

import typer

from perdure.cli.output import Format, Output
from perdure.errors import (
    BlobDamagedError,
    CheckpointDamagedError,
    CheckpointNotFoundError,
    RunBusyError,
    RunNotFoundError,
    UnknownRequestError,
    WorkflowException,
)
from perdure.storage import StoreStorage, open_storage

OK, ERROR, USAGE, NOT_FOUND, FAILED, WAITING, STOPPED, BUSY, DAMAGED, TIMEOUT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 124

app = typer.Typer(
    name="perdure",
    help="Look at the runs of a store and act on them. Give the store with -s or PERDURE_STORE.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
store_app = typer.Typer(help="Look after the store itself.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(store_app, name="store")

P = ParamSpec("P")

_COMMON: dict[str, tuple[Any, Any]] = {
    "store": (Annotated[str | None, typer.Option("--store", "-s", help="URL or path of the store.")], None),
    "tenant": (Annotated[str | None, typer.Option(help="Look at the data of this tenant.")], None),
    "output": (Annotated[Format, typer.Option("--output", "-o", help="Format of the output.")], "table"),
    "fields": (Annotated[str | None, typer.Option(help="Columns or keys to show, with commas between them.")], None),
}


@dataclass(frozen=True, slots=True)
class Context:
    """The storage that a command works on, and where its output goes."""

    storage: StoreStorage
    output: Output


def command(
    group: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Context, P], Awaitable[int | None]]], Callable[..., None]]:
    """Add an async function as a command with the common options. It returns its exit code; None is 0."""

    def add(function: Callable[Concatenate[Context, P], Awaitable[int | None]]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            common = {option: given.pop(option) for option in _COMMON}
            raise typer.Exit(_run(function, common, given))

        own = list(inspect.signature(function).parameters.values())[1:]
        shared = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for option, (annotation, default) in _COMMON.items()
        ]
        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        del run.__wrapped__  # its signature is another one
        run.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*keyword, *shared)}
        group.command(name)(run)
        return run

    return add


def _run(function: Callable[..., Awaitable[int | None]], common: dict[str, Any], given: dict[str, Any]) -> int:
    fields = tuple(each.strip() for each in (common["fields"] or "").split(",") if each.strip())
    output = Output(common["output"], fields)

    async def call() -> int | None:
        async with open_chosen(common["store"]) as storage:
            chosen = storage.tenant(common["tenant"]) if common["tenant"] else storage
            return await function(Context(chosen, output), **given)

    try:
        return asyncio.run(call()) or OK
    except (RunNotFoundError, CheckpointNotFoundError, UnknownRequestError) as error:
        code, text = NOT_FOUND, str(error)
    except RunBusyError as error:
        code, text = BUSY, str(error)
    except (CheckpointDamagedError, BlobDamagedError) as error:
        code, text = DAMAGED, str(error)
    except BrokenPipeError:
        # The reader of a pipe has enough. Python must not flush into it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (WorkflowException, ValueError, OSError) as error:
        code, text = ERROR, str(error) or type(error).__name__
    output.note(f"error: {text}")
    return code


def refuse(text: str, *, code: int = USAGE) -> NoReturn:
    """End the command with a message about how it was called."""
    Output.note(f"error: {text}")
    raise typer.Exit(code)


def confirm(what: str, *, yes: bool) -> None:
    """Say what a command is about to do, and ask for consent unless `yes` is given."""
    if yes:
        return
    if not sys.stdin.isatty():
        refuse(f"{what}; give --yes if there is no terminal to ask on")
    Output.note(what)
    typer.confirm("Go on?", abort=True, err=True)


def open_chosen(given: str | None) -> StoreStorage:
    """Open the store that the option, the environment or pyproject.toml names. It must exist."""
    named = given or os.environ.get("PERDURE_STORE") or _configured()
    if named is None:
        refuse("no store is named; give -s URL, or set PERDURE_STORE, or [tool.perdure] store in pyproject.toml")
    url = _url(named)
    path = Path(url.partition(":")[2].partition("?")[0].removeprefix("//"))
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///").partition("?")[0])
    if url.startswith(("sqlite:", "file:")) and not path.exists():
        refuse(f"there is no store at {str(path)!r}; give the path of an existing one", code=ERROR)
    return open_storage(url)


def _url(named: str) -> str:
    """Return a URL for the path of a database file or a directory; a URL as it is."""
    if "://" in named or named.startswith(("file:", "memory:")):
        return named
    return f"file:{named}" if Path(named).is_dir() else f"sqlite:///{named}"


def _configured() -> str | None:
    """Return the store of pyproject.toml. It is a path, so that somebody's checkout can't choose a server."""
    try:
        with Path("pyproject.toml").open("rb") as file:
            found: object = tomllib.load(file).get("tool", {}).get("perdure", {}).get("store")
    except (OSError, tomllib.TOMLDecodeError):
        return None
    if found is not None and (not isinstance(found, str) or ":" in found):
        refuse("[tool.perdure] store in pyproject.toml must be a local path; give the URL of a server with -s")
    return found
