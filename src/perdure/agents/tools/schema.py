"""What a tool can be called with: read from the signature of a function, and checked when it is called."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args, get_origin

from perdure.annotations import Namespace, evaluate
from perdure.data import frozen, mutable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_OTHERS: Final = frozenset(
    {"returns", "return", "yields", "raises", "example", "examples", "note", "notes", "see also"}
)
_GOOGLE_ENTRY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY: Final = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_REST_ENTRY: Final = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"
)
_REST_FIELD: Final = re.compile(r"^:\w+(?:\s[^:]*)?:")


@frozen
class Documented:
    """A docstring that was read: what stands before its sections, and what it says of each argument."""

    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])


def docstring_of(func: Callable[..., Any]) -> str | None:
    """What is written about a function, beneath partials and callable objects."""
    if isinstance(func, functools.partial):
        return docstring_of(cast("functools.partial[Any]", func).func)
    if inspect.isroutine(func) or inspect.isclass(func):
        return func.__doc__
    return type(func).__call__.__doc__ or type(func).__doc__


def read_docstring(docstring: str | None) -> Documented:
    """What a docstring says. One without sections that can be read is all text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    sections = list(_sections(lines))
    text = "\n".join(lines[: sections[0].start if sections else len(lines)]).strip()
    arguments: dict[str, str] = {}
    for section in sections:
        arguments |= section.arguments(lines)
    return Documented(text, arguments)


@frozen
class _Section:
    """The lines of a section, its heading included."""

    kind: str
    start: int
    end: int
    is_about_arguments: bool

    def arguments(self, lines: Sequence[str]) -> dict[str, str]:
        if not self.is_about_arguments:
            return {}
        match self.kind:
            case "google":
                return _google(lines[self.start + 1 : self.end])
            case "numpy":
                return _numpy(lines[self.start + 2 : self.end])
            case _:
                return _rest(lines[self.start : self.end])


def _sections(lines: Sequence[str]) -> list[_Section]:
    starts = [(number, kind) for number in range(len(lines)) if (kind := _heading(lines, number)) is not None]
    ends = [number for number, _ in starts[1:]]
    return [
        _Section(kind, start, end, kind == "rest" or _title(lines[start]) in _ARGUMENTS)
        for (start, kind), end in zip(starts, [*ends, len(lines)], strict=False)
    ]


def _heading(lines: Sequence[str], number: int) -> str | None:
    """In whose style a section begins at this line, if one does."""
    line = lines[number]
    if _REST_FIELD.match(line):
        return "rest"
    if _title(line) not in _ARGUMENTS | _OTHERS or line != line.lstrip():
        return None
    if line.rstrip().endswith(":"):
        return "google"
    following = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return "numpy" if following and set(following) == {"-"} else None


def _title(line: str) -> str:
    return line.strip().rstrip(":").lower()


def _google(lines: Sequence[str]) -> dict[str, str]:
    depth = min((_indent(line) for line in lines if line.strip()), default=0)
    found: dict[str, str] = {}
    name: str | None = None
    for line in lines:
        entry = _GOOGLE_ENTRY.match(line.strip()) if _indent(line) == depth else None
        if entry is not None:
            name = str(entry[1])
            found[name] = entry[2]
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}"
    return _tidy(found)


