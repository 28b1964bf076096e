"""MCP servers as tools: real servers, over standard input and output and over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST
from tests.agents.mcp_process import SERVER, HttpServer, http_server, noted

from perdure.agents import Content, FunctionInvocationContext, FunctionTool, Message
from perdure.errors import ToolException, ToolExecutionException
from perdure.mcp import MCPStdioTool, MCPStreamableHTTPTool, MCPTool
from perdure.providers.mcp.server import exposed_name
from perdure.providers.mcp.session import call_failed, is_connection_lost, is_session_forgotten, server_unreachable
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """One server for all tests that leave it alive: starting one takes seconds."""
    with http_server(tmp_path_factory.mktemp("mcp") / "notes") as server:
        yield server


@pytest.fixture
async def library(lasting: HttpServer) -> AsyncGenerator[MCPTool]:
    lasting.notes.unlink(missing_ok=True)
    async with MCPStreamableHTTPTool("library", lasting.url) as tool:
        yield tool


def over_stdio(notes: Path, **options: Any) -> MCPStdioTool:
    return MCPStdioTool("library", sys.executable, args=[SERVER, "stdio", str(notes)], **options)


def named(tool: MCPTool, name: str) -> FunctionTool:
    return next(function for function in tool.functions if function.name == name)


async def test_a_servers_tools_are_functions_with_its_schemas(library: MCPTool) -> None:
    add = named(library, "add")

    assert add.description == "Add two numbers."
    assert add.parameters()["required"] == ["first", "second"]
    assert add.parameters()["properties"]["first"]["type"] == "integer"
    assert named(library, "books-order").description == "Order a book."


async def test_what_tools_give_comes_as_contents(library: MCPTool) -> None:
    assert await named(library, "add").invoke(arguments={"first": 2, "second": 3}) == [Content.from_text("5")]

    (picture,) = await named(library, "picture").invoke(arguments={})
    assert (picture.type, picture.media_type, picture.data_bytes()) == ("data", "image/png", b"\x89PNG-not-really")

    memo, paper = await named(library, "papers").invoke(arguments={})
    assert (memo.text, memo.additional_properties) == ("a memo", {"uri": "memo://1"})
    assert (paper.media_type, paper.data_bytes()) == ("application/pdf", b"\x00\x01\x02")


async def test_prompts_are_functions_that_give_text(library: MCPTool) -> None:
    greeting = named(library, "greeting")
    assert greeting.parameters()["required"] == ["name"]
    assert await greeting.invoke(arguments={"name": "Ada"}) == [Content.from_text("Say hello to Ada.")]


async def test_an_error_that_a_tool_reports_is_raised_with_its_words(library: MCPTool, lasting: HttpServer) -> None:
    with pytest.raises(ToolExecutionException, match="the shelf is empty"):
        await named(library, "refuses").invoke(arguments={})
    assert library.is_connected
    assert [line["tool"] for line in noted(lasting.notes)] == ["refuses"]


async def told(tool: MCPTool, call: ToolCall) -> str:
    """Return what the model is told about a call."""
    client = ScriptedChatClient([call, "done"])
    response = await client.get_response([Message("user", ["Go"])], options={"tools": tool.functions})
    (result,) = [each for message in response.messages for each in message.contents if each.type == "function_result"]
    assert result.exception is not None
    return str(result.result)


async def test_the_model_is_told_the_text_of_an_mcp_error(library: MCPTool) -> None:
    assert await told(library, ToolCall("refuses")) == "Error: the tool failed: the shelf is empty"


async def test_a_long_mcp_error_is_shortened(library: MCPTool) -> None:
    text = await told(library, ToolCall("complains", length=100_000))
    assert text.startswith("Error: the tool failed: no no no")
    assert len(text) < 5_000
    assert "characters left out" in text


async def test_the_model_is_told_the_text_of_a_protocol_error(library: MCPTool) -> None:
    text = await told(library, ToolCall("protests"))
    assert "the catalogue is on loan" in text


async def test_the_model_is_told_that_a_server_is_not_there_without_the_secrets_of_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    tool = MCPStreamableHTTPTool("library", f"http://127.0.0.1:{port}/mcp?key=hunter2")

    async def call(_call: FunctionInvocationContext) -> object:
        return await tool.call_tool("add", first=1, second=2)

    client = ScriptedChatClient([ToolCall("call"), "done"])
    response = await client.get_response([Message("user", ["Go"])], options={"tools": [call]})
    (result,) = [each for message in response.messages for each in message.contents if each.type == "function_result"]
    assert "'library' can't be reached" in str(result.result)
    assert "nothing was called" in str(result.result)
    assert "hunter2" not in str(result.result)


def test_an_error_that_quotes_an_address_shows_no_secrets_of_it() -> None:
    error = ValueError(
        "Client error '401' for url 'https://ada:hunter2@host/mcp?key=hunter2&a=b'; see https://docs/401"
    )
    for shown in (call_failed("library", "add", error), server_unreachable("library", error)):
        assert "hunter2" not in str(shown)
        assert "https://host/mcp" in str(shown)
        assert "https://docs/401" in str(shown)


async def test_the_idempotency_key_goes_along_and_what_the_run_was_given_does_not(
    library: MCPTool, lasting: HttpServer
) -> None:
    add = named(library, "add")
    arguments = {"first": 1, "second": 1}
    context = FunctionInvocationContext(add, arguments, kwargs={"token": "secret"}, idempotency_key="key-7")

    await add.invoke(arguments=arguments, context=context)

    (line,) = noted(lasting.notes)
    assert line["meta"]["perdure/idempotency-key"] == "key-7"
    assert "secret" not in json.dumps(line)


async def test_a_call_that_a_lost_connection_cuts_off_is_not_made_again_and_the_next_one_connects(notes: Path) -> None:
    async with over_stdio(notes) as library:
        with pytest.raises(ToolExecutionException, match=r"It is unknown if the call had an effect"):
            await named(library, "dies").invoke(arguments={})
        assert [line["tool"] for line in noted(notes)] == ["dies"]

        assert await library.call_tool("add", first=1, second=2) == [Content.from_text("3")]
    assert [line["tool"] for line in noted(notes)] == ["dies", "add"]


async def test_over_http_a_call_is_cut_off_when_the_server_dies_and_the_next_one_finds_its_successor(
    notes: Path,
) -> None:
    with http_server(notes) as server:
        async with MCPStreamableHTTPTool("library", server.url) as library:
            with pytest.raises(ToolExecutionException, match=r"It is unknown if the call had an effect"):
                await library.call_tool("dies")
            server.start()
            assert await library.call_tool("add", first=1, second=2) == [Content.from_text("3")]
    assert [line["tool"] for line in noted(notes)] == ["dies", "add"]


async def test_a_server_that_died_between_two_calls_is_found_again(notes: Path) -> None:
    with http_server(notes) as server:
        async with MCPStreamableHTTPTool("library", server.url) as library:
            server.kill()
            server.start()
            assert await library.call_tool("add", first=4, second=4) == [Content.from_text("8")]
    assert [line["tool"] for line in noted(notes)] == ["add"]


async def test_a_call_that_takes_too_long_is_given_up_and_its_effect_is_unknown(
    library: MCPTool, lasting: HttpServer
) -> None:
    library.request_timeout = 0.05
    with pytest.raises(ToolExecutionException, match=r"did not answer in time\. It is unknown"):
        await library.call_tool("hangs")
    assert library.is_connected
    assert len(noted(lasting.notes)) <= 1


async def test_approvals_and_names_are_chosen_by_tool(lasting: HttpServer) -> None:
    library = MCPStreamableHTTPTool(
        "library",
        lasting.url,
        approval_mode={"always_require_approval": ["books/order"]},
        allowed_tools=["books/order", "add"],
        tool_name_prefix="shop",
        load_prompts=False,
    )
    async with library:
        modes = {function.name: function.approval_mode for function in library.functions}
    assert modes == {"shop_books-order": "always_require", "shop_add": "never_require"}


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("always", "not 'always'"),
        (True, "not True"),
        ({"always_require": ["add"]}, r"not {'always_require'"),
        ({"always_require_approval": "add"}, "must be a list of tool names, not 'add'"),
        ({"always_require_approval": [1]}, "must be a list of tool names"),
    ],
)
def test_an_approval_that_is_misspelt_is_refused_before_anything_is_called(mode: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        MCPStreamableHTTPTool("library", "http://127.0.0.1:9/mcp", approval_mode=mode)


@pytest.mark.parametrize(
    "options",
    [
        {"approval_mode": {"always_require_approval": ["ad"]}},
        {"approval_mode": {"never_require_approval": ["ad"]}},
        {"allowed_tools": ["add", "ad"]},
    ],
)
async def test_a_tool_that_is_listed_and_not_there_is_told_on_connecting(lasting: HttpServer, options: Any) -> None:
    library = MCPStreamableHTTPTool("library", lasting.url, **options)
    with pytest.raises(ToolException, match=r"'library' has no 'ad', which .* lists; it has 'add', 'books"):
        await library.connect()
    assert library.functions == []


def test_allowed_tools_are_a_list_of_names() -> None:
    with pytest.raises(TypeError, match="allowed_tools must be a list of tool names, not 'add'"):
        MCPStreamableHTTPTool("library", "http://127.0.0.1:9/mcp", allowed_tools="add")


@pytest.mark.parametrize(
    ("name", "prefix", "exposed"),
    [("add", "shop_", "shop_add"), ("_add", "my shop", "my-shop_add"), ("a/b", "--", "a-b"), ("_", "shop.", "shop")],
)
def test_a_prefix_is_joined_by_one_sign(name: str, prefix: str, exposed: str) -> None:
    assert exposed_name(name, prefix) == exposed


async def test_one_approval_mode_holds_for_all_tools(lasting: HttpServer) -> None:
    async with MCPStreamableHTTPTool("library", lasting.url, approval_mode="always_require") as library:
        assert {function.approval_mode for function in library.functions} == {"always_require"}


async def test_headers_go_with_every_request(lasting: HttpServer) -> None:
    async with MCPStreamableHTTPTool("library", lasting.url, headers={"x-who": "Ada"}) as library:
        assert await library.call_tool("who") == [Content.from_text("Ada")]


class Counted(MCPStreamableHTTPTool):
    """Counts how often a connection is opened."""

    dialed = 0

    def dial(self) -> Any:
        self.dialed += 1
        return super().dial()


async def test_calls_at_the_same_time_open_one_connection(lasting: HttpServer) -> None:
    library = Counted("library", lasting.url)
    sums = await asyncio.gather(*[library.call_tool("add", first=each, second=1) for each in range(3)])
    await library.close()

    assert sums == [[Content.from_text(str(each))] for each in (1, 2, 3)]
    assert library.dialed == 1


async def test_who_gives_up_waiting_for_a_connection_leaves_it_to_the_others(lasting: HttpServer) -> None:
    library = Counted("library", lasting.url)
    impatient = asyncio.ensure_future(library.connect())
    await asyncio.sleep(0)
    impatient.cancel()
    await library.connect()

    assert impatient.cancelled()
    assert named(library, "add").name == "add"
    assert library.dialed == 1
    await library.close()


def test_each_event_loop_has_a_connection_of_its_own(lasting: HttpServer) -> None:
    library = Counted("library", lasting.url)
    for expected in (1, 2):
        assert asyncio.run(_added(library)) == [Content.from_text("7")]
        assert library.dialed == expected


async def _added(library: MCPTool) -> object:
    return await library.call_tool("add", first=3, second=4)


async def test_a_program_is_spoken_with_over_its_input_and_output_and_started_again(notes: Path) -> None:
    library = over_stdio(notes, env={"GREETING": "hello"})
    async with library:
        assert named(library, "add").parameters()["required"] == ["first", "second"]
        assert await named(library, "add").invoke(arguments={"first": 2, "second": 3}) == [Content.from_text("5")]
        assert await library.call_tool("environment", name="GREETING") == [Content.from_text("hello")]
        assert await library.get_prompt("greeting", name="Ada") == "Say hello to Ada."
    assert not library.is_connected

    assert await library.call_tool("add", first=1, second=1) == [Content.from_text("2")]
    assert library.is_connected
    await library.close()


async def test_a_program_that_is_not_there_is_told_by_name() -> None:
    with pytest.raises(ToolException, match=r"the MCP server 'nothing' can't be reached.*nothing was called"):
        await MCPStdioTool("nothing", "/no/such/program").connect()


async def test_an_address_where_nobody_is_is_told_by_name() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/mcp"
        with pytest.raises(ToolException, match="the MCP server 'nobody' can't be reached"):
            await MCPStreamableHTTPTool("nobody", url).connect()


@pytest.mark.parametrize("said", ["Session terminated", "Session not found"])
def test_only_a_server_that_has_forgotten_the_session_is_asked_again(said: str) -> None:
    forgotten = MCPError(INVALID_REQUEST, said)
    assert is_session_forgotten(forgotten)
    assert is_connection_lost(forgotten)
    assert not is_session_forgotten(MCPError(CONNECTION_CLOSED, said))
    assert not is_connection_lost(MCPError(INVALID_REQUEST, "no such tool"))


def test_headers_are_not_shown() -> None:
    tool = MCPStreamableHTTPTool("library", "http://127.0.0.1/mcp", headers={"authorization": "Bearer secret"})
    assert "secret" not in repr(tool)
