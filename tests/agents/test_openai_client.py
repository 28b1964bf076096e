"""The client of OpenAI's models against a real server: whole answers, streams, tools and structured output."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from tests.agents.openai_server import OpenAIServer, Raw, Say, calls, serving, text

from perdure.agents import Agent, Content, Message, sendable_name, tool
from perdure.errors import ChatClientInvalidAuthException, ChatClientInvalidRequestException
from perdure.openai import OpenAIChatClient, OpenAIChatOptions
from perdure.secrets import Secret

HELLO = [Message("user", ["Hello"])]
COUNTED = {
    "input_token_count": 11,
    "output_token_count": 7,
    "total_token_count": 18,
    "cache_read_input_token_count": 3,
    "reasoning_output_token_count": 2,
}


class Box(BaseModel):
    label: str


def client_of(server: OpenAIServer, **settings: Any) -> OpenAIChatClient:
    usual: dict[str, Any] = {"base_url": server.url, "api_key": "sk-very-secret-key"}
    return OpenAIChatClient("model-x", **usual | settings)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_answer_comes_with_all_that_is_known_of_it() -> None:
    with serving(text("Hello to you")) as server:
        async with client_of(server) as client:
            response = await client.get_response(HELLO, options={"temperature": 0.1, "seed": 4, "top_k": 2})
    assert response.text == "Hello to you"
    assert response.messages[0].role == "assistant"
    assert (response.response_id, response.model, response.finish_reason) == ("chatcmpl-1", "model-x", "stop")
    assert response.created_at == "2023-11-14T22:13:20+00:00"
    assert response.usage_details == COUNTED
    [request] = server.requests
    assert request["messages"] == [{"role": "user", "content": "Hello"}]
    assert (request["model"], request["temperature"], request["seed"], request["top_k"]) == ("model-x", 0.1, 4, 2)
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret-key"


async def test_an_option_that_nobody_knows_is_sent_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    class Known(OpenAIChatOptions[Any], total=False):
        top_k: int

    options: dict[str, Any] = {"temprature": 0.1, "top_k": 2, "seed": 4, "model_id": "m", "instructions": "Be brief."}
    with serving(text("Hi"), text("Hi")) as server:
        async with OpenAIChatClient[Known]("m", base_url=server.url, api_key="k") as client:
            for _ in range(2):
                await client.get_response(HELLO, options=options)
    assert [
        record.message.partition(" and sends")[0] for record in caplog.records if record.levelname == "WARNING"
    ] == ["OpenAIChatClient does not know the option 'temprature'"]
    assert [request["temprature"] for request in server.requests] == [0.1, 0.1]


async def test_a_stream_tells_its_pieces_and_ends_in_the_same_answer() -> None:
    with serving(text("Hello to you")) as server:
        async with client_of(server) as client:
            stream = client.get_response(HELLO, stream=True)
            told = [update.text async for update in stream]
            response = await stream.get_final_response()
    assert [piece for piece in told if piece] == ["Hello", " to", " you"]
    assert response.text == "Hello to you"
    assert response.usage_details == COUNTED
    assert response.finish_reason == "stop"
    assert len(response.messages) == 1


async def test_tokens_that_are_counted_in_every_piece_are_counted_once() -> None:
    with serving(Say({"content": "Hi"}, counts_always=True)) as server:
        async with client_of(server) as client:
            response = await client.get_response(HELLO, stream=True).get_final_response()
    assert response.usage_details == COUNTED


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_calls_the_tools_that_the_model_asks_for(*, stream: bool) -> None:
    asked = calls(("c1", "add", '{"a": 1, "b": 2}'), ("c2", "add", '{"a": 30, "b": 4}'), content="Let me see.")
    with serving(asked, text("3 and 34")) as server:
        async with client_of(server) as client:
            agent = Agent(client, "Add.", name="adder", tools=[add])
            response = await (agent.run("What?", stream=True).get_final_response() if stream else agent.run("What?"))
    assert response.text.endswith("3 and 34")
    first, second = server.requests
    assert first["tools"][0]["function"]["name"] == "add"
    assert set(first["tools"][0]["function"]["parameters"]["properties"]) == {"a", "b"}
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    answered = {each["tool_call_id"]: each["content"] for each in second["messages"] if each["role"] == "tool"}
    assert answered == {"c1": "3", "c2": "34"}
    assert [each["function"]["arguments"] for each in second["messages"][2]["tool_calls"]] == [
        '{"a": 1, "b": 2}',
        '{"a": 30, "b": 4}',
    ]


async def test_calls_without_ids_or_places_of_their_own_are_told_apart() -> None:
    pieces = [
        {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "id": "y", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "h", "arguments": "{}"}}]},
    ]
    with serving(Say({}, "tool_calls", pieces)) as server:
        async with client_of(server) as client:
            response = await client.get_response(HELLO, stream=True).get_final_response()
    found = [(content.call_id, content.name, content.arguments) for content in response.messages[0].contents]
    assert found == [("x", "f", "{}"), ("y", "g", "{}"), ("call_chatcmpl-1_1", "h", "{}")]


@pytest.mark.parametrize("stream", [False, True])
async def test_structured_output_is_asked_for_and_parsed(*, stream: bool) -> None:
    with serving(Say({"content": '{"label": "heavy"}'})) as server:
        async with client_of(server) as client:
            agent = Agent(client, name="packer", default_options=OpenAIChatOptions[Box](response_format=Box))
            response = await (agent.run("Pack", stream=True).get_final_response() if stream else agent.run("Pack"))
    assert response.value == Box(label="heavy")
    assert server.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["label"]


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_and_refusals_are_told_apart_from_words(*, stream: bool) -> None:
    said = {"reasoning_content": "Hm.", "refusal": "I won't."}
    with serving(Say(said)) as server:
        async with client_of(server) as client:
            answer = client.get_response(HELLO, stream=True).get_final_response() if stream else None
            response = await (answer or client.get_response(HELLO))
    assert [(each.type, each.text) for each in response.messages[0].contents] == [
        ("text_reasoning", "Hm."),
        ("text", "I won't."),
    ]
    assert response.messages[0].contents[1].additional_properties == {"refusal": True}


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_that_only_the_server_can_read_goes_back_whole(*, stream: bool) -> None:
    whole = {"type": "reasoning.text", "index": 0, "text": "Think.", "signature": "sealed"}
    pieces: list[dict[str, Any]] = [
        {"reasoning_details": [whole | {"text": "Thi", "signature": None}]},
        {"reasoning_details": [whole | {"text": "nk."}]},
        *calls(("c1", "add", "{}")).deltas,
    ]
    call = calls(("c1", "add", "{}")).message
    with serving(Say({**call, "reasoning_details": [whole]}, "tool_calls", pieces)) as server:
        async with client_of(server) as client:
            answer = client.get_response(HELLO, stream=True).get_final_response() if stream else None
            response = await (answer or client.get_response(HELLO))
            await client.get_response([*HELLO, *response.messages])
    assert "".join([each.text or "" for each in response.messages[0].contents]) == "Think."
    assert server.requests[1]["messages"][1]["reasoning_details"] == [whole]


async def test_a_client_can_be_used_in_one_loop_after_the_other() -> None:
    with serving(text("Hi")) as server:
        client = client_of(server)

        async def ask() -> str:
            async with client:
                return (await client.get_response(HELLO)).text

        def life() -> str:
            return asyncio.run(ask())

        assert [await asyncio.to_thread(life) for _ in range(3)] == ["Hi", "Hi", "Hi"]


LOOPS = """
import asyncio, gc, sys
from perdure.agents import Agent, Message
from perdure.openai import OpenAIChatClient

