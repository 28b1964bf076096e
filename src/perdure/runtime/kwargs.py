"""The kwargs of a run: for whom they are, and which of them may be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import EncodeError
from perdure.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.checkpoint.values import Kept, Values

GLOBAL_KWARGS_KEY = "__global__"
KINDS = ("function_invocation_kwargs", "client_kwargs")


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
    for kind, by_target in kwargs.items():
        for target, entries in by_target.items():
            for name, value in _entries(entries):
                if _is_storable(value, values):
                    kept.setdefault(kind, {}).setdefault(target, {})[name] = value
                else:
                    withheld.append(f"{kind}.{name}" if target == GLOBAL_KWARGS_KEY else f"{kind}.{target}.{name}")
    return (values.fix(kept, "run kwargs") if kept else None), tuple(withheld)


def _entries(entries: Any) -> Iterable[tuple[str, Any]]:
    return entries.items() if isinstance(entries, dict) else ()  # pyright: ignore[reportUnknownVariableType]


def _is_storable(value: object, values: Values) -> bool:
    if isinstance(value, Secret):
        return False
    try:
        kept = values.fix(value, "run kwargs")
    except EncodeError:
        return False
    return kept.refusal is None
