"""What a provider wants back and a content has no field for: it travels in `additional_properties`, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_ai.messages import ModelResponsePart

_KEY: Final = "pydantic_ai"
_OF_PARTS: Final = ("id", "provider_name", "provider_details")
_OF_RESPONSES: Final = (
    "model_name",
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_response_id",
    "provider_details",
    "metadata",
)


def kept_of_part(part: ModelResponsePart) -> dict[str, Any]:
    """What is kept of a part beside its text, its name or its arguments."""
    return _kept(part, _OF_PARTS)


def kept_of_response(response: ModelResponse) -> dict[str, Any]:
    """What is kept of a whole answer: who gave it, so that signatures are only sent back to them."""
    return _kept(response, _OF_RESPONSES)


def whole_part(part: ModelResponsePart) -> dict[str, Any]:
    """A part that a content can't say, all of it."""
    dumped = ModelMessagesTypeAdapter.dump_python([ModelResponse(parts=[part])], mode="json")
    return {_KEY: {"part": dumped[0]["parts"][0]}}


def part_of(kept: Mapping[str, Any]) -> ModelResponsePart | None:
    """The part that was kept as a whole; None if none was."""
    if "part" not in kept:
        return None
    read = ModelMessagesTypeAdapter.validate_python([{"kind": "response", "parts": [kept["part"]]}])
    return cast("ModelResponse", read[0]).parts[0]


def kept_in(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept of the thing that has these `additional_properties`."""
    found: Any = properties.get(_KEY)
    return dict(cast("dict[str, Any]", found)) if isinstance(found, dict) else {}


def _kept(found: object, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(found, name, None) for name in names}
    kept = {name: to_jsonable_python(value) for name, value in values.items() if value is not None}
    return {_KEY: kept} if kept else {}
