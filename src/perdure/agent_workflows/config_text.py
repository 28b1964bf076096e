"""Definitions as texts: where one is found, and what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from perdure.agent_workflows.errors import AgentWorkflowBuildError

_BOM: Final = "\N{ZERO WIDTH NO-BREAK SPACE}"
_SHOWN_MAX: Final = 100
_EITHER: Final = "give the path of a file, or JSON itself, which begins with a brace"


def config_in(source: str | os.PathLike[str]) -> Any:
    """What a file says, or a text that begins with a brace or bracket. Raises AgentWorkflowBuildError, or TypeError."""
    if not isinstance(source, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
        raise TypeError(f"from_json reads a file or a text, not a {type(source).__name__}; from_config takes a dict")
    is_text = isinstance(source, str) and source.lstrip(f"{_BOM} \t\r\n").startswith(("{", "["))
    text = source if is_text and isinstance(source, str) else _read(source)
    twice: list[str] = []
    try:
        found = json.loads(text.removeprefix(_BOM), object_pairs_hook=lambda pairs: _once(pairs, twice))
    except (ValueError, RecursionError) as error:
        raise AgentWorkflowBuildError(f"this is no JSON: {error}") from error
    if twice:
        raise AgentWorkflowBuildError(twice)
    return found


def _once(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    """An object; note keys that stand in it several times, of which JSON would silently take the last."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            twice.append(
                f"the key {key!r} stands twice in one object: nodes have ids of their own; rename or remove one"
            )
        found[key] = value
    return found


def _read(source: str | os.PathLike[str]) -> str:
    try:
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AgentWorkflowBuildError(f"the file {str(source)!r} is no text in UTF-8: {error.reason}") from error
    except OSError as error:
        raise AgentWorkflowBuildError(
            f"the file {_shown(source)} can't be read: {error.strerror}; {_EITHER}"
        ) from error
    except ValueError as error:  # A path has no zero bytes.
        raise AgentWorkflowBuildError(f"{_shown(source)} is no path: {error}; {_EITHER}") from error


def _shown(source: str | os.PathLike[str]) -> str:
    text = str(source)
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…")
