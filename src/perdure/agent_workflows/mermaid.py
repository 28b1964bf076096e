"""An agent workflow as a picture in the notation of Mermaid, which GitHub and many editors draw by themselves.

Routers are rhombs. An edge that is not always taken says when. Edges that go back are dotted, and so is the way to a
fallback, which ends in a cross: it is no edge, and what the fallback says stands for the node that has failed.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from perdure.agent_workflows.definition import END, START, Handoffs
from perdure.agent_workflows.predicates import name_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.agent_workflows.definition import Edge, Node
    from perdure.agent_workflows.plan import Plan

_LABEL_LENGTH_MAX: Final = 80

# Labels are HTML to Mermaid, a backtick begins Markdown, and %%{ a directive, wherever it stands.
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


def mermaid(plan: Plan) -> str:
    """The text of a flowchart: nodes as they were declared, then edges as they were, then ways to fallbacks."""
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
    """By id a name that Mermaid can read, another one for each, and none of the words that it knows."""
    names = {START: "START", END: "END"}
    taken = set(names.values())
    numbers: dict[str, int] = {}
    for id_ in dict.fromkeys(ids):
        if id_ in names:
            continue
        plain = name = f"n_{re.sub(r'[^0-9A-Za-z_]', '_', id_)}"
        while name in taken:
            # It goes on where it has ended for the same name: many ids that look alike are not looked through again.
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
    asked += [name_of(each) or "predicate" for each in parts_of(edge.predicate)]
    return " and ".join(asked) or ("default" if edge.is_default else None)


def _fallbacks(plan: Plan, names: Mapping[str, str]) -> Iterator[str]:
    for node in plan.definition.nodes:
        fallback = node.on_error.fallback
        if node.on_error.mode == "fallback" and fallback is not None and fallback in names:
            yield f'{names[node.id]} -.-x|"on error"| {names[fallback]}'


def _text(text: str) -> str:
    """A text on one line, not too long, in which nothing means anything to Mermaid."""
    line = "".join(" " if unicodedata.category(each) in _UNDRAWABLE else each for each in text)
    short = line if len(line) <= _LABEL_LENGTH_MAX else f"{line[: _LABEL_LENGTH_MAX - 1]}…"
    return short.translate(_ENTITIES)