client = OpenAIChatClient("model-x", base_url=sys.argv[1], api_key="none")
hello = [Message("user", ["Hello"])]

async def ask():
    return (await Agent(client, name="agent").run("Hello")).text

async def stream():
    return (await client.get_response(hello, stream=True).get_final_response()).text

async def abandon():
    return (await anext(client.get_response(hello, stream=True))).text

async def both():
    return " ".join(await asyncio.gather(ask(), stream()))

for work in (ask, stream, abandon, both, ask):
    print(asyncio.run(work()))
    gc.collect()

# A loop that is closed by hand closes no generators.
loop = asyncio.new_event_loop()
print(loop.run_until_complete(ask()))
if sys.argv[2] == "tidy":
    loop.run_until_complete(client.aclose())
loop.close()
print(asyncio.run(ask()))
gc.collect()
"""


def test_a_client_that_is_used_in_several_event_loops_leaves_no_warnings() -> None:
    with serving(text("Hi you")) as server:
        command = [sys.executable, "-W", "always", "-c", LOOPS, server.url, "tidy"]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["Hi you", "Hi you", "Hi", "Hi you Hi you", "Hi you", "Hi you", "Hi you"]
    assert ended.stderr == ""


def test_a_loop_that_is_closed_by_hand_does_not_disturb_the_next_one() -> None:
    with serving(text("Hi you")) as server:
        command = [sys.executable, "-c", LOOPS, server.url, "untidy"]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "Hi you"
    assert ended.stderr == ""


async def test_a_client_of_the_sdk_is_used_as_it_is_and_stays_open() -> None:
    with serving(text("Hi")) as server:
        async with AsyncOpenAI(api_key="theirs", base_url=server.url) as theirs:
            async with OpenAIChatClient("m", async_client=theirs) as client:
                await client.get_response(HELLO)
            assert not theirs.is_closed()
    assert server.headers[0]["authorization"] == "Bearer theirs"


async def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(text("Hi")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "from outside")
        monkeypatch.setenv("OPENAI_MODEL", "model-env")
        async with OpenAIChatClient() as client:
            await client.get_response(HELLO)
    assert server.requests[0]["model"] == "model-env"
    assert server.headers[0]["authorization"] == "Bearer from outside"


@pytest.mark.parametrize("key", [Secret("k-1"), lambda: "k-1"])
async def test_a_key_may_be_a_secret_or_a_function(key: Any) -> None:
    with serving(text("Hi")) as server:
        async with client_of(server, api_key=key) as client:
            await client.get_response(HELLO)
    assert server.headers[0]["authorization"] == "Bearer k-1"


async def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(text("Hi")) as server:
        async with client_of(server, api_key=None) as client:
            assert (await client.get_response(HELLO)).text == "Hi"


async def test_azure_is_asked_by_deployment_with_its_own_header() -> None:
    with serving(text("Hi")) as server:
        settings: dict[str, Any] = {"azure_endpoint": server.root, "api_version": "2025-01-01", "api_key": "azure-key"}
        async with OpenAIChatClient("my-deployment", **settings) as client:
            await client.get_response(HELLO)
    assert server.paths == ["openai/deployments/my-deployment/chat/completions"]
    assert server.headers[0]["api-key"] == "azure-key"


def test_without_a_key_and_without_a_server_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ChatClientInvalidAuthException, match="OPENAI_API_KEY"):
        OpenAIChatClient("model-x")


async def test_without_a_model_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_CHAT_MODEL_ID", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ChatClientInvalidRequestException, match="model="):
        await OpenAIChatClient(base_url="http://127.0.0.1:9/v1").get_response(HELLO)


def test_nothing_that_is_shown_of_a_client_holds_its_key() -> None:
    client = OpenAIChatClient("model-x", api_key="sk-very-secret-key", base_url="http://user:pass@127.0.0.1:9/v1")
    assert repr(client) == "OpenAIChatClient(model='model-x', base_url='http://127.0.0.1:9/v1/')"


async def test_an_image_reaches_the_server() -> None:
    with serving(text("A cat")) as server:
        async with client_of(server) as client:
            await client.get_response([Message("user", ["What?", Content.from_data(b"x", "image/png")])])
    assert server.requests[0]["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,eA=="


async def test_pieces_that_have_other_ids_are_one_message() -> None:
    chunk = '{"id": "%s", "model": "m", "created": 1, "choices": [{"index": 0, "delta": {"content": "%s"}%s}]}'
    pieces = [chunk % ("a", "Hel", ""), chunk % ("b", "lo", ', "finish_reason": "stop"')]
    body = "".join([f"data: {piece}\n\n" for piece in pieces])
    with serving(Raw(body, "text/event-stream")) as server:
        async with client_of(server) as client:
            response = await client.get_response(HELLO, stream=True).get_final_response()
    assert [(message.text, message.message_id) for message in response.messages] == [("Hello", "a")]


def test_the_sdk_is_loaded_when_a_client_is_made_and_missed_with_what_to_do() -> None:
    program = (
        "import sys, perdure.openai, perdure.foundry\n"
        "assert not {'openai', 'azure', 'pydantic'} & set(sys.modules), 'loaded too early'\n"
        "sys.modules['openai'] = None\n"
        "for made in (perdure.openai.OpenAIChatClient, perdure.foundry.FoundryChatClient):\n"
        "    try: made(model='m', api_key='k', **({} if 'OpenAI' in made.__name__ else {'project_endpoint': 'http://x'}))\n"
        "    except ImportError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = ended.stdout.splitlines()
    assert first.endswith("pip install 'perdure[openai]'")
    assert second.endswith("pip install 'perdure[foundry]'")


def _delta(index: int | None, call_id: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": call_id, "type": "function", "function": function}
    return {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}


TWO_CALLS = [("add", '{"a": 1, "b": 2}'), ("add", '{"a": 3, "b": 4}')]
STREAMS_OF_TWO_CALLS: dict[str, list[dict[str, Any]]] = {
    "equal ids, each at its index": [
        _delta(0, "x", "add", ""),
        _delta(1, "x", "add", ""),
        _delta(0, None, None, '{"a": 1, '),
        _delta(1, None, None, '{"a": 3, '),
        _delta(0, None, None, '"b": 2}'),
        _delta(1, None, None, '"b": 4}'),
    ],
    "equal ids at index 0": [
        _delta(0, "x", "add", ""),
        _delta(0, None, None, '{"a": 1, "b": 2}'),
        _delta(0, "x", "add", ""),
        _delta(0, None, None, '{"a": 3, "b": 4}'),
    ],
    "no ids at index 0": [_delta(0, None, "add", '{"a": 1, "b": 2}'), _delta(0, None, "add", '{"a": 3, "b": 4}')],
    "neither ids nor indexes": [
        _delta(None, None, "add", '{"a": 1, '),
        _delta(None, None, None, '"b": 2}'),
        _delta(None, None, "add", '{"a": 3, '),
        _delta(None, None, None, '"b": 4}'),
    ],
    "several in one chunk without indexes": [
        {
            "tool_calls": [
                {"function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}},
                {"function": {"name": "add", "arguments": '{"a": 3, "b": 4}'}},
            ]
        }
    ],
    "late ids": [
        _delta(0, None, "add", '{"a": 1, '),
        _delta(0, "x", None, '"b": 2}'),
        _delta(1, None, "add", '{"a": 3, '),
        _delta(1, "y", None, '"b": 4}'),
    ],
    "ids and names in every chunk": [
        _delta(0, "x", "add", '{"a": 1, '),
        _delta(0, "x", "add", '"b": 2}'),
        _delta(0, "y", "add", '{"a": 3, '),
        _delta(0, "y", "add", '"b": 4}'),
    ],
    "ids in every chunk, mixed at index 0": [
        _delta(0, "x", "add", '{"a": 1, '),
        _delta(0, "y", "add", '{"a": 3, '),
        _delta(0, "x", None, '"b": 2}'),
        _delta(0, "y", None, '"b": 4}'),
    ],
    "names in every chunk without ids": [
        _delta(0, None, "add", '{"a": 1, '),
        _delta(0, None, "add", '"b": 2}'),
        _delta(0, None, "add", '{"a": 3, '),
        _delta(0, None, "add", '"b": 4}'),
    ],
    "a call that is repeated as a whole": [
        _delta(0, "x", "add", '{"a": 1, '),
        _delta(0, None, None, '"b": 2}'),
        _delta(1, "y", "add", '{"a": 3, "b": 4}'),
        _delta(0, "x", "add", '{"a": 1, "b": 2}'),
        _delta(1, "y", "add", '{"a": 3, "b": 4}'),
    ],
}


@pytest.mark.parametrize("pieces", STREAMS_OF_TWO_CALLS.values(), ids=STREAMS_OF_TWO_CALLS.keys())
async def test_streamed_calls_are_made_however_the_server_names_them(pieces: list[dict[str, Any]]) -> None:
    with serving(Say({}, "tool_calls", pieces), text("Done")) as server:
        async with client_of(server) as client:
            stream = Agent(client, name="adder", tools=[add]).run("What?", stream=True)
            streamed = [content async for update in stream for content in update.contents]
            response = await stream.get_final_response()
    assert response.text == "Done"
    [asked] = [message for message in server.requests[1]["messages"] if message.get("tool_calls")]
    calls_sent = [(each["function"]["name"], each["function"]["arguments"]) for each in asked["tool_calls"]]
    assert calls_sent == TWO_CALLS
    ids = [each["id"] for each in asked["tool_calls"]]
    assert len(set(ids)) == 2
    results = {
        each["tool_call_id"]: each["content"] for each in server.requests[1]["messages"] if "tool_call_id" in each
    }
    assert results == dict(zip(ids, ["3", "7"], strict=True))
    assert {each.call_id for each in streamed if each.type == "function_call"} == set(ids), "updates show these ids"


async def test_a_stream_of_calls_of_two_tools_without_arguments_is_two_calls() -> None:
    pieces = [_delta(0, None, "f", ""), _delta(0, None, "g", "")]
    with serving(Say({}, "tool_calls", pieces)) as server:
        async with client_of(server) as client:
            response = await client.get_response(HELLO, stream=True).get_final_response()
    assert [content.name for content in response.messages[0].contents] == ["f", "g"]


POISONED = [
    Message("user", ["Hello \ud800"]),
    Message(
        "assistant",
        [
            Content.from_function_call("c1", "files.read", arguments='{"path": "\\ud800"}'),
            Content.from_function_call("c2", "say hello!", arguments={"to": "\udfff"}),
            Content.from_function_call("c3", "x" * 65, arguments="{}"),
            Content.from_function_call("c4", "", arguments="{}"),
        ],
    ),
    Message(
        "tool",
        [
            Content.from_function_result("c1", result="\ud800 is half"),
            Content.from_function_result("c2", result={"said": ["\udfff"]}),
            Content.from_function_result("c3", exception="there is no such tool \udfff"),
            Content.from_function_result("c4", result=""),
        ],
    ),
    Message("user", ["Go on"]),
]


@tool(name="files.read")
def read_file(path: str) -> str:
    """Read a file."""
    return f"the text of {path}"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_conversation_with_names_and_texts_that_are_refused_can_be_sent(*, stream: bool) -> None:
    wire_name = sendable_name("files.read")
    with serving(calls(("c9", wire_name, '{"path": "a"}')), text("Done")) as server:
        async with client_of(server) as client:
            options: Any = {"tools": [read_file], "tool_choice": {"mode": "auto", "allowed_tools": ["files.read"]}}
            asked = client.get_response(POISONED, stream=stream, options=options)
            response = await asked.get_final_response() if stream else await asked
    assert response.messages[-1].text == "Done"
    called, result = response.messages[0].contents[0], response.messages[1].contents[0]
    assert (called.name, result.result) == ("files.read", "the text of a"), "our names stay our own"
    first, second = server.requests
    sent = json.dumps([first, second])
    assert not re.search(r"\\ud[89a-f]", sent)
    names = [each["function"]["name"] for each in first["messages"][1]["tool_calls"]]
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert len(set(names)) == 4
    assert names[0] == wire_name == first["tools"][0]["function"]["name"], "a call has the name of its tool"
    assert first["tool_choice"]["allowed_tools"]["tools"][0]["function"]["name"] == wire_name
    assert second["messages"][-2]["tool_calls"][0]["function"]["name"] == wire_name
