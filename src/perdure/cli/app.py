"""The frame of every command: its common options, the store or program it works on, and exit codes."""

import asyncio
import functools
import importlib
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
from perdure.hosting import Host
from perdure.storage import StoreStorage, open_storage

OK, ERROR, USAGE, NOT_FOUND, FAILED, WAITING, STOPPED, BUSY, DAMAGED = range(9)
TIMEOUT, INTERRUPTED = 124, 130

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


_APP = {
    "app": (
        Annotated[str | None, typer.Option("--app", help="Your host, as module:name. This imports your code.")],
        None,
    )
}


@dataclass(frozen=True, slots=True)
class Context:
    """The storage that a command works on, where its output goes, and the host of the program that `--app` names."""

    storage: StoreStorage
    output: Output
    host: Host | None = None
    tenant: str | None = None


def command(
    group: typer.Typer, name: str, *, writes: bool = False, executes: bool = False
) -> Callable[[Callable[Concatenate[Context, P], Awaitable[int | None]]], Callable[..., None]]:
    """Add an async function as a command with the common options. It returns its exit code; None is 0.

    The store is opened read-only unless the command `writes`. One that `executes` also takes `--app`.
    """
    options = _COMMON | (_APP if executes else {})

    def add(function: Callable[Concatenate[Context, P], Awaitable[int | None]]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            common = {option: given.pop(option) for option in options}
            raise typer.Exit(_run(function, common, given, writes=writes))

        own = list(inspect.signature(function).parameters.values())[1:]
        shared = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for option, (annotation, default) in options.items()
        ]
        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        del run.__wrapped__  # its signature is another one
        run.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*keyword, *shared)}
        group.command(name)(run)
        return run

    return add


def _run(
    function: Callable[..., Awaitable[int | None]], common: dict[str, Any], given: dict[str, Any], *, writes: bool
) -> int:
    fields = tuple(each.strip() for each in (common["fields"] or "").split(",") if each.strip())
    output = Output(common["output"], fields)

    async def call() -> int | None:
        if common.get("app"):
            if common["store"] or common["tenant"]:
                refuse("give --app or a store: the host of a program has its own")
            host = _load_host(common["app"])
            async with host.storage:
                return await function(Context(host.storage, output, host), **given)
        # An argument `source` is a store, too.
        named, tenant = given.get("source") or common["store"], common["tenant"]
        async with open_chosen(named, read_only=not writes) as storage:
            chosen = storage.tenant(tenant) if tenant else storage
            return await function(Context(chosen, output, tenant=tenant), **given)

    try:
        return asyncio.run(call()) or OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has enough. Python must not flush into it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (WorkflowException, ValueError, OSError) as error:
        code, text = _failure(error)
        output.note(f"error: {text}")
        return code


def _failure(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message of an error."""
    match error:
        case RunNotFoundError():
            return NOT_FOUND, f"there is no run {error.run_id!r} here; `perdure runs` lists the runs of the store"
        case CheckpointNotFoundError() | UnknownRequestError():
            return NOT_FOUND, str(error)
        case RunBusyError():
            return BUSY, str(error)
        case CheckpointDamagedError() | BlobDamagedError():
            return DAMAGED, str(error)
        case _:
            return ERROR, str(error) or type(error).__name__


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


def _load_host(name: str) -> Host:
    """Import the program that `--app` names. Its host is an attribute, or returned by a function."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        refuse(f"{name!r} names no host; write --app module:host")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module_name)  # noqa: TID251 - a person has named it on the command line
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        refuse(f"there is no module {error.name!r} here or among the installed ones")
    for each in attribute.split("."):
        found = getattr(found, each, None)
    if callable(found):
        found = found()
    if not isinstance(found, Host):
        refuse(f"{name!r} is a {type(found).__name__}, not a perdure.Host or a function that returns one")
    return found


def open_chosen(given: str | None, *, read_only: bool, must_exist: bool = True) -> StoreStorage:
    """Open the store that the option, the environment or pyproject.toml names."""
    named = given or os.environ.get("PERDURE_STORE") or _configured()
    if named is None:
        refuse("no store is named; give -s URL, or set PERDURE_STORE, or [tool.perdure] store in pyproject.toml")
    url = _url(named)
    path = Path(url.partition(":")[2].partition("?")[0].removeprefix("//"))
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///").partition("?")[0])
    if must_exist and url.startswith(("sqlite:", "file:")) and not path.exists():
        refuse(f"there is no store at {str(path)!r}; give the path of an existing one", code=ERROR)
    return open_storage(url, read_only=read_only)


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
