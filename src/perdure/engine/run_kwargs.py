"""The kwargs of a run: their targets, and which of them may be stored."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import EncodeError
from perdure.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.codec import Kept, Values

GLOBAL_KWARGS_KEY = "__global__"
KINDS = ("function_invocation_kwargs", "client_kwargs")

_SECRET_SUFFIXES = (
    *("apikey", "accesskey", "secretkey", "privatekey", "api_key", "access_key", "secret_key", "private_key"),
    *("token", "secret", "password", "passwd", "credential", "credentials", "authorization"),
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One value and its target. Without a key, it is everything that the target gets."""

    kind: str
    target: str
    key: str | None
    value: Any

    @property
    def name(self) -> str:
        """Return the name under which a value that is not stored is remembered."""
        steps = (self.kind, None if self.target == GLOBAL_KWARGS_KEY else self.target, self.key)
        return ".".join(step for step in steps if step is not None)

    def put(self, kwargs: dict[str, Any]) -> None:
        """Set the value in its place."""
        targets: dict[str, Any] = kwargs.setdefault(self.kind, {})
        if self.key is None:
            targets[self.target] = self.value
        else:
            targets.setdefault(self.target, {})[self.key] = self.value


def _entries(kwargs: Mapping[str, Any]) -> Iterator[_Entry]:
    for kind, by_target in kwargs.items():
        for target, entries in by_target.items():
            if isinstance(entries, dict):
                for key, value in cast("dict[str, Any]", entries).items():
                    yield _Entry(kind, target, key, value)
            else:
                yield _Entry(kind, target, None, entries)


def resolved(given: Mapping[str, Mapping[str, Any] | None], executor_ids: Iterable[str]) -> dict[str, Any]:
    """Return kwargs as they are kept: by executor if a key is an executor's id, otherwise under `__global__`."""
    if not given:
        return {}
    ids = set(executor_ids)
    return {
        kind: dict(kwargs) if ids & kwargs.keys() else {GLOBAL_KWARGS_KEY: dict(kwargs)}
        for kind in KINDS
        if (kwargs := given.get(kind)) is not None
    }


def for_child(kwargs: Mapping[str, Any], executor_ids: Iterable[str]) -> dict[str, Any]:
    """Return the kwargs of a run as its sub-workflow sees them."""
    given = {kind: kept.get(GLOBAL_KWARGS_KEY, kept) for kind, kept in kwargs.items()}
    return resolved(given, executor_ids)


def storable(kwargs: Mapping[str, Any], values: Values) -> tuple[Kept | None, tuple[str, ...]]:
    """Encode the kwargs that can be stored. Return them, and the names of those that can't or must not be."""
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
    """Return the stored kwargs, plus those withheld ones that this process still has."""
    wanted = set(withheld)
    kwargs: dict[str, Any] = {}
    for entry in _entries(stored):
        entry.put(kwargs)
    for entry in _entries(live):
        if entry.name in wanted:
            entry.put(kwargs)
    return kwargs


def missing(withheld: Iterable[str], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the withheld names that are not among these kwargs."""
    present = {entry.name for entry in _entries(kwargs)}
    return [name for name in withheld if name not in present]


def _warn_of_secret(entry: _Entry) -> None:
    if isinstance(entry.value, str) and entry.key is not None and entry.key.casefold().endswith(_SECRET_SUFFIXES):
        logger.warning(
            "%s looks like a secret and is stored in checkpoints as it is; pass Secret(...) to keep it out of them",
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
