"""Arguments of tools: a pydantic model made from a signature, or a JSON schema checked by jsonschema.

Descriptions come from annotations and from docstrings in Google, numpy or reST style.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args, get_origin

from perdure.agents.messages.structured import InvalidValueError, require_value
from perdure.annotations import Namespace, evaluate

if TYPE_CHECKING:
    from pydantic import BaseModel

_CONTEXT: Final = re.compile(r"\bFunctionInvocationContext\b")
_RECEIVERS: Final = frozenset({"self", "cls"})


_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_SECTIONS: Final = _ARGUMENTS | {
    *("returns", "return", "yields", "raises", "example", "examples", "note", "notes", "see also")
}
_GOOGLE_ENTRY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY: Final = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?()$")
_REST_ENTRY: Final = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"
)
_REST_FIELD: Final = re.compile(r"^:\w+(?:\s[^:]*)?:")


def docstring_of(func: Callable[..., Any]) -> str | None:
    """Return the docstring of a function, also inside partials and callable objects."""
    if isinstance(func, functools.partial):
        return docstring_of(cast("functools.partial[Any]", func).func)
    if inspect.isroutine(func) or inspect.isclass(func):
        return func.__doc__
    return type(func).__call__.__doc__ or type(func).__doc__


def parse_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the text before the sections of a docstring, and the descriptions of its arguments."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    starts = [number for number in range(len(lines)) if _starts_section(lines[number : number + 2])]
    arguments: dict[str, str] = {}
    for start, end in pairwise([*starts, len(lines)]):
        arguments |= _parse_section(lines[start:end])
    tidied = {name: " ".join(description.split()) for name, description in arguments.items()}
    text = "\n".join(lines[: starts[0] if starts else len(lines)]).strip()
    return text, {name: description for name, description in tidied.items() if description}


def _starts_section(lines: Sequence[str]) -> bool:
    if _REST_FIELD.match(lines[0]):
        return True
    is_underlined = len(lines) > 1 and set(lines[1].strip()) == {"-"}
    is_title = _title(lines[0]) in _SECTIONS and not _indent(lines[0])
    return is_title and (is_underlined or lines[0].rstrip().endswith(":"))


def _title(line: str) -> str:
    return line.strip().rstrip(":").lower()


def _parse_section(lines: Sequence[str]) -> dict[str, str]:
    """Return the arguments that a section describes. A reST field is a section with one argument."""
    if field := _REST_ENTRY.match(lines[0]):
        return {field[1]: " ".join([field[2], *(line for line in lines[1:] if _indent(line))])}
    if _title(lines[0]) not in _ARGUMENTS:
        return {}
    is_google = lines[0].rstrip().endswith(":")
    pattern, body = (_GOOGLE_ENTRY, lines[1:]) if is_google else (_NUMPY_ENTRY, lines[2:])
    depth = min((_indent(line) for line in body if line.strip()), default=0)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in body:
        entry = pattern.match(line.strip()) if line.strip() and _indent(line) == depth else None
        if entry is not None:
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
            found |= dict.fromkeys(names, entry[2])
        else:
            found |= {name: f"{found[name]} {line}" for name in names}
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class ArgumentsError(TypeError):
    """A call's arguments don't fit the tool. The model is told."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The signature of a tool's function, beyond the arguments that a model provides.

    Attributes:
        parameters: The parameters that a model provides.
        context: The parameter that gets the FunctionInvocationContext.
        receiver: `self` or `cls` of a function defined in a class.
    """

    parameters: tuple[inspect.Parameter, ...] = ()
    context: str | None = None
    takes_kwargs: bool = False
    receiver: str | None = None

    @classmethod
    def of(cls, func: Callable[..., Any], *, name: str, allow_bare_ctx: bool) -> CallSignature:
        """Read a signature. Raises ValueError for several context parameters.

        `allow_bare_ctx`: a parameter named `ctx` without an annotation is the context.
        """
        parameters = list(inspect.signature(func).parameters.values())
        receiver = parameters[0].name if parameters and parameters[0].name in _RECEIVERS else None
        inner = parameters[1:] if receiver else parameters
        contexts = [
            each.name
            for each in inner
            if _is_context(each.annotation)
            or (allow_bare_ctx and each.name == "ctx" and each.annotation is inspect.Parameter.empty)
        ]
        if len(contexts) > 1:
            raise ValueError(
                f"tool {name!r} has several FunctionInvocationContext parameters: {', '.join(contexts)}; keep one"
            )
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return cls(
            tuple([each for each in inner if each.kind not in variadic and each.name not in contexts]),
            contexts[0] if contexts else None,
            any(each.kind is inspect.Parameter.VAR_KEYWORD for each in inner),
            receiver,
        )

    def bind(self, arguments: Mapping[str, Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split arguments into positional and keyword ones; `kwargs` go to a function that takes any."""
        left = {**kwargs, **arguments} if self.takes_kwargs else dict(arguments)
        positional: list[Any] = []
        for each in self.parameters:
            if each.kind is not inspect.Parameter.POSITIONAL_ONLY or each.name not in left:
                break
            positional.append(left.pop(each.name))
        return positional, left


