"""A picture in the notation of Mermaid, which GitHub and many editors draw by themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perdure.viz.picture import Box, Naming, picture_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.graph.definition import Graph
    from perdure.viz.picture import Arrow, Frame, Picture

_INDENT = "  "

# As the name of a node each of these ends a subgraph, begins a statement, or is a syntax error.
_KEYWORDS = frozenset({"end"})


def mermaid(graph: Graph, *, include_internal: bool) -> str:
    """The text of a flowchart."""
    picture = picture_of(graph, Naming("__", _spell), include_internal=include_internal)
    return "\n".join(["flowchart TD", *_statements(picture, _INDENT)])


def _statements(picture: Picture, indent: str) -> Iterator[str]:
    yield from (f"{indent}{box.name}[{_quoted(_label(box))}];" for box in picture.boxes)
    yield from (f"{indent}{fan_in.name}((fan-in))" for fan_in in picture.fan_ins)
    for fan_in in picture.fan_ins:
        yield from (f"{indent}{source} --> {fan_in.name};" for source in fan_in.sources)
        yield f"{indent}{fan_in.name} --> {fan_in.target};"
    yield from (f"{indent}{_arrow(arrow)}" for arrow in picture.arrows)
    for frame in picture.frames:
        yield from _subgraph(frame, indent)


def _subgraph(frame: Frame, indent: str) -> Iterator[str]:
    # The title of a subgraph is its name, unless another is given.
    title = "" if frame.name == frame.label else f"[{_quoted(frame.label)}]"
    yield f"{indent}subgraph {frame.name}{title}"
    yield from _statements(frame.picture, indent + _INDENT)
    yield f"{indent}end"


def _label(box: Box) -> str:
    return f"{box.label} (Start)" if box.is_start else box.label


def _arrow(arrow: Arrow) -> str:
    line = "-. conditional .->" if arrow.is_conditional else "-->"
    return f"{arrow.source} {line} {arrow.target};"


def _spell(text: str) -> str:
    name = re.sub(r"[^0-9A-Za-z_]", "_", text)
    return name if name[:1].isalpha() and name.lower() not in _KEYWORDS else f"n_{name}"


def _quoted(text: str) -> str:
    return f'"{text}"'
