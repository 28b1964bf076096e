"""What a tool takes is read from its signature, its annotations and its docstring, and checked when it is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from perdure.agents import FunctionTool, tool
from perdure.agents.tools.schema import ArgumentsError, parse_docstring

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agents import FunctionInvocationContext


class Order(BaseModel):
    item: str
    count: int = 1


@dataclass
class Place:
    city: str


def google(city: str, unit: str = "C") -> str:
    """Tell the weather.

    It may be wrong.

    Args:
        city: Where, and a description
            that goes on.
        unit (str): C or F.

    Returns:
        A text.
    """
    return f"{city} {unit}"


def numpy(city: str, unit: str = "C") -> str:
    """Tell the weather.

    It may be wrong.

    Parameters
    ----------
    city : str
        Where, and a description
        that goes on.
    unit
        C or F.

    Returns
    -------
    str
        A text.
    """
    return f"{city} {unit}"


def rest(city: str, unit: str = "C") -> str:
    """Tell the weather.

    It may be wrong.

    :param city: Where, and a description
        that goes on.
    :param str unit: C or F.
    :returns: A text.
    """
    return f"{city} {unit}"


@pytest.mark.parametrize("function", [google, numpy, rest])
def test_descriptions_of_arguments_are_read_from_docstrings_of_every_style(function: Callable[..., str]) -> None:
    made = tool(function)
    properties = made.parameters()["properties"]
    assert made.description == "Tell the weather.\n\nIt may be wrong."
    assert properties["city"]["description"] == "Where, and a description that goes on."
    assert properties["unit"] == {"default": "C", "description": "C or F.", "title": "Unit", "type": "string"}
    assert made.parameters()["required"] == ["city"]


@pytest.mark.parametrize("text", [None, "", "Only words.", "Note: this is no section of arguments: at all."])
def test_a_docstring_without_sections_is_all_text(text: str | None) -> None:
    assert parse_docstring(text) == (text or "", {})


def test_annotations_describe_arguments_and_win_over_the_docstring() -> None:
    @tool
    def book(
        city: Annotated[str, "the city"],
        stars: Annotated[int, Field(description="how good", ge=1, le=5)] = 3,
        mode: Literal["fast", "slow"] = "fast",
    ) -> None:
        """Book.

        Args:
            city: not this
            stars: nor this
        """
        del city, stars, mode

    properties = book.parameters()["properties"]
    assert properties["city"]["description"] == "the city"
    assert properties["stars"]["description"] == "how good"
    assert properties["stars"]["maximum"] == 5
    assert properties["mode"]["enum"] == ["fast", "slow"]


def test_the_context_and_keyword_arguments_are_not_in_the_schema() -> None:
    @tool
    def plain(city: str, ctx: FunctionInvocationContext, **kwargs: Any) -> None:
        del city, ctx, kwargs

    @tool
    def optional(city: str, ctx: FunctionInvocationContext | None = None) -> None:
        del city, ctx

    @tool(schema={"type": "object", "properties": {"city": {"type": "string"}}})
    def unannotated(ctx, city):  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType] # noqa: ANN001, ANN202
        del ctx, city

    for made in (plain, optional, unannotated):
        assert list(made.parameters()["properties"]) == ["city"]
        assert made.sees_context


def test_two_contexts_are_refused() -> None:
    def greedy(one: FunctionInvocationContext, two: FunctionInvocationContext) -> None:
        del one, two

    with pytest.raises(ValueError, match="several FunctionInvocationContext parameters: one, two"):
        tool(greedy)


async def test_arguments_are_coerced_to_what_the_function_takes() -> None:
    taken: list[object] = []

    @tool
    def take(order: Order, place: Place, count: int, tags: list[str] | None = None) -> None:
        taken.extend([order, place, count, tags])

    await take.invoke(arguments={"order": {"item": "tea"}, "place": {"city": "Rome"}, "count": "3"})
    assert taken == [Order(item="tea"), Place("Rome"), 3, None]


async def test_an_argument_that_was_not_given_is_left_to_the_function_and_null_is_given() -> None:
    @tool
    def say(first: str = "default", second: str | None = "default") -> str:
        return f"{first} {second}"

    contents = await say.invoke(arguments={"second": None})
    assert [content.text for content in contents] == ["default None"]


async def test_a_field_as_default_is_a_default() -> None:
    @tool
    def say(text: str = Field(default="hello", description="what")) -> str:
        return text

    assert say.parameters()["properties"]["text"]["description"] == "what"
    assert (await say.invoke(arguments={}))[0].text == "hello"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({}, "count: Field required"), ({"count": "many"}, "count: Input should be a valid integer")],
)
def test_arguments_that_do_not_fit_are_named_without_their_values(arguments: dict[str, Any], reason: str) -> None:
    @tool
    def take(count: int) -> None:
        del count

    with pytest.raises(ArgumentsError, match=reason) as caught:
        take.validate_arguments(arguments)
    assert "many" not in str(caught.value)


async def test_parameters_may_be_named_as_pydantic_names_its_own() -> None:
    @tool
    def odd(json: str, model_name: str, copy: int = 1, _hidden: str = "x") -> str:
        return f"{json} {model_name} {copy} {_hidden}"

    assert list(odd.parameters()["properties"]) == ["json", "model_name", "copy", "_hidden"]
    given = {"json": "a", "model_name": "b", "copy": 2, "_hidden": "y"}
    assert (await odd.invoke(arguments=given))[0].text == "a b 2 y"


async def test_parameters_that_are_only_taken_by_place_are_given_by_place() -> None:
    @tool
    def add(first: int, /, second: int) -> int:
        return first - second

    assert (await add.invoke(arguments={"second": 1, "first": 3}))[0].text == "2"


def test_a_type_that_no_schema_describes_is_an_error_that_says_so() -> None:
    class Connection:
        pass

    def ask(connection: Connection) -> None:
        del connection

    with pytest.raises(TypeError, match="'ask' have a type that no JSON schema can describe"):
        tool(ask).parameters()


def test_a_json_schema_is_taken_as_it_is_and_checked() -> None:
    schema = {
        "type": "object",
        "properties": {"unit": {"enum": ["C", "F"]}, "count": {"type": ["integer", "null"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    made = FunctionTool(name="weather", input_model=schema)
    assert made.parameters() == schema
    assert made.validate_arguments({"unit": "C", "count": None}) == {"unit": "C", "count": None}
    for arguments, reason in [
        ({}, "'unit' is a required property"),
        ({"unit": "K"}, "unit must satisfy enum"),
        ({"unit": "C", "count": True}, "count must satisfy type"),
        ({"unit": "C", "other": 1}, "'other' was unexpected"),
    ]:
        with pytest.raises(ArgumentsError, match=reason):
            made.validate_arguments(arguments)


def test_a_pydantic_model_is_what_a_tool_takes() -> None:
    made = FunctionTool(name="order", description="Order.", input_model=Order)
    assert made.input_model is Order
    assert made.declaration_only
    assert made.to_json_schema_spec() == {
        "type": "function",
        "function": {"name": "order", "description": "Order.", "parameters": Order.model_json_schema()},
    }
    assert made.validate_arguments({"item": "tea", "count": "2"}) == {"item": "tea", "count": 2}
