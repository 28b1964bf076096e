"""The names of types: one that stays the same wherever the program runs, and one for messages."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# A spawned child of multiprocessing runs the same script under the second name.
_MAIN_NAMES = ("__main__", "__mp_main__")

# Where one version of Python keeps a class in a private module: the name that all versions share. And where a module of
# ours has moved: the name that stored data knows.
_MOVED_MODULES = {"pathlib._local": "pathlib", "perdure.workflows.sub": "perdure.workflow.sub"}


def type_name(cls: type) -> str:
    """The name by which stored data refers to a class: `"module:qualname"`, the module under its import name."""
    generic = vars(cls).get("__pydantic_generic_metadata__")
    if generic and generic["origin"]:
        # Pydantic names `Page[a.Item]` and `Page[b.Item]` alike; the arguments' full names tell them apart.
        arguments = ", ".join(_spelled(argument, type_name) for argument in generic["args"])
        return f"{type_name(generic['origin'])}[{arguments}]"
    return f"{module_name(cls.__module__)}:{cls.__qualname__}"


def module_name(module: str) -> str:
    """The name a module has when it is imported, also for the script that runs as `__main__`."""
    if module not in _MAIN_NAMES:
        return _MOVED_MODULES.get(module, module)
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return "__main__" if file is None else _import_name(str(file))


def describe(type_expression: object) -> str:
    """A type expression as a reader would write it: `list[Foo]`, `str | None`."""
    return _spelled(type_expression, lambda cls: cls.__name__)


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
    # `typing.Tuple` has no arguments at all, `tuple[()]` has none in its brackets.
    return f"{name}[{_listed(arguments, class_name) or '()'}]" if hasattr(expression, "__args__") else name


def _listed(expressions: Iterable[object], class_name: Callable[[type], str]) -> str:
    return ", ".join(_spelled(expression, class_name) for expression in expressions)


def with_article(name: str) -> str:
    """The name of a type in a sentence: `a str`, `an int`, `None`."""
    if name == "None":
        return name
    return f"an {name}" if name[:1].lower() in {"a", "e", "i", "o"} else f"a {name}"


def type_of(value: object) -> str:
    """The type of a value, for messages."""
    return describe(type(value))
