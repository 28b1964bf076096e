"""Arguments of tools: a pydantic model made from a signature, or a JSON schema checked by jsonschema."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args, get_origin

from perdure.agents.tools.docstrings import docstring_of, parse_docstring
from perdure.annotations import Namespace, evaluate

if TYPE_CHECKING:
    from pydantic import BaseModel

_CONTEXT: Final = re.compile(r"\bFunctionInvocationContext\b")
_RECEIVERS: Final = frozenset({"self", "cls"})


class ArgumentsError(TypeError):
    """A call's arguments don't fit the tool. The model is told."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The signature of a tool's function, beyond the arguments that a model provides."""

    parameters: tuple[inspect.Parameter, ...] = ()
    """The parameters that a model provides."""
    context: str | None = None
    """The parameter that gets the FunctionInvocationContext."""
    takes_kwargs: bool = False
    receiver: str | None = None
    """`self` or `cls` of a function defined in a class."""

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

    descriptions = parse_docstring(docstring_of(func)).arguments
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
        parameters = () if signature is None else signature.parameters
        self._names = {field_name(each.name): each.name for each in parameters} if self.model is not None else {}
        # A function can't use a pydantic `Field(...)` default itself, so these are always passed.
        self._field_defaults = {name for name in self._names if self._has_field_default(name, parameters)}

    def _has_field_default(self, name: str, parameters: tuple[inspect.Parameter, ...]) -> bool:
        assert self.model is not None, "only models have fields"
        default = next(each.default for each in parameters if field_name(each.name) == name)
        return type(default).__name__ == "FieldInfo" and name in self.model.model_fields

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
        if self.model is None:
            return self._validate_by_schema(given)
        import pydantic  # noqa: PLC0415 - loaded on first use

        try:
            valid = given if isinstance(given, self.model) else self.model.model_validate(given)
        except pydantic.ValidationError as error:
            # The values are left out: they may be secret, and the model knows them.
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            told = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in faults)
            raise ArgumentsError(f"tool {self._name!r} can't accept these arguments: {told}") from error
        wanted = valid.model_fields_set | self._field_defaults
        return {self._names.get(name, name): getattr(valid, name) for name in sorted(wanted)}

    def _validate_by_schema(self, given: object) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise ArgumentsError(f"tool {self._name!r} takes arguments by name, not {given!r}")
        arguments = dict(cast("Mapping[str, Any]", given))
        if faults := self._schema_faults(arguments):
            raise ArgumentsError(f"tool {self._name!r} can't accept these arguments: {'; '.join(faults)}")
        return arguments

    def _schema_faults(self, arguments: dict[str, Any]) -> list[str]:
        from jsonschema.exceptions import UnknownType  # noqa: PLC0415 - loaded on first use
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - loaded on first use

        try:
            return [_describe_fault(error) for error in self._validator.iter_errors(arguments)]
        except (Unresolvable, UnknownType):
            # A server's schema may be broken, or refer to a document elsewhere. The server checks the arguments itself.
            return []

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import validators  # noqa: PLC0415 - loaded on first use

        def is_array(_: object, value: object) -> bool:
            return isinstance(value, list | tuple)

        schema = self.schema()
        base: Any = validators.validator_for(schema, default=validators.Draft202012Validator)
        checker = base.TYPE_CHECKER.redefine("array", is_array)
        return cast("Any", validators).extend(base, type_checker=checker)(schema)


def _describe_fault(error: Any) -> str:
    """Describe a fault without the value, which may be secret."""
    place = ".".join(map(str, error.absolute_path))
    if error.validator in {"required", "additionalProperties"}:
        return f"{place}: {error.message}" if place else error.message
    return f"{place or 'arguments'}: must match {error.validator!r}: {error.validator_value!r}"
