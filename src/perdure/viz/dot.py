"""A picture in DOT, the notation of Graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.viz.picture import Naming, draw, make_printable, short_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.graph import Graph
    from perdure.viz.picture import Arrow, Box, Frame, Picture

_INDENT = "  "
_START = "\n(Start)"

# In a quoted string a backslash starts an escape, and an ampersand an HTML entity.
_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "&": "&amp;", "\n": "\\n"})


def to_dot(graph: Graph, *, include_internal: bool) -> str:
    """Return a graph as a digraph."""
    picture = draw(graph, Naming("/", make_printable), include_internal=include_internal)
    head = [
        "digraph Workflow {",
        "  rankdir=TD;",
        "  node [shape=box, style=filled, fillcolor=lightblue];",
        "  edge [color=black, arrowhead=vee];",
        "",
    ]
    return "\n".join([*head, *_statements(picture, _INDENT), "}"])


def _statements(picture: Picture, indent: str) -> Iterator[str]:
    for box in picture.boxes:
        yield f"{indent}{_box(box)}"
    for fan_in in picture.fan_ins:
        yield f'{indent}{_quoted(fan_in.name)} [shape=ellipse, fillcolor=lightgoldenrod, label="fan-in"];'
    for fan_in in picture.fan_ins:
        yield from (f"{indent}{_quoted(source)} -> {_quoted(fan_in.name)};" for source in fan_in.sources)
        yield f"{indent}{_quoted(fan_in.name)} -> {_quoted(fan_in.target)};"
    for arrow in picture.arrows:
        yield f"{indent}{_arrow(arrow)}"
    for frame in picture.frames:
        yield from _cluster(frame, indent)


def _cluster(frame: Frame, indent: str) -> Iterator[str]:
    inside = indent + _INDENT
    yield f"{indent}subgraph cluster_{short_digest(frame.box.name)} {{"
    yield f"{inside}label={_quoted(f'sub-workflow: {frame.box.label}')};"
    yield f"{inside}style=dashed;"
    yield from _statements(frame.picture, inside)
    yield f"{indent}}}"


def _box(box: Box) -> str:
    if box.is_start:
        return f"{_quoted(box.name)} [fillcolor=lightgreen, label={_quoted(box.label + _START)}];"
    return f"{_quoted(box.name)} [label={_quoted(box.label)}];"


def _arrow(arrow: Arrow) -> str:
    attributes = "" if arrow.when is None else f" [style=dashed, label={_quoted(arrow.when)}]"
    return f"{_quoted(arrow.source)} -> {_quoted(arrow.target)}{attributes};"


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
