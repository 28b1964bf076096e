"""What answers are to look like, and the values that they are then.

An answer that was stored knows its class by name. The name is looked up among the classes that this program has asked a
model for, and nowhere else.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Mapping
from typing import Any, cast

from perdure.agent_errors import ResponseValueError
from perdure.typenames import type_name

_SHOWN_MAX = 80

_declared: dict[str, list[weakref.ref[type[Any]]]] = {}


def require_format(wanted: object) -> None:
    """Raise TypeError if no answer could be read as this."""
    if wanted is None or isinstance(wanted, Mapping) or (isinstance(wanted, type) and _is_model(wanted)):
        return
    raise TypeError(f"response_format is a pydantic model or a JSON schema, not {wanted!r}; give one of these")


def _is_model(wanted: type) -> bool:
    return hasattr(wanted, "model_validate_json")


def declare_format(wanted: object) -> None:
    """Note what answers of this program are to look like. Raises TypeError if no answer could be read as it."""
    require_format(wanted)
    if isinstance(wanted, type):
        known = _declared.setdefault(type_name(wanted), [])
        if not known or known[-1]() is not wanted:
            # The one that was asked for last is the last.
            known[:] = [each for each in known if each() not in {None, wanted}]
            known.append(weakref.ref(wanted))


def stored_format(wanted: object) -> str | Mapping[str, Any] | None:
    """What is kept of it: the name of a class; of a schema, which is not needed to read an answer, that it is JSON."""
    if isinstance(wanted, type):
        return type_name(wanted)
    return {} if isinstance(wanted, Mapping) else wanted if isinstance(wanted, str) else None


def declared_format(name: str) -> type[Any]:
    """The class of a name. Raises ResponseValueError if no model was asked for it here, or for two that differ."""
    found = [cls for each in _declared.get(name, ()) if (cls := each()) is not None]
    if not found:
        raise ResponseValueError(
            f"the answer is to be read as {name!r}, and no agent of this program has the class as response_format; "
            "give it to one, or read the text of the answer yourself"
        )
    # One that a module has replaced by another, as a notebook does, is not meant any more. One that is made anew each
    # time that a function is called is as good as the one before.
    if not _is_in_module(found[-1]) and any(_fields(each) != _fields(found[-1]) for each in found):
        raise ResponseValueError(
            f"the answer is to be read as {name!r}, and agents of this program have different classes of that name as "
            "response_format; give each a name of its own, or read the text of the answer yourself"
        )
    return found[-1]


def _is_in_module(cls: type[Any]) -> bool:
    place: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        place = getattr(place, name, None)
    return place is cls


def _fields(cls: type[Any]) -> object:
    fields: object = getattr(cls, "model_fields", None)
    if not isinstance(fields, Mapping):
        return cls
    return {name: repr(field) for name, field in cast("Mapping[str, Any]", fields).items()}


def parsed_value(text: str, response_format: type[Any] | Mapping[str, Any] | str) -> Any:
    """A text as the value that it is to be; None if there is none. Raises ResponseValueError, pydantic's error."""
    wanted = declared_format(response_format) if isinstance(response_format, str) else response_format
    if not text:
        return None
    if isinstance(wanted, type):
        return wanted.model_validate_json(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ResponseValueError(
            f"the answer is no JSON: {error}; it begins with {text[:_SHOWN_MAX]!r}", error
        ) from error
