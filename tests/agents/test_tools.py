"""Tools: functions of every kind, how they are called, what they give, and how often they may be."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.agents import (
    SKIP_PARSING,
    Content,
    FunctionInvocationContext,
    FunctionTool,
    expand_tools,
    normalize_tools,
    tool,
)
from perdure.agents.tools.context import join_tools
from perdure.errors import ToolException


def add(first: int, second: int = 1) -> int:
    """Add two numbers."""
    return first + second


async def add_slowly(first: int, second: int = 1) -> int:
    """Add two numbers."""
    return first + second


class Adder:
    """Adds what it has."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    @tool(name="more", max_invocations=3)
    def add(self, number: int) -> int:
        """Add to a number."""
        return self.amount + number

    def plus(self, number: int) -> int:
        """Add to a number."""
        return self.amount + number

    def __call__(self, number: int) -> int:
        """Add to a number."""
        return self.amount + number


async def text_of(made: FunctionTool, **arguments: Any) -> str:
    (content,) = await made.invoke(arguments=arguments)
    return content.text


def test_a_decorator_with_and_without_arguments_makes_a_tool() -> None:
    plain = tool(add)
    named = tool(name="sum", description="Sums.", approval_mode="always_require", kind="math")(add)
    assert (plain.name, plain.description, plain.approval_mode) == ("add", "Add two numbers.", "never_require")
    assert (named.name, named.description, named.approval_mode, named.kind) == (
        "sum",
        "Sums.",
        "always_require",
        "math",
    )
    assert not plain.declaration_only
    assert str(plain) == "FunctionTool(name=add, description=Add two numbers.)"
    assert tool(plain).func is add


async def test_a_tool_can_be_called_as_the_function_that_it_is() -> None:
    assert tool(add)(2, second=3) == 5
    assert await tool(add_slowly)(2) == 3


@pytest.mark.parametrize(
    "made",
    [
        tool(add),
        tool(add_slowly),
        tool(functools.partial(add), name="partial"),
        tool(Adder(1).plus, name="method"),
        tool(Adder(1), name="callable"),
        Adder(1).add,
    ],
    ids=["sync", "async", "partial", "method", "callable", "decorated method"],
)
async def test_functions_of_every_kind_are_tools(made: FunctionTool) -> None:
    names = list(made.parameters()["properties"])
    assert await text_of(made, **{names[0]: 2}) == "3"


async def test_a_plain_function_runs_in_a_thread_of_its_own() -> None:
    @tool
    def where() -> str:
        return threading.current_thread().name

    assert await text_of(where) != threading.current_thread().name


async def test_whoever_cancels_a_plain_function_waits_for_its_end() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def work() -> None:
        begun.set()
        assert go_on.wait(10)
        ended.set()

    task = asyncio.ensure_future(work.invoke())
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.wait([task], timeout=0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_methods_of_different_instances_share_one_count() -> None:
    Adder(1).add.invocation_count = 0
    assert Adder(1).add(1) == 2
    assert Adder(5).add(1) == 6
    Adder(7).add(1)
    with pytest.raises(ToolException, match="'more' may be called 3 times"):
        Adder(1).add(1)
    Adder(1).add.invocation_count = 0
    assert Adder(1).add(1) == 2


async def test_a_tool_that_fails_too_often_can_not_be_used_any_more() -> None:
    @tool(max_invocation_exceptions=2)
    async def fail() -> None:
        raise OSError("broken")

    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            await fail.invoke()
    with pytest.raises(ToolException, match="'fail' has failed 2 times"):
        await fail.invoke()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_invocations": 0}, "max_invocations must be 1 or more"),
        ({"max_invocation_exceptions": 0}, "max_invocation_exceptions must be 1 or more"),
        ({"approval_mode": "sometimes"}, "approval_mode must be 'always_require' or 'never_require'"),
        ({"if_interrupted": "guess"}, "if_interrupted must be 'tell', 'rerun', 'ask' or a function"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tool(add, **options)


@pytest.mark.parametrize("options", [{"schema": 5}, {"schema": "x: int"}, {"result_parser": 5}])
def test_what_no_call_could_use_is_refused_when_the_tool_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"tool 'len': .* not "):
        tool(len, **options)


async def test_a_tool_without_a_function_can_not_be_called() -> None:
    declared = FunctionTool(name="ask_user", description="Ask.")
    assert declared.parameters() == {"type": "object", "properties": {}}
    with pytest.raises(ToolException, match="'ask_user' has no function"):
        declared()
    with pytest.raises(ToolException, match="'ask_user' has no function"):
        await declared.invoke()


class Pair(BaseModel):
    left: int
    right: date


@dataclass
class Point:
    x: int


IMAGE = Content.from_data(b"png", "image/png")


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        ("as it is", ["as it is"]),
        (None, [""]),
        (7, ["7"]),
        ({"a": Point(1), "b": {2}}, ['{"a": {"x": 1}, "b": [2]}']),
        (Pair(left=1, right=date(2030, 1, 2)), ['{"left": 1, "right": "2030-01-02"}']),
        ([Pair(left=1, right=date(2030, 1, 2))], ['[{"left": 1, "right": "2030-01-02"}]']),
        (["ä", 1.5, True], ['["ä", 1.5, true]']),
        (IMAGE, [None]),
        ([IMAGE, "and", {"a": 1}], [None, "and", '{"a": 1}']),
    ],
)
async def test_what_a_tool_gives_is_told_as_contents(result: object, texts: list[str | None]) -> None:
    @tool
    def give() -> object:
        return result

    assert [content.text for content in await give.invoke()] == texts
    assert FunctionTool.parse_result(result) == await give.invoke()


