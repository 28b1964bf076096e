"""Mermaid diagrams of agent workflows, which GitHub and many editors render.

Routers are rhombs. An edge that is not always taken has its condition as a label. Back edges are dotted, and so is the
line to a fallback, which ends in a cross because it is not an edge.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from perdure.agent_workflows.definition.values import END, START, Edge, Handoffs, Node, predicate_name, predicate_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.agent_workflows.plan import Plan

_LABEL_LENGTH_MAX: Final = 80

# To Mermaid labels are HTML, a backtick starts Markdown, and %%{ a directive.
_ENTITIES: Final = str.maketrans(
    {
        "#": "#35;",
        "%": "#37;",
        '"': "#quot;",
        "&": "#amp;",
        "<": "#lt;",
        ">": "#gt;",
        "\\": "#92;",
        "`": "#96;",
        "|": "#124;",
    }
)
_UNDRAWABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def to_mermaid(plan: Plan) -> str:
    """Return a flowchart: the nodes, then the edges, then the lines to fallbacks."""
    names = _names(node.id for node in plan.definition.nodes)
    lines = [
        "START([START])",
        *(_node(node, names) for node in plan.definition.nodes),
        "END([END])",
        *(_edge(edge, names, is_back=plan.is_back(edge)) for edge in plan.edges),
        *_fallbacks(plan, names),
    ]
    return "\n".join(["flowchart TD", *(f"  {line}" for line in lines)])


def _names(ids: Iterable[str]) -> Mapping[str, str]:
    """Return a unique name for each id, which Mermaid can read and which is none of its keywords."""
    names = {START: "START", END: "END"}
    taken = set(names.values())
    numbers: dict[str, int] = {}
    for id_ in dict.fromkeys(ids):
        if id_ in names:
            continue
        plain = name = f"n_{re.sub(r'[^0-9A-Za-z_]', '_', id_)}"
        while name in taken:
            # Count on from the last number of this name: many similar ids must not take quadratic time.
            numbers[plain] = numbers.get(plain, 1) + 1
            name = f"{plain}_{numbers[plain]}"
        names[id_] = name
        taken.add(name)
    return names


def _node(node: Node, names: Mapping[str, str]) -> str:
    name: object = getattr(node.agent, "name", None)
    has_another = isinstance(name, str) and name not in {"", node.id}
    label = f"{_text(node.id)}<br/>{_text(str(name))}" if has_another else _text(node.id)
    opening, closing = ("{", "}") if isinstance(node.output, Handoffs) else ("[", "]")
    return f'{names[node.id]}{opening}"{label}"{closing}'


def _edge(edge: Edge, names: Mapping[str, str], *, is_back: bool) -> str:
    label = _label(edge)
    arrow = "-.->" if is_back else "-->"
    way = arrow if label is None else f'{arrow}|"{_text(label)}"|'
    return f"{names[edge.source]} {way} {names[edge.target]}"


def _label(edge: Edge) -> str | None:
    asked = [] if edge.condition is None else [edge.condition.describe()]
    asked += [predicate_name(each) or "predicate" for each in predicate_parts(edge.predicate)]
    return " and ".join(asked) or ("default" if edge.is_default else None)


def _fallbacks(plan: Plan, names: Mapping[str, str]) -> Iterator[str]:
    for node in plan.definition.nodes:
        fallback = node.on_error.fallback
        if node.on_error.mode == "fallback" and fallback is not None and fallback in names:
            yield f'{names[node.id]} -.-x|"on error"| {names[fallback]}'


def _text(text: str) -> str:
    """Return a text on one line, shortened, with all special characters escaped."""
    line = "".join(" " if unicodedata.category(each) in _UNDRAWABLE else each for each in text)
    short = line if len(line) <= _LABEL_LENGTH_MAX else f"{line[: _LABEL_LENGTH_MAX - 1]}…"
    return short.translate(_ENTITIES)
