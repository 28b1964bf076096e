"""What other providers' models are sent and answer, through their real library, over the real wire format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from tests.agents.anthropic_server import MODEL, AnthropicServer, Said, anthropic_server, calls, text

from perdure.agents import Agent, Content, Message, sendable_name, tool
from perdure.errors import ChatClientInvalidRequestException
from perdure.models import ModelClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

PIXEL = b"\x89PNG\r\n\x1a\n-not-really"


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with anthropic_server() as running:
        yield running


@pytest.fixture
async def client(server: AnthropicServer) -> AsyncGenerator[ModelClient[Any]]:
    provider = AnthropicProvider(api_key="sk-ant-secret-key", base_url=server.url)
    async with ModelClient[Any](AnthropicModel(MODEL, provider=provider)) as made:
        yield made


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"It rains in {city}."


@tool
def forget() -> None:
    """Forget everything."""


class Verdict(BaseModel):
    """Whether something is good."""

    good: bool
    reason: str = Field(description="why")


async def test_a_model_is_sent_system_and_user_messages_and_its_answer_comes_back(
    server: AnthropicServer, client: ModelClient[Any]
) -> None:
    server.will(Said([{"type": "text", "text": "Paris."}], usage={"input_tokens": 12, "output_tokens": 3}))

    response = await client.get_response([Message("system", ["Be brief."]), Message("user", ["Capital of France?"])])

    assert response.text == "Paris."
    assert response.finish_reason == "stop"
    assert response.model == MODEL
    assert response.response_id == "msg_1"
    assert response.usage_details == {"input_token_count": 12, "output_token_count": 3, "total_token_count": 15}
    (asked,) = server.asked
    assert asked["model"] == MODEL
    assert "Be brief." in str(asked["system"])
    assert asked["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Capital of France?"}]}]


async def test_a_stream_tells_pieces_that_make_the_whole(server: AnthropicServer, client: ModelClient[Any]) -> None:
    server.will(text("Once upon a time"))

    stream = client.get_response([Message("user", ["Tell."])], stream=True)
    pieces = [update.text async for update in stream]

    assert [piece for piece in pieces if piece] == ["Once upo", "n a time"]
    final = await stream.get_final_response()
    assert final.text == "Once upon a time"
    assert final.usage_details == {"input_token_count": 10, "output_token_count": 5, "total_token_count": 15}
    assert final.finish_reason == "stop"
    assert server.asked[0]["stream"] is True


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_called_and_its_result_goes_back(
    server: AnthropicServer, client: ModelClient[Any], *, stream: bool
) -> None:
    server.will(calls("weather", {"city": "Oslo"}, before="Let me look."), text("Rain in Oslo."))
    asked = client.get_response([Message("user", ["Weather in Oslo?"])], stream=stream, options={"tools": [weather]})

    response = await asked.get_final_response() if stream else await asked

    assert response.messages[-1].text == "Rain in Oslo."
    first, second = server.asked
    assert first["tools"][0]["name"] == "weather"
    assert first["tools"][0]["description"] == "Tell the weather of a city."
    assert first["tools"][0]["input_schema"]["required"] == ["city"]
    called = second["messages"][1]["content"]
    assert called[0]["text"] == "Let me look."
    assert called[1] == {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    (result,) = second["messages"][2]["content"]
    assert (result["type"], result["tool_use_id"], result["is_error"]) == ("tool_result", "toolu_1", False)
    assert "It rains in Oslo." in str(result["content"])


async def test_a_failed_tool_is_told_as_an_error(server: AnthropicServer, client: ModelClient[Any]) -> None:
    @tool
    def broken() -> str:
        raise OSError("no disk")

    server.will(calls("broken", {}), text("It is broken."))
    await client.get_response([Message("user", ["Try."])], options={"tools": [broken]})

    (result,) = server.asked[1]["messages"][2]["content"]
    assert result["is_error"] is True


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_go_back_with_their_signature(
    server: AnthropicServer, client: ModelClient[Any], *, stream: bool
) -> None:
    thought = {"type": "thinking", "thinking": "Hm, a city.", "signature": "sealed-1"}
    hidden = {"type": "redacted_thinking", "data": "sealed-2"}
    server.will(
        Said([thought, hidden, {"type": "tool_use", "id": "toolu_9", "name": "weather", "input": {"city": "Oslo"}}]),
        text("Rain."),
    )
    asked = client.get_response([Message("user", ["?"])], stream=stream, options={"tools": [weather]})
    response = await asked.get_final_response() if stream else await asked

    said = server.asked[1]["messages"][1]["content"]
    assert said[:2] == [thought, hidden]
    reasoning = [c for c in response.messages[0].contents if c.type == "text_reasoning"]
    assert [c.protected_data for c in reasoning] == ["sealed-1", "sealed-2"]


async def test_an_answer_that_went_through_json_is_sent_back_the_same(
    server: AnthropicServer, client: ModelClient[Any]
) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "sealed"}
    server.will(Said([thought, {"type": "text", "text": "One."}]), text("Two."))
    first = await client.get_response([Message("user", ["1?"])])
    kept = [Message.from_json(message.to_json()) for message in first.messages]

    await client.get_response([Message("user", ["1?"]), *kept, Message("user", ["2?"])])

    assert server.asked[1]["messages"][1]["content"] == [thought, {"type": "text", "text": "One."}]


async def test_images_and_documents_are_sent_as_what_they_are(
    server: AnthropicServer, client: ModelClient[Any]
) -> None:
    server.will(text("Seen."))
    contents = [
        "Look:",
        Content.from_data(PIXEL, "image/png"),
        Content.from_uri("https://example.com/cat.jpg", media_type="image/jpeg"),
        Content.from_data(b"%PDF-1.4 ...", "application/pdf"),
    ]
    await client.get_response([Message("user", contents)])

    blocks = server.asked[0]["messages"][0]["content"]
    kinds = [(block["type"], block.get("source", {}).get("type")) for block in blocks]
    assert kinds == [("text", None), ("image", "base64"), ("image", "url"), ("document", "base64")]


async def test_a_link_whose_name_does_not_say_what_it_is_needs_its_media_type(client: ModelClient[Any]) -> None:
    with pytest.raises(ChatClientInvalidRequestException, match=r"set it: Content.from_uri"):
        await client.get_response([Message("user", [Content.from_uri("https://example.com/it")])])


async def test_a_content_that_no_model_takes_is_refused_before_it_is_asked(
    server: AnthropicServer, client: ModelClient[Any]
) -> None:
    with pytest.raises(ChatClientInvalidRequestException, match="hosted_vector_store"):
        await client.get_response([Message("user", [Content.from_hosted_vector_store("vs-1")])])
    assert server.asked == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        calls("final_result", {"good": True, "reason": "tests"}),
        text('{"good": true, "reason": "tests"}'),
        text('```json\n{"good": true, "reason": "tests"}\n```'),
    ],
)
async def test_a_structured_answer_is_parsed_however_the_model_gives_it(
    server: AnthropicServer, client: ModelClient[Any], reply: Said, *, stream: bool
) -> None:
    server.will(reply)
    asked = client.get_response([Message("user", ["Good?"])], stream=stream, options={"response_format": Verdict})
    response = await asked.get_final_response() if stream else await asked

    assert response.value == Verdict(good=True, reason="tests")
    (request,) = server.asked
    wanted = request.get("output_config") or request.get("output_format") or request["tools"]
    assert "reason" in str(wanted)


async def test_options_become_settings(server: AnthropicServer, client: ModelClient[Any]) -> None:
    server.will(text("Yes."))
    options = {
        "temperature": 0.25,
        "max_tokens": 77,
        "stop": "END",
        "tools": [weather, forget],
        "tool_choice": {"mode": "required", "required_function_name": "weather"},
        "allow_multiple_tool_calls": False,
    }
    await client.get_response([Message("user", ["?"])], options=options)

    (asked,) = server.asked
    assert (asked["temperature"], asked["max_tokens"], asked["stop_sequences"]) == (0.25, 77, ["END"])
    assert asked["tool_choice"] == {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}


async def test_settings_of_the_client_hold_until_an_option_says_otherwise(server: AnthropicServer) -> None:
    model = AnthropicModel(MODEL, provider=AnthropicProvider(api_key="k" * 20, base_url=server.url))
    async with ModelClient[Any](model, settings={"temperature": 0.5, "max_tokens": 9}) as client:
        server.will(text("a"), text("b"))
        await client.get_response([Message("user", ["?"])])
        await client.get_response([Message("user", ["?"])], options={"temperature": 0.75})

    assert [(asked["temperature"], asked["max_tokens"]) for asked in server.asked] == [(0.5, 9), (0.75, 9)]


async def test_an_answer_that_the_provider_has_paused_is_asked_for_to_its_end(
    server: AnthropicServer, client: ModelClient[Any]
) -> None:
    server.will(Said([{"type": "text", "text": "First. "}], "pause_turn"), text("Second."))
    response = await client.get_response([Message("user", ["?"])])

    assert response.text.split() == ["First.", "Second."]
    assert response.usage_details == {"input_token_count": 20, "output_token_count": 10, "total_token_count": 30}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_keeps_thoughts_over_turns_as_they_were_sealed(
    server: AnthropicServer, client: ModelClient[Any], *, stream: bool
) -> None:
    first = {"type": "thinking", "thinking": "Hm.", "signature": "sealed-1"}
    second = {"type": "thinking", "thinking": "Well.", "signature": "sealed-2"}
    server.will(Said([first, second, {"type": "text", "text": "One."}]), text("Two."))
    agent = Agent(client, name="thinker")
    session = agent.create_session()
    for question in ("1?", "2?"):
        told = agent.run(question, session=session, stream=stream)
        await (told.get_final_response() if stream else told)

    assert server.asked[1]["messages"][1]["content"] == [first, second, {"type": "text", "text": "One."}]


async def test_a_schema_by_itself_is_enough_for_a_structured_answer(
    server: AnthropicServer, client: ModelClient[Any]
) -> None:
    server.will(calls("final_result", {"age": 7}))
    schema = {"title": "Age", "type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    response = await client.get_response([Message("user", ["?"])], options={"response_format": schema})

    assert response.value == {"age": 7}


async def test_a_tool_that_the_provider_runs_is_asked_for_by_its_type_and_its_use_goes_back(
    server: AnthropicServer, client: ModelClient[Any]
) -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rain"}}
    hit = {"type": "web_search_result", "title": "Rain", "url": "https://example.com", "encrypted_content": "x"}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [hit]}
    server.will(Said([search, found, {"type": "text", "text": "It rains."}]), text("Yes."))
    options = {"tools": [{"type": "web_search", "max_uses": 2}]}
    first = await client.get_response([Message("user", ["?"])], options=options)
    kept = [Message.from_json(message.to_json()) for message in first.messages]

    await client.get_response([Message("user", ["?"]), *kept, Message("user", ["Sure?"])], options=options)

    assert [content.type for content in first.messages[0].contents] == [
        "search_tool_call",
        "search_tool_result",
        "text",
    ]
    assert server.asked[0]["tools"][0]["max_uses"] == 2
    said = server.asked[1]["messages"][1]["content"]
    assert [block["type"] for block in said] == ["server_tool_use", "web_search_tool_result", "text"]
    assert said[1]["content"][0]["encrypted_content"] == "x"


async def test_a_client_shows_no_key(client: ModelClient[Any]) -> None:
    assert repr(client) == f"ModelClient('anthropic', {MODEL!r})"
    assert "secret" not in repr(client)
    assert client.service_url().startswith("http://127.0.0.1")


@tool(name="files.read")
def read_file(path: str) -> str:
    """Read a file."""
    return f"the text of {path}"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stored_conversation_with_names_and_texts_that_are_refused_can_be_sent(
    server: AnthropicServer, client: ModelClient[Any], *, stream: bool
) -> None:
    wire_name = sendable_name("files.read")
    server.will(calls(wire_name, {"path": "a"}), text("Done."))
    stored = [
        Message("user", ["Hello \ud800"]),
        Message(
            "assistant",
            [
                Content.from_function_call("c1", "files.read", arguments='{"path": "\\ud800"}'),
                Content.from_function_call("c2", "say hello!", arguments={"to": "\udfff"}),
            ],
        ),
        Message(
            "tool",
            [
                Content.from_function_result("c1", result="\ud800 is half"),
                Content.from_function_result("c2", exception="no such tool \udfff"),
            ],
        ),
        Message("user", ["Go on"]),
    ]
    options: Any = {"tools": [read_file], "tool_choice": {"mode": "required", "required_function_name": "files.read"}}

    asked = client.get_response(stored, stream=stream, options=options)
    response = await asked.get_final_response() if stream else await asked

    assert response.messages[-1].text == "Done."
    called, result = response.messages[0].contents[0], response.messages[1].contents[0]
    assert (called.name, result.result) == ("files.read", "the text of a"), "our names stay our own"
    first, second = server.asked
    assert [each["name"] for each in first["messages"][1]["content"]] == [wire_name, sendable_name("say hello!")]
    # With one tool, the required one, Anthropic is told to call any.
    assert ([each["name"] for each in first["tools"]], first["tool_choice"]["type"]) == ([wire_name], "any")
    assert second["messages"][-2]["content"][0]["name"] == wire_name
