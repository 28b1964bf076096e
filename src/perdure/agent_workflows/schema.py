"""The JSON schema of definitions, for editors: it completes keys, and marks what `definition_of` would refuse.

It is in `docs/agent-workflow.schema.json`, too. A definition names it with `"$schema"`.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, get_args

from perdure.agent_workflows.definition import ConversationKind, ErrorMode

_Schema: TypeAlias = dict[str, Any]

_KEY: Final = r"^[^.]+(\.[^.]+)*$"


def _object(about: str, required: tuple[str, ...] = (), /, **properties: _Schema) -> _Schema:
    """An object with these keys and no others. `from_` stands for the key `from`."""
    named = {name.rstrip("_"): schema for name, schema in properties.items()}
    needed: _Schema = {"required": list(required)} if required else {}
    return {"type": "object", "description": about, "properties": named, **needed, "additionalProperties": False}


def _text(about: str) -> _Schema:
    return {"type": "string", "description": about}


def _name(about: str) -> _Schema:
    return {"type": "string", "minLength": 1, "description": about}


def _names(about: str, **more: Any) -> _Schema:
    return {"type": "array", "items": {"type": "string", "minLength": 1}, "description": about, **more}


def _choice(about: str, *choices: str) -> _Schema:
    return {"enum": list(choices), "description": about}


def _flag(about: str) -> _Schema:
    return {"type": "boolean", "description": about}


def _seconds(about: str) -> _Schema:
    return {"type": "number", "exclusiveMinimum": 0, "description": about}


def _ref(name: str) -> _Schema:
    return {"$ref": f"#/$defs/{name}"}


def _of_key(about: str, kinds: str, required: tuple[str, ...] = (), /, **more: _Schema) -> _Schema:
    """Conditions over a key of the outputs, all those of one shape."""
    key: _Schema = {"type": "string", "pattern": _KEY, "description": "A key of the outputs, as score or result.score."}
    return _object(about, ("type", "key", *required), type_={"enum": kinds.split()}, key=key, **more)


def _conditions() -> list[_Schema]:
    """One for each shape. With one for each type, checking takes twice as long for each further level of and and or."""
    text: _Schema = {"type": "string"}
    bound: _Schema = {"type": ["number", "string"]}
    several: _Schema = {"type": "array", "minItems": 1}
    inner: _Schema = {"type": "array", "minItems": 1, "items": _ref("condition")}
    ignore_case = _flag("Whether capital and small letters are the same.")
    return [
        _of_key("Whether there is a value, or something in it.", "exists not_exists empty not_empty"),
        _of_key("What the value is, or has in it.", "equals not_equals contains", ("value",), value={}),
        _of_key("How great the value is.", "greater_than less_than at_least at_most", ("value",), value=bound),
        _of_key("Which of several the value has in it.", "contains_any contains_all", ("values",), values=several),
        _of_key("How a text begins or ends.", "starts_with ends_with", ("value",), value=text),
        _of_key(
            "A regular expression of Python that is found in a text.",
            "matches",
            ("pattern",),
            pattern=text,
            ignore_case=ignore_case,
        ),
        _object(
            "All of these, or one of them.", ("type", "conditions"), type_={"enum": ["and", "or"]}, conditions=inner
        ),
        _object("Not this.", ("type", "condition"), type_={"enum": ["not"]}, condition=_ref("condition")),
    ]


def _definitions() -> _Schema:
    schema: _Schema = {
        "type": "object",
        "description": "A JSON schema of an object.",
        "properties": {"type": {"const": "object"}, "properties": {"type": "object"}, "title": {"type": "string"}},
    }
    named: _Schema = {"required": ["title"], "properties": {"title": {"minLength": 1}}}
    return {
        "condition": {"oneOf": _conditions(), "description": "A question about the outputs of a node."},
        "function": _object(
            "A function, which JSON can't hold: it is given again when this is read.",
            ("type",),
            type_={"const": "function"},
            name=_name("By which it may be given."),
        ),
        "when": {"oneOf": [_ref("condition"), _ref("function")]},
        "edge_when": {"oneOf": [_ref("condition"), _ref("function"), _mixed()]},
        "agent": {"oneOf": [_agent_config(), _prebuilt()]},
        "output": {
            "oneOf": [
                _object("A text under one key.", ("type",), type_={"const": "text"}, key=_name("The key.")),
                _object(
                    "A value. Its fields are keys, beside `result`.",
                    ("type", "schema"),
                    type_={"const": "structured"},
                    schema=schema,
                    mode=_choice("How the model is made to answer so.", "native", "tool"),
                ),
                _object(
                    "A value of one of several types, known by their titles.",
                    ("type", "types"),
                    type_={"const": "union"},
                    types={"type": "array", "minItems": 1, "items": {"allOf": [schema, named]}},
                ),
                _object(
                    "The choice of a router.",
                    ("type", "targets"),
                    type_={"const": "handoffs"},
                    targets={
                        "type": "object",
                        "minProperties": 1,
                        "additionalProperties": _text("When to choose this node."),
                    },
                    default=_name("Who is chosen if the model chooses nobody."),
                ),
            ]
        },
        "retry": _retry(),
        "node": _node(),
        "edge": _edge(),
        "settings": _settings(),
    }


def _mixed() -> _Schema:
    """Functions beside conditions."""
    parts: _Schema = {"anyOf": [_ref("condition"), _ref("function")]}
    inner: _Schema = {"type": "array", "items": parts, "contains": _ref("function")}
    return _object("All of these.", ("type", "conditions"), type_={"const": "and"}, conditions=inner)


def _on_error() -> _Schema:
    entry = _object(
        "What a failure does.",
        mode=_choice("What happens to the rest.", *get_args(ErrorMode)),
        fallback=_name("The node that stands in, with the mode fallback."),
    )
    is_fallback: _Schema = {"required": ["mode"], "properties": {"mode": {"const": "fallback"}}}
    needs: _Schema = {"required": ["fallback"]}
    short = _choice("What happens to the rest.", *(mode for mode in get_args(ErrorMode) if mode != "fallback"))
    return {"oneOf": [{**entry, "if": is_fallback, "then": needs, "else": {"not": needs}}, short]}


def _approval() -> _Schema:
    entry = _object(
        "Asks a person before the output is used.",
        message=_text("What is asked."),
        when=_ref("when"),
        timeout=_seconds("Seconds, after which it is denied."),
    )
    return {"oneOf": [entry, _flag("Whether a person is asked."), _text("What is asked.")]}


def _agent_config() -> _Schema:
    return _object(
        "An agent that is made with the chat client of the workflow.",
        name=_name("Its name; without it, that of the node."),
        instructions=_text("What it is to do."),
        description=_text("What it is for."),
        model=_name("The model, if not that of the client."),
        tools=_names("Names of tools that are given to the builder."),
        options={"type": "object", "description": "Options of the chat client, as temperature."},
        options_left_out=_names("Options that JSON can't hold: give values, or the agent anew."),
    )


def _prebuilt() -> _Schema:
    return _object(
        "An agent that JSON can't hold: it is given again when this is read. The rest is for information.",
        ("prebuilt",),
        prebuilt={"const": True},
        name=_text("Its name."),
        description=_text("What it is for."),
        instructions=_text("What it is to do."),
    )


def _retry() -> _Schema:
    kind = _object(
        "A class of errors, which JSON can't hold: it is given again when this is read.",
        ("type", "name"),
        type_={"const": "class"},
        name=_name("Its name."),
    )
    number: _Schema = {"type": "number", "minimum": 0}
    attempts: _Schema = {"type": "integer", "minimum": 1, "description": "In all, the first included."}
    entry = _object(
        "How often a failing node is tried.",
        attempts=attempts,
        backoff={"oneOf": [number, _ref("function")], "description": "Seconds to wait after the first failure."},
        factor={**number, "description": "By which each further wait is longer."},
        longest={**number, "description": "The longest wait, in seconds."},
        on={
            "description": "The errors that are worth another attempt.",
            "oneOf": [
                {"type": "array", "items": {"oneOf": [{"type": "string", "minLength": 1}, kind]}},
                _ref("function"),
            ],
        },
    )
    return {"oneOf": [entry, attempts]}


def _node() -> _Schema:
    return _object(
        "An agent in the workflow: what it reads, what it writes, and what happens when it fails.",
        ("agent",),
        agent=_ref("agent"),
        output=_ref("output"),
        input_key=_name("The value that it reads: key, node.key, or input."),
        template=_text("What it reads, with {{key}}, {{node.key}}, {{input}} in it."),
        reads=_choice("The request, or all that nodes before it said.", "request", "upstream"),
        instructions=_text("Added to those of the agent."),
        retry=_ref("retry"),
        timeout=_seconds("Seconds for each attempt."),
        on_error=_on_error(),
        approval=_approval(),
    )


def _edge() -> _Schema:
    edge = _object(
        "Joins each of some nodes with each of others.",
        ("from", "to"),
        from_={"oneOf": [_names("Nodes, or START.", minItems=1), _name("A node, or START.")]},
        to={"oneOf": [_names("Nodes, or END.", minItems=1), _name("A node, or END.")]},
        when=_ref("edge_when"),
        default=_flag("Taken if no edge with a `when` was."),
    )
    return {**edge, "not": {"required": ["when", "default"], "properties": {"default": {"const": True}}}}


def _settings() -> _Schema:
    return _object(
        "What holds for the workflow as a whole.",
        timeout=_seconds("Seconds for an execution."),
        iterations=_object(
            "How loops end.",
            limit={"type": "integer", "minimum": 1, "description": "Passes at most."},
            then=_choice("What happens at the limit.", "fail", "leave"),
            converges=_flag("Whether a pass that changes nothing is the last."),
            ignored_keys=_names("Keys that don't count as a change."),
            change_aware=_flag("Whether a node with the same task as before does not act again."),
        ),
        conversation=_object(
            "Where what agents say is kept.",
            kind=_choice("One thread, one for each agent, or a fork for each.", *get_args(ConversationKind)),
            session_id=_name("The session; without it each execution has its own."),
            thread_id=_name("The shared thread, or the root."),
            thread_prefix=_text("What the threads of agents begin with."),
        ),
    )


CONFIG_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Agent workflow",
    **_object(
        "A workflow of agents.",
        ("agents",),
        **{"$schema": _text("The schema of this file, for editors.")},
        name=_name("The name of the workflow."),
        description=_text("What it is for."),
        version=_text("The version of the workflow, in words of its author."),
        agents={
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"minLength": 1},
            "additionalProperties": _ref("node"),
        },
        edges={"type": "array", "items": _ref("edge")},
        settings=_ref("settings"),
    ),
    "$defs": _definitions(),
}
"""Draft 2020-12."""
