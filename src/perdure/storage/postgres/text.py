"""Any text of Python as text that PostgreSQL can keep: it knows neither NUL nor halves of surrogate pairs."""

from __future__ import annotations

import re

_ESCAPE = "\ufdd0"
"""A code point that stands for no character, so it is in no text but by design; there it is escaped, too."""

_UNKEPT = re.compile("[\x00\ud800-\udfff\ufdd0]")
_ESCAPED = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")


def kept_text(text: str) -> str:
    """The text with what PostgreSQL can't keep escaped. Text that is JSON stays as it is, if it is ASCII."""
    if text.isascii() and "\0" not in text:
        return text
    return _UNKEPT.sub(lambda found: f"{_ESCAPE}{ord(found[0]):04x}", text)


def given_text(text: str) -> str:
    """The text that was kept."""
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
