"""`WorkflowViz`: a workflow as a picture."""
# ruff: noqa: FBT001, FBT002 - positional in the reference

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perdure.viz.dot import to_dot
from perdure.viz.files import rendered, require_format, written
from perdure.viz.mermaid import to_mermaid

if TYPE_CHECKING:
    import os

    from perdure.viz.files import Format
    from perdure.workflows import Workflow


class WorkflowViz:
    """Draws a workflow and the sub-workflows in it.

    A fan-in is a node of its own, an edge with a condition is dashed. `include_internal_executors` also draws the ways
    in from outside: the first input, and the answers to an executor's requests.
    """

    def __init__(self, workflow: Workflow) -> None:
        self._graph = workflow.graph

    def to_mermaid(self, include_internal_executors: bool = False) -> str:
        """The text of a Mermaid flowchart."""
        return to_mermaid(self._graph, include_internal=include_internal_executors)

    def to_digraph(self, include_internal_executors: bool = False) -> str:
        """The text of a DOT digraph."""
        return to_dot(self._graph, include_internal=include_internal_executors)

    def export(
        self,
        format: Format = "svg",  # noqa: A002 - the documented name
        filename: str | os.PathLike[str] | None = None,
        include_internal_executors: bool = False,
    ) -> str:
        """Write a file, a temporary one if none is named, and return its path.

        Raises ValueError if there is no such format or the extension says another one, and ImportError if anything but
        "dot" is asked for without Graphviz.
        """
        path = None if filename is None else Path(filename)
        require_format(format, path)
        dot = self.to_digraph(include_internal_executors)
        return written(rendered(dot, format), format, path)

    def save_svg(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write an SVG file and return its path."""
        return self.export("svg", filename, include_internal_executors)

    def save_png(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write a PNG file and return its path."""
        return self.export("png", filename, include_internal_executors)

    def save_pdf(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write a PDF file and return its path."""
        return self.export("pdf", filename, include_internal_executors)
