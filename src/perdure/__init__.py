"""perdure: durable multi-agent workflows. `__init__.pyi` is the list of public names, for us and for type checkers.

A name is imported when it is first used.
"""

import ast as _ast
import importlib as _importlib
import pkgutil as _pkgutil
import sys as _sys

__version__ = "0.1.0"

_stub = _ast.parse(_pkgutil.get_data(__name__, "__init__.pyi") or b"")

_HOMES = {
    alias.name: str(statement.module)
    for statement in _stub.body
    if isinstance(statement, _ast.ImportFrom)
    for alias in statement.names
    if alias.asname is None
}
"""The module of each name."""

_MODULES = frozenset({"kernel", "types", *(home.rpartition(".")[2] for home in _HOMES.values())})
"""Submodules that are attributes even if nobody imported them."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] - the stub spells it out


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(_load(_HOMES[name]), name)
        globals()[name] = value  # The next access does not come here.
        return value
    if name in _MODULES:
        return _load(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=_sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})


def _load(module: str) -> object:
    # Only modules that the stub names come here, never one from outside.
    return _importlib.import_module(module)  # noqa: TID251
