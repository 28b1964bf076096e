"""Templates of tasks: text with `{{names}}` in it. What a name means is not known here.

Four braces, `{{{{`, stand for two that begin no name. Closing braces by themselves are what they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

_OPEN: Final = "{{"
_LITERAL: Final = "{{{{"
_MARK: Final = re.compile(r"\{\{\{\{|\{\{([^{}]*)\}\}")
"""Braces that are meant, or a name in braces."""


class TemplateError(ValueError):
    """A template can't be read. The text says why."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A name that stands for a value. An optional one stands for nothing if there is none."""

    name: str
    is_optional: bool = False

    @classmethod
    def of(cls, text: str) -> Reference:
        """The reference that a text means: a name, with `?` behind it if it is optional. Raises TemplateError."""
        name = text.strip()
        is_optional = name.endswith("?")
        name = name.removesuffix("?").rstrip()
        if not name or not all(name.split(".")):
            raise TemplateError(f"{text!r} names nothing; write the key of an output, or 'node.key'")
        return cls(name, is_optional)


Part: TypeAlias = str | Reference


def parts_of(template: str) -> tuple[Part, ...]:
    """A template as texts and references, in order. Raises TemplateError."""
    parts: list[Part] = []
    end = 0
    for found in _MARK.finditer(template):
        is_literal = found.group() == _LITERAL
        parts += [_text(template[end : found.start()]), _OPEN if is_literal else Reference.of(found.group(1))]
        end = found.end()
    parts.append(_text(template[end:]))
    return tuple(part for part in parts if part)


def _text(text: str) -> str:
    place = text.find(_OPEN)
    if place >= 0:
        raise TemplateError(
            f"{text[place : place + 20]!r} begins a name that has no end; write it as '{{{{name}}}}', or two braces "
            f"that begin none as {_LITERAL!r}"
        )
    return text
