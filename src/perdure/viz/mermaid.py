"""A picture in Mermaid, which GitHub and many editors draw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perdure.viz.picture import Naming, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.graph import Graph
    from perdure.viz.picture import Arrow, Box, Frame, Picture

_INDENT = "  "

# Mermaid's grammar treats these as keywords wherever a node could stand.
_KEYWORDS = frozenset(
    "call class classDef click end flowchart graph href interpolate linkStyle style subgraph".split()  # noqa: SIM905
)

# Labels are HTML in Mermaid, a newline is a line break, and a backtick starts Markdown.
_ENTITIES = str.maketrans(
    {"#": "#35;", '"': "#quot;", "&": "#amp;", "<": "#lt;", ">": "#gt;", "\\": "#92;", "`": "#96;", "\n": "<br/>"}
)


def to_mermaid(graph: Graph, *, include_internal: bool) -> str:
    """Return a graph as a flowchart."""
    picture = draw(graph, Naming("__", _spell), include_internal=include_internal)
    return "\n".join(["flowchart TD", *_statements(picture, _INDENT)])


def _statements(picture: Picture, indent: str) -> Iterator[str]:
    for box in picture.boxes:
        yield f"{indent}{box.name}[{_label(box)}];"
    for fan_in in picture.fan_ins:
        yield f"{indent}{fan_in.name}((fan-in))"
    for fan_in in picture.fan_ins:
        yield from (f"{indent}{source} --> {fan_in.name};" for source in fan_in.sources)
        yield f"{indent}{fan_in.name} --> {fan_in.target};"
    for arrow in picture.arrows:
        yield f"{indent}{_arrow(arrow)}"
    for frame in picture.frames:
        yield from _subgraph(frame, indent)


def _subgraph(frame: Frame, indent: str) -> Iterator[str]:
    # A subgraph replaces the node with its name, and its name is its title unless it has one.
    title = _label(frame.box)
    yield f"{indent}subgraph {frame.box.name}" + ("" if title == f'"{frame.box.name}"' else f"[{title}]")
    yield from _statements(frame.picture, indent + _INDENT)
    yield f"{indent}end"


def _arrow(arrow: Arrow) -> str:
    line = "-->" if arrow.when is None else f"-. {arrow.when} .->"
    return f"{arrow.source} {line} {arrow.target};"


def _label(box: Box) -> str:
    text = box.label.translate(_ENTITIES)
    return f'"{text} (Start)"' if box.is_start else f'"{text}"'


def _spell(text: str) -> str:
    name = re.sub(r"[^0-9A-Za-z_]", "_", text)
    return f"n_{name}" if name in _KEYWORDS or not name[0].isalpha() else name