def _is_context(annotation: object) -> bool:
    if isinstance(annotation, str):
        return _CONTEXT.search(annotation) is not None
    each = (annotation, *get_args(annotation))
    return any(getattr(candidate, "__name__", None) == "FunctionInvocationContext" for candidate in each)


def make_model(
    func: Callable[..., Any], signature: CallSignature, *, name: str, namespace: Namespace | None = None
) -> type[BaseModel]:
    """Make a pydantic model of a function's arguments. Raises TypeError, NameError."""
    import pydantic  # noqa: PLC0415 - loaded on first use

    _, descriptions = parse_docstring(docstring_of(func))
    fields: dict[str, Any] = {}
    for each in signature.parameters:
        annotation: Any = str
        if each.annotation is not inspect.Parameter.empty:
            annotation = evaluate(each.annotation, func, namespace or Namespace())
        annotation = _describe(annotation, descriptions.get(each.name))
        if field_name(each.name) != each.name:
            annotation = Annotated[annotation, pydantic.Field(alias=each.name)]
        default = ... if each.default is inspect.Parameter.empty else each.default
        fields[field_name(each.name)] = (annotation, default)
    try:
        # A parameter may have a name that pydantic protects.
        config = pydantic.ConfigDict(protected_namespaces=())
        return pydantic.create_model(f"{name}_input", __config__=config, **fields)
    except pydantic.errors.PydanticSchemaGenerationError as error:
        raise TypeError(
            f"the parameters of tool {name!r} have a type that no JSON schema can describe: {error.message}; "
            "use JSON types, dataclasses or pydantic models"
        ) from error


def _describe(annotation: Any, description: str | None) -> Any:
    """Add a description to an annotation: its own first string in `Annotated`, else the docstring's."""
    import pydantic  # noqa: PLC0415 - loaded on first use

    notes: list[Any] = []
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
    if not any(getattr(note, "description", None) for note in notes):
        text = next((note for note in notes if isinstance(note, str)), None)
        if text is not None:
            notes = [pydantic.Field(description=text), *(note for note in notes if note is not text)]
        elif description is not None:
            notes.append(pydantic.Field(description=description))
    for note in notes:
        annotation = Annotated[annotation, note]
    return annotation


def field_name(name: str) -> str:
    """Return the model field of a parameter. pydantic reserves some names."""
    import pydantic  # noqa: PLC0415 - loaded on first use

    is_reserved = name.startswith("_") or hasattr(pydantic.BaseModel, name)
    return f"parameter_{name.strip('_')}" if is_reserved else name


class Arguments:
    """The arguments of a tool, described by a pydantic model or a JSON schema."""

    def __init__(
        self, name: str, description: type[BaseModel] | Mapping[str, Any], signature: CallSignature | None = None
    ) -> None:
        self.model = None if isinstance(description, Mapping) else description
        self._name = name
        self._schema = description if isinstance(description, Mapping) else None
        parameters = () if signature is None or self.model is None else signature.parameters
        self._names = {field_name(each.name): each.name for each in parameters}
        # A function can't use a pydantic `Field(...)` default itself, so these are always passed.
        by_field = {field_name(each.name) for each in parameters if type(each.default).__name__ == "FieldInfo"}
        self._field_defaults = by_field & set(() if self.model is None else self.model.model_fields)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema."""
        if self._schema is None:
            assert self.model is not None, "either a model or a schema is given"
            # A type that the model refers to may have been defined later.
            self.model.model_rebuild(raise_errors=False)
            self._schema = self.model.model_json_schema()
        return dict(self._schema)

    def validate(self, given: object) -> dict[str, Any]:
        """Return the arguments for the function. Missing ones are left to its defaults. Raises ArgumentsError."""
        if self.model is None or not isinstance(given, self.model):
            # An instance of another model counts by its values.
            dump = getattr(given, "model_dump", None)
            given = given if dump is None else dump(exclude_unset=True)
        if self.model is None and not isinstance(given, Mapping):
            raise ArgumentsError(f"tool {self._name!r} takes arguments by name, not {given!r}")
        try:
            if self.model is None:
                # A server's schema may be broken, or refer to a document elsewhere: the server checks them itself.
                require_value(cast("object", given), self.schema())
                return dict(cast("Mapping[str, Any]", given))
            valid = given if isinstance(given, self.model) else self.model.model_validate(given)
        except ValueError as error:
            # The values are left out: they may be secret, and the model knows them.
            faults = InvalidValueError.of(error)
            raise ArgumentsError(f"tool {self._name!r} can't accept these arguments: {faults}") from error
        wanted = valid.model_fields_set | self._field_defaults
        return {self._names.get(name, name): getattr(valid, name) for name in sorted(wanted)}
