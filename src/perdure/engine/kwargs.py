"""The kwargs of a run: for whom they are, and which of them may be stored."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from perdure.data import frozen
from perdure.errors import EncodeError
from perdure.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.codec import Kept, Values

GLOBAL_KWARGS_KEY = "__global__"
KINDS = ("function_invocation_kwargs", "client_kwargs")

_LIKE_SECRETS = (
    *("apikey", "accesskey", "secretkey", "privatekey", "api_key", "access_key", "secret_key", "private_key"),
    *("token", "secret", "password", "passwd", "credential", "credentials", "authorization"),
)
"""How the names of secrets end."""

logger = logging.getLogger(__name__)


@frozen
class _Entry:
    """One value, and whose it is. Without a key it is all that its target gets."""

    kind: str
    target: str
    key: str | None
    value: Any

    @property
    def name(self) -> str:
        """How a value that is not stored is called."""
        steps = (self.kind, None if self.target == GLOBAL_KWARGS_KEY else self.target, self.key)
        return ".".join(step for step in steps if step is not None)

    def put(self, kwargs: dict[str, Any]) -> None:
        """Set the value in its place."""
        targets: dict[str, Any] = kwargs.setdefault(self.kind, {})
        if self.key is None:
            targets[self.target] = self.value
        else:
            targets.setdefault(self.target, {})[self.key] = self.value


def resolved(given: Mapping[str, Mapping[str, Any] | None], executor_ids: Iterable[str]) -> dict[str, Any]:
    """Kwargs as they are kept: under `__global__`, unless a key is an executor's id; then all are by executor."""
    ids = set(executor_ids)
    return {
        kind: dict(kwargs) if ids & kwargs.keys() else {GLOBAL_KWARGS_KEY: dict(kwargs)}
        for kind in KINDS
        if (kwargs := given.get(kind)) is not None
    }


def for_child(kwargs: Mapping[str, Any], executor_ids: Iterable[str]) -> dict[str, Any]:
    """The kwargs of a run as its sub-workflow sees them."""
    given = {kind: kept.get(GLOBAL_KWARGS_KEY, kept) for kind, kept in kwargs.items()}
    return resolved(given, executor_ids)


def storable(kwargs: Mapping[str, Any], values: Values) -> tuple[Kept | None, tuple[str, ...]]:
    """The kwargs that can be stored, and the names of those that can't or must not be."""
    kept: dict[str, Any] = {}
    withheld: list[str] = []
    for entry in _entries(kwargs):
        if _is_storable(entry.value, values):
            _warn_of_secret(entry)
            entry.put(kept)
        else:
            withheld.append(entry.name)
    return (values.fix(kept, "run kwargs") if kept else None), tuple(withheld)


def completed(stored: Mapping[str, Any], withheld: Iterable[str], live: Mapping[str, Any]) -> dict[str, Any]:
    """The stored kwargs, and of those that were withheld the ones that this process still has."""
    wanted = set(withheld)
    kwargs: dict[str, Any] = {}
    for entry in _entries(stored):
        entry.put(kwargs)
    for entry in _entries(live):
        if entry.name in wanted:
            entry.put(kwargs)
    return kwargs


def missing(withheld: Iterable[str], kwargs: Mapping[str, Any]) -> list[str]:
    """The names that were withheld and are not among these."""
    present = {entry.name for entry in _entries(kwargs)}
    return [name for name in withheld if name not in present]


def _entries(kwargs: Mapping[str, Any]) -> Iterator[_Entry]:
    for kind, by_target in kwargs.items():
        for target, entries in by_target.items():
            if isinstance(entries, dict):
                for key, value in cast("dict[str, Any]", entries).items():
                    yield _Entry(kind, target, key, value)
            else:
                yield _Entry(kind, target, None, entries)


def _warn_of_secret(entry: _Entry) -> None:
    if isinstance(entry.value, str) and entry.key is not None and entry.key.casefold().endswith(_LIKE_SECRETS):
        logger.warning(
            "%s looks like a secret, and is stored in checkpoints as it is; give Secret(...) to keep it out of them",
            entry.name,
        )


def _is_storable(value: object, values: Values) -> bool:
    if isinstance(value, Secret):
        return False
    try:
        kept = values.fix(value, "run kwargs")
    except EncodeError:
        return False
    return kept.refusal is None
