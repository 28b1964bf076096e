"""Ask for an answer field by field, as the JSON schema that is stored with a request describes it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, TypeAlias

import typer

from perdure.checkpoint import check_against
from perdure.cli.output import Output
from perdure.cli.views import safe

Schema: TypeAlias = Mapping[str, Any]

_LABEL_LENGTH_MAX = 60
_DEPTH_MAX = 20
_HINTS = {"date-time": "date and time", "uuid": "UUID", "binary": "base64"}
_DATES = {"date": date.fromisoformat, "date-time": datetime.fromisoformat, "time": time.fromisoformat}


def ask_for(schema: Schema) -> Any:
    """Ask on the terminal for a value that fits a schema."""
    return _Form(schema.get("$defs") or {}).ask(schema, "answer", 0)


@dataclass(frozen=True, slots=True)
class _Form:
    """The questions about one schema. Its texts are stored data: they are escaped and cut."""

    definitions: Mapping[str, Schema]

    def ask(self, schema: Schema, label: str, depth: int) -> Any:  # noqa: C901, PLR0912 - a case for each kind
        """Ask for a value. `label` is the place of the value in the answer."""
        schema = self._resolved(schema)
        choices: list[Schema] = [self._resolved(each) for each in schema.get("anyOf") or schema.get("oneOf") or ()]
        if isinstance(schema.get("type"), list):
            kinds: list[Any] = schema["type"]
            choices = [{**schema, "type": each} for each in kinds]
        if depth > _DEPTH_MAX:
            return self._ask_json(schema, label)
        match schema:
            case {"const": value}:
                return value
            case {"enum": [_, *_] as values}:
                return values[_choose(label, [json.dumps(each, ensure_ascii=False) for each in values])]
            case _ if choices:
                return self._ask_choice(choices, label, depth)
            case {"type": "null"}:
                return None
            case {"type": "boolean"}:
                return typer.confirm(_shown(label), default=None, err=True)
            case {"type": "string"}:
                return self._ask_text(schema, label)
            case {"type": "array", "prefixItems": [*items]}:
                return [self.ask(each, f"{label}[{place}]", depth + 1) for place, each in enumerate(items)]
            case {"type": "array"}:
                return self._ask_list(schema, label, depth)
            case {"type": "object"} if schema.get("properties"):
                return self._ask_object(schema, label, depth)
            case {"type": "object", "additionalProperties": dict()}:
                return self._ask_entries(schema["additionalProperties"], label, depth)
            case {"type": "object", "additionalProperties": False}:
                return {}
            case _:
                return self._ask_json(schema, label)

    def _resolved(self, schema: Schema) -> Schema:
        """Follow references, and merge schemas that all hold."""
        for _ in range(_DEPTH_MAX):
            match schema:
                case {"$ref": str(reference)}:
                    rest = {key: value for key, value in schema.items() if key != "$ref"}
                    schema = {**self.definitions.get(reference.removeprefix("#/$defs/"), {}), **rest}
                case {"allOf": [only]}:
                    schema = {**only, **{key: value for key, value in schema.items() if key != "allOf"}}
                case _:
                    break
        return schema

    def _ask_choice(self, choices: list[Schema], label: str, depth: int) -> Any:
        """Ask which alternative it is, then for its value. Of a value or nothing, ask whether there is one."""
        others = [each for each in choices if each.get("type") != "null"]
        if len(others) < len(choices) and not (others and typer.confirm(f"give {_shown(label)}?", err=True)):
            return None
        at = 0 if len(others) == 1 else _choose(label, [_kind(each) for each in others])
        return self.ask(others[at], label, depth + 1)

    def _ask_object(self, schema: Schema, label: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        required = schema.get("required", ())
        for name, inner in schema["properties"].items():
            place = name if label == "answer" else f"{label}.{name}"
            if name not in required:
                default = json.dumps(inner.get("default"), ensure_ascii=False)
                if not typer.confirm(f"give {_shown(place)}? otherwise it is {safe(default, limit=60)}", err=True):
                    continue
            found[name] = self.ask(inner if name in required else _without_null(inner), place, depth + 1)
        return found

    def _ask_list(self, schema: Schema, label: str, depth: int) -> list[Any]:
        found: list[Any] = []
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        while len(found) != most and (
            len(found) < least or typer.confirm(f"add an element {len(found)} to {_shown(label)}?", err=True)
        ):
            found.append(self.ask(schema.get("items") or {}, f"{label}[{len(found)}]", depth + 1))
        return found

    def _ask_entries(self, schema: Schema, label: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while name := typer.prompt(f"a key of {_shown(label)}, or nothing to end", "", show_default=False, err=True):
            found[name] = self.ask(schema, f"{label}.{name}", depth + 1)
        return found

    def _ask_text(self, schema: Schema, label: str) -> str:
        kind = schema.get("format")
        hint = f" ({_kind(schema)})" if kind else ""
        while True:
            text = typer.prompt(_shown(label) + hint, "", show_default=False, err=True)
            try:
                _DATES.get(str(kind), str)(text)
                problem = check_against(dict(schema), text)
            except ValueError as error:
                problem = str(error)
            if problem is None:
                return text
            Output.note(problem)

    def _ask_json(self, schema: Schema, label: str) -> Any:
        while True:
            text = typer.prompt(f"{_shown(label)} ({_kind(schema)})", err=True)
            try:
                value = json.loads(text)
            except ValueError:
                Output.note("this is not JSON; a text needs quotes")
                continue
            problem = check_against({**schema, "$defs": dict(self.definitions)}, value)
            if problem is None:
                return value
            Output.note(problem)


def _without_null(schema: Schema) -> Schema:
    """Return a schema without the alternative null: a person has said that there is a value."""
    others = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return {**schema, "anyOf": others} if others else schema


def _choose(label: str, names: list[str]) -> int:
    """Ask which of several it is, by number."""
    Output.note(f"{_shown(label)}:")
    for number, name in enumerate(names, start=1):
        Output.note(f"  {number}  {safe(name, limit=_LABEL_LENGTH_MAX)}")
    while True:
        text: str = typer.prompt("number", err=True)
        if text.isdecimal() and 1 <= int(text) <= len(names):
            return int(text) - 1
        Output.note(f"give a number from 1 to {len(names)}")


def _kind(schema: Schema) -> str:
    """Return what a schema describes, in a word."""
    kind, name = schema.get("type"), schema.get("format")
    if isinstance(name, str):
        return safe(_HINTS.get(name, name), limit=_LABEL_LENGTH_MAX)
    if kind == "object":
        return safe(schema.get("title") or "object", limit=_LABEL_LENGTH_MAX)
    return {"string": "text", "array": "list", "integer": "whole number"}.get(str(kind), str(kind or "JSON"))


def _shown(label: str) -> str:
    return safe(label, limit=_LABEL_LENGTH_MAX)