def _numpy(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        entry = _NUMPY_ENTRY.match(line) if line.strip() and not _indent(line) else None
        if entry is not None:
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
            found |= dict.fromkeys(names, "")
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return _tidy(found)


def _rest(lines: Sequence[str]) -> dict[str, str]:
    """A field of reST is a section of its own, and goes on where lines are indented."""
    entry = _REST_ENTRY.match(lines[0])
    if entry is None:
        return {}
    more = [line.strip() for line in lines[1:] if _indent(line)]
    return _tidy({entry[1]: " ".join([entry[2], *more])})


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _tidy(found: Mapping[str, str]) -> dict[str, str]:
    tidied = {name: " ".join(text.split()) for name, text in found.items()}
    return {name: text for name, text in tidied.items() if text}


_CONTEXT: Final = re.compile(r"\bFunctionInvocationContext\b")
_RECEIVERS: Final = frozenset({"self", "cls"})
_JSON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


class ArgumentsError(TypeError):
    """A call has arguments that the tool can't take. The model is told."""


@frozen
class Shape:
    """How a function wants to be called, beside the arguments that a model gives."""

    parameters: tuple[inspect.Parameter, ...] = ()
    """Those that a model gives."""
    context: str | None = None
    """The one that is given the context of the call."""
    takes_more: bool = False
    """Whether it takes any keyword argument."""
    receiver: str | None = None
    """`self` or `cls`, of a function in the body of a class."""

    def bound(self, arguments: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by place and by name; `more` is for a function that takes any."""
        left = {**more, **arguments} if self.takes_more else dict(arguments)
        by_place: list[Any] = []
        for each in self.parameters:
            if each.kind is not inspect.Parameter.POSITIONAL_ONLY or each.name not in left:
                break
            by_place.append(left.pop(each.name))
        return by_place, left


def shape_of(func: Callable[..., Any], *, name: str, is_ctx_enough: bool) -> Shape:
    """How a function wants to be called. Raises ValueError if it wants more than one context.

    `is_ctx_enough`: a parameter named `ctx` without annotation is the context.
    """
    parameters = list(inspect.signature(func).parameters.values())
    receiver = parameters[0].name if parameters and parameters[0].name in _RECEIVERS else None
    inner = parameters[1:] if receiver else parameters
    contexts = [each.name for each in inner if is_context(each.annotation) or (is_ctx_enough and _is_bare_ctx(each))]
    if len(contexts) > 1:
        raise ValueError(
            f"tool {name!r} has several FunctionInvocationContext parameters: {', '.join(contexts)}; keep one"
        )
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = tuple([each for each in inner if each.kind not in variadic and each.name not in contexts])
    takes_more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in inner)
    return Shape(given, contexts[0] if contexts else None, takes_more, receiver)


def _is_bare_ctx(parameter: inspect.Parameter) -> bool:
    return parameter.name == "ctx" and parameter.annotation is inspect.Parameter.empty


def is_context(annotation: object) -> bool:
    """Whether an annotation names the context of a call, also where it is text or one of several types."""
    if isinstance(annotation, str):
        return _CONTEXT.search(annotation) is not None
    each = (annotation, *get_args(annotation))
    return any(getattr(candidate, "__name__", None) == "FunctionInvocationContext" for candidate in each)


def model_of(
    func: Callable[..., Any], shape: Shape, *, name: str, namespace: Namespace | None = None
) -> type[BaseModel]:
    """A pydantic model of what a function takes from a model. Raises TypeError, NameError."""
    pydantic = require_pydantic()
    said = read_docstring(docstring_of(func)).arguments
    fields = {
        _field_name(each.name): _field_of(func, each, said.get(each.name), namespace or Namespace())
        for each in shape.parameters
    }
    try:
        # A parameter may be named as pydantic's own names are.
        config = pydantic.ConfigDict(protected_namespaces=())
        return pydantic.create_model(f"{name}_input", __config__=config, **cast("Any", fields))
    except pydantic.errors.PydanticSchemaGenerationError as error:
        raise TypeError(
            f"the parameters of tool {name!r} have a type that no JSON schema can describe: {error.message}; "
            "use types that JSON has, dataclasses or pydantic models"
        ) from error


def _field_of(
    func: Callable[..., Any], parameter: inspect.Parameter, said: str | None, namespace: Namespace
) -> tuple[Any, Any]:
    pydantic = require_pydantic()
    is_annotated = parameter.annotation is not inspect.Parameter.empty
    annotation: Any = evaluate(parameter.annotation, func, namespace) if is_annotated else str
    annotation, is_described = _with_descriptions(annotation)
    notes: list[Any] = [] if is_described or said is None else [pydantic.Field(description=said)]
    if _field_name(parameter.name) != parameter.name:
        notes.append(pydantic.Field(alias=parameter.name))
    for note in notes:
        annotation = Annotated[annotation, note]
    return annotation, ... if parameter.default is inspect.Parameter.empty else parameter.default


def _with_descriptions(annotation: Any) -> tuple[Any, bool]:
    """An annotation whose first text is a description, and whether it has one."""
    if get_origin(annotation) is not Annotated:
        return annotation, False
    inner, *notes = get_args(annotation)
    is_described = any(getattr(note, "description", None) for note in notes)
    if not is_described and (text := next((note for note in notes if isinstance(note, str)), None)) is not None:
        is_described = True
        notes = [require_pydantic().Field(description=text), *(note for note in notes if note is not text)]
    for note in notes:
        inner = Annotated[inner, note]
    return inner, is_described


def _field_name(name: str) -> str:
    """The name of a parameter as a field: pydantic keeps some for itself."""
    is_taken = name.startswith("_") or hasattr(require_pydantic().BaseModel, name)
    return f"parameter_{name.strip('_')}" if is_taken else name


@mutable
class Arguments:
    """What a tool takes: a pydantic model, or a JSON schema."""

    name: str
    model: type[BaseModel] | None = None
    schema: Mapping[str, Any] | None = None
    shape: Shape = field(default_factory=Shape)

    def as_schema(self) -> dict[str, Any]:
        """As a JSON schema."""
        if self.schema is None:
            assert self.model is not None, "it has one of the two"
            # What it refers to may have been defined after it.
            self.model.model_rebuild(raise_errors=False)
            self.schema = self.model.model_json_schema()
        return dict(self.schema)

    def checked(self, given: object) -> dict[str, Any]:
        """Arguments as the function takes them. Those that were not given are left to its defaults.

        Raises:
            ArgumentsError: they don't fit.
        """
        if self.model is not None:
            return self._validated(self.model, given)
        if not isinstance(given, Mapping):
            dump = getattr(given, "model_dump", None)
            if dump is None:
                raise ArgumentsError(f"tool {self.name!r} is given arguments by name, not {given!r}")
            given = dump(exclude_unset=True)
        arguments = dict(cast("Mapping[str, Any]", given))
        require_fitting(arguments, self.as_schema(), self.name)
        return arguments

    def _validated(self, model: type[BaseModel], given: object) -> dict[str, Any]:
        pydantic = require_pydantic()
        try:
            valid = given if isinstance(given, model) else model.model_validate(_plain(given))
        except pydantic.ValidationError as error:
            raise ArgumentsError(f"tool {self.name!r} can't take these arguments: {_faults(error)}") from error
        names = {_field_name(each.name): each.name for each in self.shape.parameters}
        defaults = {_field_name(each.name) for each in self.shape.parameters if _is_field(each.default)}
        wanted = valid.model_fields_set | (defaults & set(model.model_fields))
        return {names.get(name, name): getattr(valid, name) for name in sorted(wanted)}


def _plain(given: object) -> object:
    """Another model's instance counts by its values."""
    dump = getattr(given, "model_dump", None)
    return given if dump is None else dump(exclude_unset=True)


def _is_field(default: object) -> bool:
    """Whether a default is a `Field(...)`: the function itself can't do anything with it."""
    return type(default).__name__ == "FieldInfo"


def _faults(error: Any) -> str:
    """What is wrong, without the values: they may be secret, and the model knows them."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in faults)


def require_fitting(arguments: Mapping[str, Any], schema: Mapping[str, Any], name: str) -> None:
    """Raise ArgumentsError if arguments are plainly not what a JSON schema asks for: names, types, enums."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    missing = sorted(set(schema.get("required") or ()) - set(arguments))
    if missing:
        raise ArgumentsError(f"tool {name!r} lacks {', '.join(missing)}")
    unknown = sorted(set(arguments) - set(properties))
    if unknown and schema.get("additionalProperties") is False:
        raise ArgumentsError(f"tool {name!r} takes no {', '.join(unknown)}")
    for argument, value in arguments.items():
        wanted = properties.get(argument)
        if isinstance(wanted, Mapping):
            _require_value(name, argument, value, cast("Mapping[str, Any]", wanted))


def _require_value(name: str, argument: str, value: object, wanted: Mapping[str, Any]) -> None:
    choices: Sequence[Any] | None = wanted.get("enum")
    if choices and value not in choices:
        raise ArgumentsError(f"tool {name!r}: {argument} is one of {list(choices)!r}")
    types = wanted.get("type")
    names: list[str] = [types] if isinstance(types, str) else list(types or ())
    if names and not any(_is_of(value, each) for each in names):
        raise ArgumentsError(f"tool {name!r}: {argument} is of type {' or '.join(names)}, not {type(value).__name__}")


def _is_of(value: object, name: str) -> bool:
    if name not in _JSON_TYPES:
        return True
    return isinstance(value, _JSON_TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def require_pydantic() -> Any:
    """The pydantic package. Raises ImportError that says how to get it."""
    try:
        import pydantic  # noqa: PLC0415 - it is heavy, and only programs with tools need it
    except ImportError as error:
        raise ImportError("tools are described and checked by pydantic; pip install 'perdure[agents]'") from error
    return pydantic
