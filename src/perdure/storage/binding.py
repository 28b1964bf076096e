"""Find the storage that a program names, by object or URL, and bind it to a workflow.

In one process, equal places with equal options are one storage.
"""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from perdure.checkpoint import Source, StoredCheckpoint, WorkflowCheckpoint
from perdure.clock import Clock, DefaultClock, SystemClock, is_same_time
from perdure.codec import Codec, CodedValues, SizeLimits, Trust
from perdure.errors import WorkflowCheckpointException
from perdure.storage.checkpoint_storage import CheckpointStorage
from perdure.storage.port import Durability, Store, require_durability
from perdure.storage.storages import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    PostgresCheckpointStorage,
    SqliteCheckpointStorage,
    StoreStorage,
)
from perdure.storage.user_storage import ForeignStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.records import Retention

_POSSIBLE = (
    "'sqlite:///runs.db', 'sqlite:////var/lib/runs.db', 'file:runs', 'file:///var/lib/runs', 'memory:', 'memory:name' "
    "or 'postgresql://user@host/database'"
)
_DURABILITY = "durability"

_Key: TypeAlias = tuple[str, str, str, "Retention | None", bool]
"""A kind of storage, its place, durability and retention, and whether it is read-only."""

_opened: dict[_Key, StoreStorage] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything that a workflow needs to write and read its checkpoints."""

    storage: object
    store: Store
    codec: Codec
    values: CodedValues
    foreign: ForeignStore | None = None
    """The store, if it is on top of a user's own storage."""

    async def checkpoints(self, run_id: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a run in commit order."""
        if self.foreign is not None:
            return await self.foreign.checkpoints(run_id)
        mine = await self.store.manifests(run_id=run_id)
        return [StoredCheckpoint.of(Source(manifest, self.store.read_blobs, lambda: self.codec)) for manifest in mine]


def given_storage(given: CheckpointStorage | str | None) -> CheckpointStorage | None:
    """Return a storage that was given as an object or as a URL."""
    return open_storage(given) if isinstance(given, str) else given


def clock_on(storage: object, own: Clock | None) -> Clock | None:
    """Return the clock of a run: that of its storage. Raises ValueError if its workflow has another.

    A storage that was given no clock takes that of the first workflow that has one.
    """
    if isinstance(own, DefaultClock):
        own = own.chosen  # a workflow may be given the clock of its storage
    theirs = storage.clock if isinstance(storage, StoreStorage) else None
    if isinstance(theirs, DefaultClock):
        if own is not None and isinstance(theirs.chosen, SystemClock):
            theirs.chosen = own
        theirs = theirs.chosen
    if own is None or theirs is None or is_same_time(own, theirs):
        return own or theirs
    raise ValueError(
        f"the workflow has a {type(own).__name__} and its {type(storage).__name__} another clock, a "
        f"{type(theirs).__name__}, so times would not fit together; give the clock to the storage alone, as in "
        f"{type(storage).__name__}(..., clock=clock): runs and hosts on it use it"
    )


def bind(storage: object, *, workflow_name: str, trust: Trust, is_lenient: bool = False) -> Binding:
    """Bind a storage, or the storage of a URL, to a workflow. Raises TypeError for anything else."""
    if isinstance(storage, str):
        storage = open_storage(storage)
    if isinstance(storage, StoreStorage):
        storage.shared.trust = storage.shared.trust.including(trust)
        codec = Codec(
            storage.allowed.including(trust), allow_pickle=storage.allow_pickle, size_limits=storage.size_limits
        )
        values = CodedValues(codec, is_lenient=is_lenient)
        return Binding(storage, storage.store, codec, values)
    if isinstance(storage, CheckpointStorage):
        codec = Codec(trust, size_limits=SizeLimits())
        store = ForeignStore(storage, workflow_name=workflow_name, codec=codec)
        values = CodedValues(codec, is_lenient=is_lenient)
        return Binding(storage, store, codec, values, foreign=store)
    raise TypeError(
        f"a {type(storage).__name__} is not a checkpoint storage: it needs the methods save, load, list_checkpoints, "
        "delete, get_latest and list_checkpoint_ids"
    )


def open_storage(url: str, *, retention: Retention | None = None, read_only: bool = False) -> StoreStorage:
    """Return the storage of a URL, the same one each time. It is opened when it is first used.

    With `read_only` nothing is created, migrated or written; a storage in memory does not know it.
    It keeps everything, unless a `retention` is given. For a storage in memory the first retention counts. A relative
    path starts at the current directory of the process. Raises ValueError for anything else.
    """
    # A URL may contain a password, so errors repeat only what is before the colon.
    scheme, colon, rest = url.partition(":")
    match scheme.lower() if colon else "":
        case "sqlite" | "file" as kind:
            path, durability = _path(kind, rest)
            storage = SqliteCheckpointStorage if kind == "sqlite" else FileCheckpointStorage
            make = functools.partial(storage, path, durability=durability, retention=retention, read_only=read_only)
            return _open_once((kind, str(path.resolve()), durability, retention, read_only), make)
        case "memory":
            _require_bare("memory", rest)
            if "/" in rest:
                raise ValueError("a storage in memory has a name and no path: give 'memory:' or 'memory:name'")
            make = functools.partial(InMemoryCheckpointStorage, retention=retention)
            return _open_once(("memory", unquote(rest), "", None, False), make)
        case "postgresql" | "postgres":
            dsn, durability = _dsn(rest)
            make = functools.partial(
                _open_postgres, dsn, durability=durability, retention=retention, read_only=read_only
            )
            return _open_once(("postgresql", dsn, durability, retention, read_only), make)
        case _:
            is_scheme = bool(colon) and scheme.isalpha() and scheme.isascii()
            reason = f"no storage has the scheme {scheme!r}" if is_scheme else "it has no scheme"
            raise ValueError(f"this is not the URL of a storage, {reason}; give {_POSSIBLE}")


def _open_once(key: _Key, make: Callable[[], StoreStorage]) -> StoreStorage:
    with _lock:
        if key not in _opened:
            _opened[key] = make()
        return _opened[key]


def _open_postgres(dsn: str, *, durability: Durability, retention: Retention | None, read_only: bool) -> StoreStorage:
    try:
        return PostgresCheckpointStorage(dsn, durability=durability, retention=retention, read_only=read_only)
    except WorkflowCheckpointException as error:
        if error.__cause__ is not None:
            # The driver is missing; the URL may be right.
            raise
        raise ValueError(str(error)) from None


def _path(scheme: str, rest: str) -> tuple[Path, Durability]:
    """Return the path in a URL, and the durability, its only parameter."""
    text, mark, parameters = rest.partition("?")
    name, _, word = parameters.partition("=")
    if mark and name != _DURABILITY:
        _require_bare(scheme, rest)
    if scheme == "sqlite":
        # The path follows the third slash, and is absolute if it begins with a further one.
        if not text.startswith("///"):
            raise ValueError("a SQLite URL has three slashes before its path: give 'sqlite:///runs.db'")
        text, example = text.removeprefix("///"), "'sqlite:///runs.db'"
        if text == ":memory:":
            raise ValueError("a SQLite database in memory ends with its connection: give 'memory:'")
    else:
        if text.startswith("//") and not text.startswith("///"):
            raise ValueError(
                "the text after two slashes is a host, but files are on this one: give 'file:runs' for a relative "
                "path or 'file:///var/lib/runs' for an absolute one"
            )
        text, example = text.removeprefix("//"), "'file:runs'"
    _require_bare(scheme, text)
    if not text.strip("/"):
        raise ValueError(f"the {scheme} URL has no path: give one, like {example}")
    return Path(unquote(text)).absolute(), require_durability(unquote(word) if mark else "commit")


def _require_bare(scheme: str, text: str) -> None:
    """Refuse parameters and fragments, which would be ignored."""
    if "?" in text or "#" in text:
        raise ValueError(
            f"a {scheme} URL has no parameters but durability, and no fragment: give options to the storage's class, "
            "and write '?' and '#' in a path as '%3F' and '%23'"
        )


def _dsn(rest: str) -> tuple[str, Durability]:
    """Return the DSN without our own parameter, and the durability. The driver knows the other parameters."""
    if not rest.startswith("//"):
        raise ValueError("a PostgreSQL URL has two slashes before its host: give 'postgresql://user@host/database'")
    if "#" in rest:
        raise ValueError("a postgresql URL has no fragment: write '#' in it as '%23'")
    before, _, parameters = f"postgresql:{rest}".partition("?")
    given = parameters.split("&") if parameters else []
    others = "&".join(each for each in given if not each.startswith(f"{_DURABILITY}="))
    # The last one counts, as in libpq.
    words = [each.removeprefix(f"{_DURABILITY}=") for each in given if each.startswith(f"{_DURABILITY}=")]
    return f"{before}?{others}" if others else before, require_durability(unquote(words[-1]) if words else "commit")


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - the parent's lock may be taken; the stores take care of themselves
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
