"""`WorkflowViz`: a workflow as a picture."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from perdure.viz.dot import to_dot
from perdure.viz.mermaid import to_mermaid

if TYPE_CHECKING:
    from perdure.workflows import Workflow

Format: TypeAlias = Literal["svg", "png", "pdf", "dot"]

_FORMATS: tuple[str, ...] = get_args(Format)
_INSTALL = "apt-get install graphviz, brew install graphviz"


def check_format(wanted: str, path: Path | None) -> None:
    """Raise ValueError for an unknown format, or for a path with another extension."""
    if wanted not in _FORMATS:
        raise ValueError(f"Unsupported format: {wanted}; choose one of {', '.join(_FORMATS)}")
    if path is not None and path.suffix.lower() not in {"", f".{wanted}"}:
        raise ValueError(
            f"the extension of {path.name!r} does not match the format {wanted!r}; "
            f"name the file {path.with_suffix(f'.{wanted}').name!r}, or choose another format"
        )


def render(dot: str, wanted: Format) -> bytes:
    """Return the content of the picture's file. Raises ImportError without Graphviz."""
    if wanted == "dot":
        return dot.encode()
    try:
        # Optional, so imported on first use.
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


def write_file(contents: bytes, wanted: Format, path: Path | None) -> str:
    """Write the file and return its path: the given one with its extension, or a temporary one."""
    if path is not None:
        complete = path if path.suffix else path.with_suffix(f".{wanted}")
        complete.write_bytes(contents)
        return str(complete)
    handle, name = tempfile.mkstemp(prefix="workflow-", suffix=f".{wanted}")
    with os.fdopen(handle, "wb") as file:
        file.write(contents)
    return name


# ruff: noqa: FBT001, FBT002 - positional in the reference


class WorkflowViz:
    """Draws a workflow and its sub-workflows.

    A fan-in is a node of its own, an edge with a condition is dashed. `include_internal_executors` also draws the
    entries from outside: the first input, and answers to an executor's requests.
    """

    def __init__(self, workflow: Workflow) -> None:
        self._graph = workflow.graph

    def to_mermaid(self, include_internal_executors: bool = False) -> str:
        """Return a Mermaid flowchart."""
        return to_mermaid(self._graph, include_internal=include_internal_executors)

    def to_digraph(self, include_internal_executors: bool = False) -> str:
        """Return a DOT digraph."""
        return to_dot(self._graph, include_internal=include_internal_executors)

    def export(
        self,
        format: Format = "svg",  # noqa: A002 - the documented name
        filename: str | os.PathLike[str] | None = None,
        include_internal_executors: bool = False,
    ) -> str:
        """Write a file, a temporary one if none is named, and return its path.

        Raises ValueError for an unknown format or a wrong extension, and ImportError for formats other than "dot"
        without Graphviz.
        """
        path = None if filename is None else Path(filename)
        check_format(format, path)
        dot = self.to_digraph(include_internal_executors)
        return write_file(render(dot, format), format, path)

    def save_svg(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write an SVG file and return its path."""
        return self.export("svg", filename, include_internal_executors)

    def save_png(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write a PNG file and return its path."""
        return self.export("png", filename, include_internal_executors)

    def save_pdf(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write a PDF file and return its path."""
        return self.export("pdf", filename, include_internal_executors)
