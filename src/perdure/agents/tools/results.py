"""What a tool gave, as the model is told it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from perdure.agents.messages.content import Content


class SkipParsing:
    """The type of `SKIP_PARSING`."""

    def __repr__(self) -> str:
        return "SKIP_PARSING"


SKIP_PARSING: Final = SkipParsing()
"""As a tool's `result_parser`: what it gives is taken as it is."""


def parsed_result(result: Any) -> list[Content]:
    """Any value as contents: texts and contents as they are, everything else as JSON."""
    if result is None:
        return [Content.from_text("")]
    if isinstance(result, Content):
        return [result]
    if isinstance(result, list | tuple) and any(isinstance(each, Content) for each in cast("Sequence[Any]", result)):
        return [each if isinstance(each, Content) else _as_text(each) for each in cast("Sequence[Any]", result)]
    return [_as_text(result)]


def _as_text(value: Any) -> Content:
    plain = _plain(value)
    return Content.from_text(plain if isinstance(plain, str) else json.dumps(plain, default=str, ensure_ascii=False))


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(key): _plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in cast("Sequence[Any]", value)]
        case None | str() | int() | float():
            return value
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type | Content):
            return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        case _:
            return _described(value)


def _described(value: Any) -> Any:
    """An object that can say what it is made of, or what it says; else itself."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if callable(dump := getattr(value, "to_dict", None)):
        return dump()
    return value.text if isinstance(getattr(value, "text", None), str) else value


def result_of(call: Content, result: Any, *, exception: str | None = None) -> Content:
    """The result of a call.

    Its `result` is the text. Contents that are more than that, such as images, stand in `items`, all of them in order.
    """
    given = cast("list[Any]", result) if isinstance(result, list) else []
    more = dict(call.additional_properties)
    if not given or not all(isinstance(each, Content) for each in given):
        return Content.from_function_result(_id(call), result=result, exception=exception, additional_properties=more)
    contents = cast("list[Content]", given)
    text = "\n".join([each.text for each in contents if each.type == "text" and each.text])
    items = None if all(each.type == "text" for each in contents) else contents
    return Content.from_function_result(
        _id(call), result=text, items=items, exception=exception, additional_properties=more
    )


def error_of(call: Content, text: str, error: BaseException | str) -> Content:
    """The result of a call that failed: `text` is what the model is told."""
    exception = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return result_of(call, text, exception=exception)


def _id(call: Content) -> str:
    return call.call_id or ""
