"""Pictures as files. All of them but DOT are drawn by Graphviz: a Python package and a program."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from pathlib import Path

Format: TypeAlias = Literal["svg", "png", "pdf", "dot"]

_FORMATS: tuple[str, ...] = get_args(Format)
_INSTALL = "apt-get install graphviz, brew install graphviz"


def require_format(wanted: str, path: Path | None) -> None:
    """Raise ValueError for a format that there is not, or for a path whose extension says another one."""
    if wanted not in _FORMATS:
        raise ValueError(f"Unsupported format: {wanted}; choose one of {', '.join(_FORMATS)}")
    if path is not None and path.suffix.lower() not in {"", f".{wanted}"}:
        raise ValueError(
            f"the extension of {path.name!r} does not match the format {wanted!r}; "
            f"name the file {path.with_suffix(f'.{wanted}').name!r}, or choose another format"
        )


def rendered(dot: str, wanted: Format) -> bytes:
    """The contents of a file with the picture. Raises ImportError without Graphviz."""
    if wanted == "dot":
        return dot.encode()
    try:
        # Optional, and so loaded when first used.
        import graphviz  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError(
            f"drawing a {wanted} needs the Python package graphviz: pip install 'perdure[viz]', "
            f"and the graphviz binary: {_INSTALL}; to_mermaid() and to_digraph() need neither"
        ) from error
    try:
        return graphviz.pipe("dot", wanted, dot.encode(), quiet=True)
    except graphviz.ExecutableNotFound as error:
        raise ImportError(
            "The graphviz executables are not found: pip install 'perdure[viz]' does not bring the graphviz binary; "
            f"install it ({_INSTALL}) and see that `dot` is on the PATH"
        ) from error


def written(contents: bytes, wanted: Format, path: Path | None) -> str:
    """The path of a file with these contents: the given one, completed by its extension, or a temporary one."""
    if path is not None:
        complete = path if path.suffix else path.with_suffix(f".{wanted}")
        complete.write_bytes(contents)
        return str(complete)
    handle, name = tempfile.mkstemp(prefix="workflow-", suffix=f".{wanted}")
    with os.fdopen(handle, "wb") as file:
        file.write(contents)
    return name
