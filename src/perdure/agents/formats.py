"""The classes that answers were to look like, by name: an answer that was stored can be read as one again.

A name is looked up among the classes that this program has asked a model for, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from perdure.agent_errors import AgentInvalidResponseException
from perdure.typenames import type_name

_declared: WeakValueDictionary[str, type[Any]] = WeakValueDictionary()


def declare_format(wanted: object) -> None:
    """Note what answers of this program are to look like."""
    if isinstance(wanted, type):
        _declared[type_name(wanted)] = wanted


def stored_format(wanted: object) -> str | Mapping[str, Any] | None:
    """What is kept of it: the name of a class; of a schema, which is not needed to read an answer, that it is JSON."""
    if isinstance(wanted, type):
        return type_name(wanted)
    return {} if isinstance(wanted, Mapping) else wanted if isinstance(wanted, str) else None


def declared_format(name: str) -> type[Any]:
    """The class of a name. Raises AgentInvalidResponseException if no model was asked for it in this program."""
    found = _declared.get(name)
    if found is None:
        raise AgentInvalidResponseException(
            f"the answer is to be read as {name!r}, and no agent of this program has the class as response_format; "
            "give it to one, or read the text of the answer yourself"
        )
    return found
