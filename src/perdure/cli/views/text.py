"""Stored text for people. It is never trusted: control and bidirectional characters are escaped, long text is cut."""

from __future__ import annotations

import json
import shlex
import unicodedata

VALUE_LENGTH_MAX = 2_000
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SECONDS = len("2026-01-01T00:00:00")


def safe(value: object, *, limit: int = VALUE_LENGTH_MAX, is_multiline: bool = False) -> str:
    """Return text that can't move the cursor, change colours or reverse the line. Cut it at `limit` with a note."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = f"… ({len(text) - limit} more characters)" if len(text) > limit else ""
    kept = "\n\t" if is_multiline else ""
    shown = (
        character if character in kept or unicodedata.category(character) not in _HIDDEN else _escaped(character)
        for character in text[:limit]
    )
    return "".join(shown) + cut


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def typed(text: str) -> str:
    """Return an id as it is typed in a shell."""
    if safe(text) == text:
        return shlex.quote(text)
    # A shell reads the escapes in $'...' back into the characters.
    return "$'" + "".join(map(_in_ansi_c_quotes, text)) + "'"


def _in_ansi_c_quotes(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    return safe(character) if character.isprintable() else f"\\U{ord(character):08x}"


def moment(text: str | None) -> str:
    """Return a stored time to the second, in UTC."""
    return "" if text is None else text[:_SECONDS].replace("T", " ") + ("Z" if len(text) > _SECONDS else "")