async def test_a_parser_of_results_may_be_given_and_may_fail() -> None:
    assert await text_of(tool(add, result_parser=lambda result: f"<{result}>"), first=1) == "<2>"
    assert await text_of(tool(add, result_parser=lambda _: str(1 // 0)), first=1) == "2"
    assert await tool(add, result_parser=SKIP_PARSING).invoke(arguments={"first": 1}) == 2
    assert await tool(add).invoke(first=1, skip_parsing=True) == 2


async def test_keywords_and_context_are_given_to_functions_that_want_them() -> None:
    seen: list[object] = []

    @tool
    def want(text: str, ctx: FunctionInvocationContext, **kwargs: Any) -> None:
        seen.extend([text, ctx.kwargs, kwargs, ctx.arguments, ctx.function.name])

    context = FunctionInvocationContext(want, {"text": "a"}, kwargs={"user": "me"})
    await want.invoke(context=context)
    assert seen == ["a", {"user": "me"}, {"user": "me"}, {"text": "a"}, "want"]
    assert context.idempotency_key == context.idempotency_key


async def test_arguments_are_given_in_one_way() -> None:
    with pytest.raises(TypeError, match="not both"):
        await tool(add).invoke(arguments={"first": 1}, second=2)


class Server:
    """As an MCP server looks."""

    name = "server"

    def __init__(self, *functions: FunctionTool) -> None:
        self.functions = list(functions)

    async def connect(self) -> None:
        """Nothing to connect to."""


def test_lists_of_tools_are_made_of_all_that_can_be_one() -> None:
    hosted = {"type": "web_search"}
    made, server = tool(add, name="made"), Server(tool(add, name="served"))
    listed = normalize_tools([add, made, hosted, server, [add_slowly]])
    assert [getattr(each, "name", each) for each in listed] == ["add", "made", hosted, "server", "add_slowly"]
    assert [getattr(each, "name", each) for each in expand_tools(listed)] == [
        "add",
        "made",
        hosted,
        "served",
        "add_slowly",
    ]
    assert normalize_tools(None) == []
    assert [each.name for each in normalize_tools(add)] == ["add"]
    assert normalize_tools(hosted) == [hosted]


def test_two_tools_of_one_name_are_refused() -> None:
    first, second = tool(add), tool(add)
    assert join_tools([first], [first]) == [first]
    with pytest.raises(ValueError, match="two tools named 'add'"):
        join_tools([first], [second])
    spec = {"type": "function", "function": {"name": "add"}}
    with pytest.raises(ValueError, match="two tools named 'add'"):
        join_tools([first], [spec])


def test_a_context_changes_the_tools_of_a_turn_and_nothing_outside_of_one() -> None:
    first, second = tool(add), tool(add_slowly)
    live: list[Any] = [first]
    context = FunctionInvocationContext(first, {}, tools=live)
    context.add_tools(second)
    assert live == [first, second]
    with pytest.raises(ValueError, match="two tools named 'add_slowly'"):
        context.add_tools([tool(add, name="new"), add_slowly])
    assert live == [first, second]
    context.remove_tools(["add", second])
    assert live == []
    with pytest.raises(RuntimeError, match="was not called by an agent"):
        FunctionInvocationContext(first, {}).add_tools(second)


async def test_bytes_are_text_or_data_with_a_text_for_the_model() -> None:
    text, data = FunctionTool.parse_result(b"\x89PNG\r\n\x1a\n" + b"\xff" * 10)
    assert (text.text, data.type, data.media_type) == (
        "The tool returned 18 bytes of the type image/png.",
        "data",
        "image/png",
    )
    assert data.data_bytes() == b"\x89PNG\r\n\x1a\n" + b"\xff" * 10
    [plain] = FunctionTool.parse_result("grüße".encode())
    assert plain.text == "grüße"
    _, unknown = FunctionTool.parse_result(bytearray(b"\xff\x00"))
    assert (unknown.media_type, unknown.data_bytes()) == ("application/octet-stream", b"\xff\x00")


async def test_bytes_that_a_parser_refuses_are_kept_as_bytes() -> None:
    def parse(_: Any) -> str:
        raise ValueError

    shot = FunctionTool(name="shot", func=lambda: b"\xff\x00", result_parser=parse)
    assert shot.parse(b"\xff\x00")[1].data_bytes() == b"\xff\x00"
