"""Names of types: for stored data, for messages, and for type expressions.

Names are parsed, never run: classes are looked up in loaded modules.
"""

from __future__ import annotations

import ast
import functools
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Union, cast, get_args, get_origin

from perdure.stored_names import find_pinned, pinned_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SHOWN_MAX = 200

# multiprocessing runs the script of a spawned child under the second name.
_MAIN_NAMES = ("__main__", "__mp_main__")

# Private modules of some Python versions, with the name that all versions share.
_MOVED_MODULES = {"pathlib._local": "pathlib"}


def type_name(cls: type) -> str:
    """Return the name of a class in stored data: `"module:qualname"`, with the module's import name."""
    generic = vars(cls).get("__pydantic_generic_metadata__")
    if generic and generic["origin"]:
        # pydantic gives `Page[a.Item]` and `Page[b.Item]` the same name, so add the full names of the arguments.
        arguments = ", ".join(_spelled(argument, type_name) for argument in generic["args"])
        return f"{type_name(generic['origin'])}[{arguments}]"
    return pinned_name(cls) or f"{module_name(cls.__module__)}:{cls.__qualname__}"


def module_name(module: str) -> str:
    """Return the import name of a module, also for the script that runs as `__main__`."""
    if module not in _MAIN_NAMES:
        return _MOVED_MODULES.get(module, module)
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return "__main__" if file is None else _import_name(str(file))


def describe(type_expression: object) -> str:
    """Format a type expression as a person would write it: `list[Foo]`, `str | None`."""
    return _spelled(type_expression, lambda cls: cls.__name__)


def describe_stored(type_expression: object) -> str:
    """Describe a type expression for stored data: a renamed class of perdure keeps its first name."""
    return _spelled(type_expression, stored_short_name)


def stored_short_name(cls: type) -> str:
    """Return the last part of the name that stored data has for a class."""
    pinned = pinned_name(cls)
    return cls.__name__ if pinned is None else pinned.replace(":", ".").rpartition(".")[2]


def dotted_name(type_expression: object) -> str:
    """Format a type expression with full names: `module.qualname`, `list[module.qualname]`. `type_named` reads it.

    Metadata of `Annotated` is left out, and aliases of `typing` get the name of what they stand for.
    """
    if type_expression is types.NoneType or not isinstance(type_expression, type) or get_origin(type_expression):
        return _spelled(type_expression, lambda cls: cls.__name__ if cls.__module__ == "builtins" else dotted_name(cls))
    pinned = pinned_name(type_expression)
    if pinned is not None:
        return pinned.replace(":", ".")
    return f"{type_expression.__module__}.{type_expression.__qualname__}"


def type_named(name: str) -> Any:
    """Return the type expression of a `dotted_name`. Raises TypeError if this program does not know it."""
    try:
        return _read(ast.parse(name, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        shown = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}..."
        raise TypeError(f"the type {shown!r} is not known to this program: import it before it is read") from error


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Name() | ast.Attribute():
            return _loaded(ast.unparse(node))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_read(left), _read(right)]  # noqa: UP007 - the operands may not be types
        case ast.Subscript(value=ast.Name(id="Literal"), slice=given):
            return Literal[tuple(map(ast.literal_eval, _parts(given)))]
        case ast.Subscript(value=value, slice=given):
            cls = _loaded(ast.unparse(value))
            arguments = tuple(... if getattr(part, "value", None) is ... else _read(part) for part in _parts(given))
            return cls[arguments] if is_plain_generic(cls) else types.GenericAlias(cls, arguments)
        case _:
            raise TypeError


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def is_plain_generic(cls: type) -> bool:
    """Return True if `cls[...]` runs only code of `typing`."""
    bases = cls.__mro__
    return Generic in bases and not any("__class_getitem__" in vars(base) for base in bases if base is not Generic)


def _loaded(dotted: str) -> Any:
    """Return the loaded class of this name, without calling a `__getattr__`."""
    parts = dotted.split(".")
    if dotted == "Any":
        return Any
    if len(parts) == 1:
        parts = ["builtins", dotted]
    for split in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:split]))
        for part in parts[split:]:
            found = vars(found).get(part) if isinstance(found, types.ModuleType | type) else None
        if isinstance(found, type):
            return found
        pinned = find_pinned(f"{'.'.join(parts[:split])}:{'.'.join(parts[split:])}")
        if pinned is not None:
            return pinned
    raise TypeError


@functools.cache
def _import_name(file: str) -> str:
    path = Path(file).absolute()
    names = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names)) or "__main__"


def _spelled(expression: object, class_name: Callable[[type], str]) -> str:
    if type(expression) is type and expression is not types.NoneType:
        return class_name(expression)
    if get_origin(expression) is not None:
        return _spelled_generic(expression, class_name)
    match expression:
        case None | types.NoneType:
            return "None"
        case types.EllipsisType():
            return "..."
        case list():
            return f"[{_listed(cast('list[object]', expression), class_name)}]"
        case type() if expression is not Any:
            return class_name(expression)
        case _:
            return str(getattr(expression, "__name__", None) or getattr(expression, "__forward_arg__", expression))


def _spelled_generic(expression: object, class_name: Callable[[type], str]) -> str:
    origin, arguments = get_origin(expression), get_args(expression)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin is Annotated:
        return _spelled(arguments[0], class_name)
    if origin is Union or origin is types.UnionType:
        return " | ".join(_spelled(argument, class_name) for argument in arguments)
    name = _spelled(origin, class_name)
    # `typing.Tuple` has no arguments, `tuple[()]` has empty brackets.
    return f"{name}[{_listed(arguments, class_name) or '()'}]" if hasattr(expression, "__args__") else name


def _listed(expressions: Iterable[object], class_name: Callable[[type], str]) -> str:
    return ", ".join(_spelled(expression, class_name) for expression in expressions)


def with_article(name: str) -> str:
    """Add the article to the name of a type: `a str`, `an int`, `None`."""
    if name == "None":
        return name
    return f"an {name}" if name[:1].lower() in {"a", "e", "i", "o"} else f"a {name}"


def type_of(value: object) -> str:
    """Return the type of a value, for messages."""
    return describe(type(value))


def require_unicode(kind: str, name: str) -> str:
    """Return a name that can be stored. Raises ValueError for one with a lone surrogate, which no encoding has."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the {kind} {name!r} contains the lone surrogate {name[error.start]!r}, which is no character; "
            "decode the text with its real encoding, or with errors='replace'"
        ) from error
    return name
