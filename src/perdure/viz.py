"""`WorkflowViz`: a workflow as a picture, in Mermaid or in DOT, the language of Graphviz."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from perdure.graph import FanInEdgeGroup, Graph, InternalEdgeGroup, on_error_ways

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perdure.workflows import Workflow

# ruff: noqa: FBT001, FBT002 - positional in the reference

__all__ = ["WorkflowViz"]

Format: TypeAlias = Literal["svg", "png", "pdf", "dot"]

_FORMATS: tuple[str, ...] = get_args(Format)
_INSTALL = "apt-get install graphviz, brew install graphviz"
_DIGEST_LENGTH = 8
_INDENT = "  "


class WorkflowViz:
    """Draws a workflow and its sub-workflows.

    A fan-in is a node of its own, an edge with a condition is dashed. `include_internal_executors` also draws the
    entries from outside: the first input, and answers to an executor's requests.
    """

    def __init__(self, workflow: Workflow) -> None:
        self._graph = workflow.graph

    def to_mermaid(self, include_internal_executors: bool = False) -> str:
        """Return a Mermaid flowchart, which GitHub and many editors draw."""
        return draw(self._graph, "mermaid", include_internal=include_internal_executors)

    def to_digraph(self, include_internal_executors: bool = False) -> str:
        """Return a DOT digraph."""
        return draw(self._graph, "dot", include_internal=include_internal_executors)

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
        if format not in _FORMATS:
            raise ValueError(f"Unsupported format: {format}; choose one of {', '.join(_FORMATS)}")
        path = None if filename is None else Path(filename)
        if path is not None and path.suffix.lower() not in {"", f".{format}"}:
            raise ValueError(
                f"the extension of {path.name!r} does not match the format {format!r}; "
                f"name the file {path.with_suffix(f'.{format}').name!r}, or choose another format"
            )
        contents = render(self.to_digraph(include_internal_executors), format)
        if path is None:
            handle, name = tempfile.mkstemp(prefix="workflow-", suffix=f".{format}")
            os.close(handle)
            path = Path(name)
        complete = path if path.suffix else path.with_suffix(f".{format}")
        complete.write_bytes(contents)
        return str(complete)

    def save_svg(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write an SVG file and return its path."""
        return self.export("svg", filename, include_internal_executors)

    def save_png(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write a PNG file and return its path."""
        return self.export("png", filename, include_internal_executors)

    def save_pdf(self, filename: str | os.PathLike[str], include_internal_executors: bool = False) -> str:
        """Write a PDF file and return its path."""
        return self.export("pdf", filename, include_internal_executors)


def draw(
    graph: Graph,
    notation: Literal["mermaid", "dot"],
    *,
    include_internal: bool = False,
    colors: Mapping[tuple[str, ...], str] | None = None,
) -> str:
    """Return a picture of a graph. `colors` fill executors, by the path of ids that leads to each."""
    chosen = _Mermaid() if notation == "mermaid" else _Dot()
    return _Drawing(chosen, include_internal=include_internal, colors=colors or {}).draw(graph)


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


class _Drawing:
    """Draws a graph: boxes for executors, arrows for edges, frames for sub-workflows. A notation writes them."""

    def __init__(
        self, notation: _Dot | _Mermaid, *, include_internal: bool, colors: Mapping[tuple[str, ...], str]
    ) -> None:
        self._notation = notation
        self._include_internal = include_internal
        self._colors = colors
        self._taken: set[str] = set()

    def draw(self, graph: Graph) -> str:
        """Return the picture of a graph and its sub-workflows."""
        return "\n".join([*self._notation.head, *self._statements(graph, (), _INDENT), *self._notation.foot])

    def _statements(self, graph: Graph, path: tuple[str, ...], indent: str) -> Iterator[str]:
        groups = [each for each in graph.groups if self._include_internal or not isinstance(each, InternalEdgeGroup)]
        fan_ins = [group for group in groups if isinstance(group, FanInEdgeGroup)]
        outside = [edge.source_id for group in groups if isinstance(group, InternalEdgeGroup) for edge in group.edges]
        names = self._name_all(path, graph.executors) | self._name_all(path, outside)
        merges = [
            self._name(
                (*path, f"fan_in::{group.target_id}::{_digest(group.target_id, *sorted(group.source_executor_ids))}")
            )
            for group in fan_ins
        ]
        for id_ in dict.fromkeys([graph.start_id, *graph.executors, *outside]):
            yield indent + self._notation.box(names[id_], id_, is_start=id_ == graph.start_id)
            if (color := self._colors.get((*path, id_))) is not None:
                yield indent + self._notation.fill(names[id_], color)
        for merge in merges:
            yield indent + self._notation.fan_in(merge)
        for group, merge in zip(fan_ins, merges, strict=True):
            for source_id in group.source_executor_ids:
                yield indent + self._notation.arrow(names[source_id], merge)
            yield indent + self._notation.arrow(merge, names[group.target_id])
        for edge in (edge for group in groups if not isinstance(group, FanInEdgeGroup) for edge in group.edges):
            when = "conditional" if edge.has_condition else None
            yield indent + self._notation.arrow(names[edge.source_id], names[edge.target_id], when)
        for source_id, target_id in on_error_ways(graph.executors):
            yield indent + self._notation.arrow(names[source_id], names[target_id], "on error")
        for id_, child in graph.children.items():
            first, *more, last = self._notation.frame(names[id_], id_, is_start=id_ == graph.start_id)
            inside = indent + _INDENT
            yield indent + first
            yield from (inside + line for line in more)
            yield from self._statements(child, (*path, id_), inside)
            yield indent + last

    def _name(self, path: tuple[str, ...]) -> str:
        """Return a unique name: the spelled path, with a number if another node has that name."""
        wanted = self._notation.spell(self._notation.separator.join(path))
        choices = chain([wanted], (f"{wanted}_{number}" for number in count(2)))
        name = next(name for name in choices if name not in self._taken)
        self._taken.add(name)
        return name

    def _name_all(self, path: tuple[str, ...], ids: Iterable[str]) -> dict[str, str]:
        """Return the names of siblings by id. Ids that are valid names come first and so keep them."""
        plain_first = sorted(ids, key=lambda id_: self._notation.spell(id_) != id_)
        return {id_: self._name((*path, id_)) for id_ in plain_first}


class _Dot:
    """The statements of DOT."""

    head = (
        "digraph Workflow {",
        "  rankdir=TD;",
        "  node [shape=box, style=filled, fillcolor=lightblue];",
        "  edge [color=black, arrowhead=vee];",
        "",
    )
    foot = ("}",)
    separator = "/"  # joins the ids on the path to a node of a sub-workflow

    # In a quoted string a backslash starts an escape, and an ampersand an HTML entity.
    _escapes = str.maketrans({'"': '\\"', "\\": "\\\\", "&": "&amp;", "\n": "\\n"})

    def spell(self, text: str) -> str:
        """Return a valid name."""
        return text

    def box(self, name: str, label: str, *, is_start: bool) -> str:
        """Return the statement of an executor. People read the label."""
        if is_start:
            label = self._quoted(f"{label}\n(Start)")
            return f"{self._quoted(name)} [fillcolor=lightgreen, label={label}];"
        return f"{self._quoted(name)} [label={self._quoted(label)}];"

    def fill(self, name: str, color: str) -> str:
        """Return the statement that fills an executor's box."""
        return f"{self._quoted(name)} [fillcolor={self._quoted(color)}];"

    def fan_in(self, name: str) -> str:
        """Return the statement of the point where the arrows of several sources meet."""
        return f'{self._quoted(name)} [shape=ellipse, fillcolor=lightgoldenrod, label="fan-in"];'

    def arrow(self, source: str, target: str, when: str | None = None) -> str:
        """Return the statement of an arrow. One that is not always taken has a reason and is dashed."""
        attributes = "" if when is None else f" [style=dashed, label={self._quoted(when)}]"
        return f"{self._quoted(source)} -> {self._quoted(target)}{attributes};"

    def frame(self, name: str, label: str, *, is_start: bool) -> Sequence[str]:
        """Return the first lines of a sub-workflow's frame, and the last one."""
        del is_start
        title = self._quoted(f"sub-workflow: {label}")
        return (f"subgraph cluster_{_digest(name)} {{", f"label={title};", "style=dashed;", "}")

    def _quoted(self, text: str) -> str:
        return f'"{text.translate(self._escapes)}"'


class _Mermaid:
    """The statements of Mermaid."""

    head = ("flowchart TD",)
    foot = ()
    separator = "__"

    # Mermaid's grammar treats these as keywords wherever a node could stand.
    _keywords = frozenset(
        "call class classDef click end flowchart graph href interpolate linkStyle style subgraph".split()  # noqa: SIM905
    )
    # Labels are HTML in Mermaid, a newline is a line break, and a backtick starts Markdown.
    _entities = str.maketrans(
        {"#": "#35;", '"': "#quot;", "&": "#amp;", "<": "#lt;", ">": "#gt;", "\\": "#92;", "`": "#96;", "\n": "<br/>"}
    )

    def spell(self, text: str) -> str:
        """Return a valid name."""
        name = re.sub(r"[^0-9A-Za-z_]", "_", text)
        return f"n_{name}" if name in self._keywords or not name[0].isalpha() else name

    def box(self, name: str, label: str, *, is_start: bool) -> str:
        """Return the statement of an executor. People read the label."""
        return f"{name}[{self._label(label, is_start=is_start)}];"

    def fill(self, name: str, color: str) -> str:
        """Return the statement that fills an executor's box."""
        return f"style {name} fill:{color},color:#000;"

    def fan_in(self, name: str) -> str:
        """Return the statement of the point where the arrows of several sources meet."""
        return f"{name}((fan-in))"

    def arrow(self, source: str, target: str, when: str | None = None) -> str:
        """Return the statement of an arrow. One that is not always taken has a reason and is dashed."""
        line = "-->" if when is None else f"-. {when} .->"
        return f"{source} {line} {target};"

    def frame(self, name: str, label: str, *, is_start: bool) -> Sequence[str]:
        """Return the first lines of a sub-workflow's frame, and the last one."""
        # A subgraph replaces the node with its name, and its name is its title unless it has one.
        title = self._label(label, is_start=is_start)
        return (f"subgraph {name}" + ("" if title == f'"{name}"' else f"[{title}]"), "end")

    def _label(self, text: str, *, is_start: bool) -> str:
        return f'"{text.translate(self._entities)}{" (Start)" if is_start else ""}"'


def _digest(*texts: str) -> str:
    """Return eight hexadecimal digits for texts."""
    return hashlib.sha256("|".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
