"""Open storages by URL. In one process, equal places with equal options are one storage."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from perdure.errors import WorkflowCheckpointException
from perdure.storage.port import require_durability
from perdure.storage.storages import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    PostgresCheckpointStorage,
    SqliteCheckpointStorage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.records import Retention
    from perdure.storage.checkpoint_storage import CheckpointStorage
    from perdure.storage.port import Durability
    from perdure.storage.storages import StoreStorage

_POSSIBLE = (
    "'sqlite:///runs.db', 'sqlite:////var/lib/runs.db', 'file:runs', 'file:///var/lib/runs', 'memory:', 'memory:name' "
    "or 'postgresql://user@host/database'"
)

Key: TypeAlias = tuple[str, str, str, "Retention | None"]
"""A kind of storage, its place, durability and retention."""

_DURABILITY = "durability"


class _Opened:
    """The storages of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.storages: dict[Key, StoreStorage] = {}

    def get(self, key: Key, make: Callable[[], StoreStorage]) -> StoreStorage:
        with self.lock:
            if key not in self.storages:
                self.storages[key] = make()
            return self.storages[key]


_opened = _Opened()


def open_storage(url: str, *, retention: Retention | None = None) -> StoreStorage:
    """Return the storage of a URL, the same one each time. It is opened when it is first used.

    It keeps everything, unless a `retention` is given. For a storage in memory the first retention counts. A relative
    path starts at the current directory of the process. Raises ValueError for anything else.
    """
    # A URL may contain a password, so errors repeat only what is before the colon.
    scheme, colon, rest = url.partition(":")
    match scheme.lower() if colon else "":
        case "sqlite":
            rest, durability = _with_durability("sqlite", rest)
            path = _sqlite_path(rest)
            make = functools.partial(SqliteCheckpointStorage, path, durability=durability, retention=retention)
            return _opened.get(("sqlite", str(path.resolve()), durability, retention), make)
        case "file":
            rest, durability = _with_durability("file", rest)
            path = _directory(rest)
            make = functools.partial(FileCheckpointStorage, path, durability=durability, retention=retention)
            return _opened.get(("file", str(path.resolve()), durability, retention), make)
        case "memory":
            make = functools.partial(InMemoryCheckpointStorage, retention=retention)
            return _opened.get(("memory", _memory_name(rest), "", None), make)
        case "postgresql" | "postgres":
            dsn, durability = _without_durability(_dsn(rest))
            key = ("postgresql", dsn, durability, retention)
            return _opened.get(key, lambda: _postgres(dsn, durability, retention))
        case _:
            reason = f"no storage has the scheme {scheme!r}" if _is_scheme(scheme, colon) else "it has no scheme"
            raise ValueError(f"this is not the URL of a storage, {reason}; give {_POSSIBLE}")


def given_storage(given: CheckpointStorage | str | None) -> CheckpointStorage | None:
    """Return a storage that was given as an object or as a URL."""
    return open_storage(given) if isinstance(given, str) else given


def _is_scheme(scheme: str, colon: str) -> bool:
    return bool(colon) and scheme.isalpha() and scheme.isascii()


def _with_durability(scheme: str, rest: str) -> tuple[str, Durability]:
    """Split a URL into the text before its parameters and the durability, the only parameter."""
    before, mark, parameters = rest.partition("?")
    if not mark:
        return rest, "commit"
    name, _, word = parameters.partition("=")
    if name != _DURABILITY:
        raise ValueError(
            f"a {scheme} URL has no parameters but durability, as in '?durability=os': give other options to the "
            "storage's class, and write '?' in a path as '%3F'"
        )
    return before, require_durability(unquote(word))


def _without_durability(dsn: str) -> tuple[str, Durability]:
    """Split a DSN into the DSN without our own parameter, and the durability."""
    before, mark, parameters = dsn.partition("?")
    given = parameters.split("&") if mark else []
    words = [each.removeprefix(f"{_DURABILITY}=") for each in given if each.startswith(f"{_DURABILITY}=")]
    others = "&".join(each for each in given if not each.startswith(f"{_DURABILITY}="))
    # The last one counts, as in libpq.
    return f"{before}?{others}" if others else before, require_durability(unquote(words[-1]) if words else "commit")


def _sqlite_path(rest: str) -> Path:
    """Return the path after the third slash. It is absolute if it begins with a further one."""
    if not rest.startswith("///"):
        raise ValueError("a SQLite URL has three slashes before its path: give 'sqlite:///runs.db'")
    path = _path("sqlite", rest.removeprefix("///"), instead="'sqlite:///runs.db'")
    if str(path) == ":memory:":
        raise ValueError("a SQLite database in memory ends with its connection: give 'memory:'")
    return path.absolute()


def _directory(rest: str) -> Path:
    if rest.startswith("//") and not rest.startswith("///"):
        raise ValueError(
            "the text after two slashes is a host, but files are on this one: give 'file:runs' for a relative "
            "path or 'file:///var/lib/runs' for an absolute one"
        )
    return _path("file", rest.removeprefix("//"), instead="'file:runs'").absolute()


def _path(scheme: str, text: str, *, instead: str) -> Path:
    _require_bare(scheme, text)
    if not text.strip("/"):
        raise ValueError(f"the {scheme} URL has no path: give one, like {instead}")
    return Path(unquote(text))


def _memory_name(rest: str) -> str:
    _require_bare("memory", rest)
    if "/" in rest:
        raise ValueError("a storage in memory has a name and no path: give 'memory:' or 'memory:name'")
    return unquote(rest)


def _require_bare(scheme: str, text: str) -> None:
    """Refuse parameters and fragments, which would be ignored."""
    if "?" in text or "#" in text:
        raise ValueError(
            f"a {scheme} URL has no parameters and no fragment: give options to the storage's class, and write '?' and "
            "'#' in a path as '%3F' and '%23'"
        )


def _dsn(rest: str) -> str:
    """Return the DSN. The driver knows its parameters."""
    if not rest.startswith("//"):
        raise ValueError("a PostgreSQL URL has two slashes before its host: give 'postgresql://user@host/database'")
    if "#" in rest:
        raise ValueError("a postgresql URL has no fragment: write '#' in it as '%23'")
    return f"postgresql:{rest}"


def _postgres(dsn: str, durability: Durability, retention: Retention | None) -> StoreStorage:
    try:
        return PostgresCheckpointStorage(dsn, durability=durability, retention=retention)
    except WorkflowCheckpointException as error:
        if error.__cause__ is not None:
            # The driver is missing; the URL may be right.
            raise
        raise ValueError(str(error)) from None


def _renew_lock() -> None:
    # The parent's lock may be taken. The stores take care of themselves.
    _opened.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
