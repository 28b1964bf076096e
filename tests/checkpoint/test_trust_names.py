"""A script has the same name whether it is run or imported; types have names for messages."""

from __future__ import annotations

import collections
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar, Union

import pytest
from pydantic import BaseModel

from perdure.typenames import describe, module_name, type_name

T = TypeVar("T")

SCRIPT = """
from dataclasses import dataclass
from perdure.codec.codec import Codec
from perdure.codec.trust import Trust
from perdure.typenames import type_name


@dataclass
class Cart:
    total: int


def codec():
    return Codec(Trust.of().with_module(__name__))


if __name__ == "__main__":
    print(type_name(Cart), codec().encode(Cart(1), path="it").text.decode())
"""

READER = """
import sys
import {module} as module
from perdure.codec.trust import Trust
from perdure.typenames import type_name

value = module.codec().decode(sys.argv[1].encode(), {{}}, path="it")
assert value == module.Cart(1), value
print(type_name(module.Cart))
"""

ALLOWED = """
from dataclasses import dataclass
from perdure.codec.trust import Trust
from perdure.typenames import type_name


@dataclass
class Cart:
    total: int


for name in ("__main__:Cart", type_name(Cart)):
    trust = Trust.of(allowed=[name])
    assert trust.trusts(Cart), name
    assert trust.lookup(type_name(Cart)) is Cart
print(type_name(Cart))
"""


class Item(BaseModel):
    pass


class Page(BaseModel, Generic[T]):
    item: T


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "shop" / "carts"
    package.mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").touch()
    (package / "__init__.py").touch()
    for place in (tmp_path / "script.py", package / "inner.py", package / "__main__.py"):
        place.write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (["script.py"], "script"),
        (["-m", "script"], "script"),
        (["shop/carts/inner.py"], "shop.carts.inner"),
        (["-m", "shop.carts.inner"], "shop.carts.inner"),
        (["shop/carts/__main__.py"], "shop.carts.__main__"),
        (["-m", "shop.carts"], "shop.carts.__main__"),
    ],
)
def test_what_a_script_wrote_is_read_where_it_is_imported(folder: Path, arguments: list[str], module: str) -> None:
    name, text = run(folder, *arguments).split(" ", 1)
    assert name == f"{module}:Cart"
    (folder / "reader.py").write_text(READER.format(module=module))
    assert run(folder, "reader.py", text) == name


def test_a_class_of_the_script_is_allowed_by_both_of_its_names(folder: Path) -> None:
    (folder / "allowed.py").write_text(ALLOWED)
    assert run(folder, "allowed.py") == "allowed:Cart"


def test_without_a_file_the_main_module_keeps_its_name(folder: Path) -> None:
    program = "from perdure.typenames import module_name; print(module_name('__main__'))"
    assert run(folder, "-c", program) == "__main__"


def test_a_spawned_child_has_the_names_of_its_parent(folder: Path) -> None:
    program = """
import multiprocessing
from perdure.typenames import type_name

class Thing: pass

def child(names): names.put(type_name(Thing))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    names = context.Queue()
    process = context.Process(target=child, args=(names,))
    process.start()
    print(type_name(Thing), names.get())
    process.join()
"""
    (folder / "spawning.py").write_text(program)
    assert run(folder, "spawning.py") == "spawning:Thing spawning:Thing"


def test_other_modules_keep_their_names() -> None:
    assert module_name("collections.abc") == "collections.abc"
    assert type_name(collections.OrderedDict) == "collections:OrderedDict"
    assert type_name(Path) == "pathlib:Path"
    assert type_name(int) == "builtins:int"


def test_a_parametrised_model_is_named_with_its_arguments() -> None:
    assert type_name(Page[Item]) == f"{__name__}:Page[{__name__}:Item]"
    assert type_name(Page[Item | None]) == f"{__name__}:Page[{__name__}:Item | None]"
    assert type_name(Page) == f"{__name__}:Page"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (int, "int"),
        (None, "None"),
        (type(None), "None"),
        (Any, "Any"),
        (Item, "Item"),
        (list[Item], "list[Item]"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[()], "tuple[()]"),
        (typing.List[int], "list[int]"),  # noqa: UP006
        (typing.Tuple, "tuple"),  # noqa: UP006
        (str | None, "str | None"),
        (Optional[str], "str | None"),  # noqa: UP045
        (Union[int, Item], "int | Item"),  # noqa: UP007
        (Literal["a", 1], "Literal['a', 1]"),
        (Annotated[int, "metres"], "int"),
        (Callable[[int, Item], str], "Callable[[int, Item], str]"),
        (Callable[..., str], "Callable[..., str]"),
        (T, "T"),
        (typing.ForwardRef("Later"), "Later"),
        ("Later", "Later"),
        (typing.NewType("Id", int), "Id"),
    ],
    ids=str,
)
def test_a_type_expression_is_described_as_it_would_be_written(expression: object, words: str) -> None:
    assert describe(expression) == words
