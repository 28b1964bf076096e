"""The scripted model: replies of every kind, whole and in pieces, each at its place in the conversation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from perdure.agents import Agent, Content, Message, tool
from perdure.testing import ScriptedChatClient, ScriptEndedError, ToolCall
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents import ChatResponse


class City(BaseModel):
    name: str
    people: int


def said(text: str) -> list[Message]:
    return [Message("user", [text])]


async def pieces_of(client: ScriptedChatClient, messages: Sequence[Message], **options: Any) -> list[Content]:
    stream = client.get_response(messages, stream=True, options=options)
    return [content async for update in stream for content in update.contents]


@tool
def weather(city: str) -> str:
    """How the weather is."""
    return f"snow in {city}"


def echo(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    return f"to {messages[-1].text}"


OSLO = City(name="Oslo", people=700_000)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("a text", "a text"),
        (Message("assistant", ["of a message"]), "of a message"),
        (Content.from_text("of a content"), "of a content"),
        (OSLO, OSLO.model_dump_json()),
        ({"name": "Oslo"}, '{"name": "Oslo"}'),
        (["one", "two"], "one two"),
        (echo, "to hello"),
    ],
)
async def test_a_reply_of_any_kind_is_said_whole_and_in_pieces(reply: Any, text: str) -> None:
    whole = await ScriptedChatClient([reply]).get_response(said("hello"))
    stream = ScriptedChatClient([reply]).get_response(said("hello"), stream=True)
    streamed: ChatResponse[Any] = await stream.get_final_response()
    assert whole.text == text
    assert streamed.text.replace(" ", "") == text.replace(" ", "")
    assert streamed.usage_details == whole.usage_details


async def test_a_text_is_streamed_in_a_few_pieces_that_make_it_up() -> None:
    text = "It was a bright cold day in April,\n\n and the clocks were striking thirteen. "
    pieces = await pieces_of(ScriptedChatClient([text]), said("begin"))
    texts = [piece.text or "" for piece in pieces if piece.type == "text"]
    assert "".join(texts) == text
    assert 2 <= len(texts) <= 4


async def test_a_call_is_streamed_in_pieces_that_make_it_up() -> None:
    client = ScriptedChatClient([ToolCall("weather", city="Oslo", days=3)])
    pieces = await pieces_of(client, said("snow?"), tool_choice="none")
    calls = [piece for piece in pieces if piece.type == "function_call"]
    assert len(calls) == 2
    assert (calls[0] + calls[1]).parse_arguments() == {"city": "Oslo", "days": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_are_called_and_the_script_goes_on_behind_them(stream: bool) -> None:  # noqa: FBT001
    client = ScriptedChatClient([["I look.", ToolCall("weather", city="Oslo")], lambda messages, _: results(messages)])
    agent = Agent(client, "You know the weather.", tools=[weather])
    response = await (agent.run("Snow?", stream=True).get_final_response() if stream else agent.run("Snow?"))
    assert response.messages[-1].text == "snow in Oslo"
    assert [len(call.messages) for call in client.calls] == [2, 4]


def results(messages: Sequence[Message]) -> str:
    return "; ".join([str(each.result) for message in messages for each in message.contents if each.result])


async def test_a_structured_answer_is_a_value() -> None:
    agent = Agent(ScriptedChatClient([OSLO]), default_options={"response_format": City})
    assert (await agent.run("Which city?")).value == OSLO


async def test_the_next_reply_is_the_one_behind_the_last_that_the_conversation_shows() -> None:
    conversation = said("one")
    for expected in ("a", "b", "c"):
        # A client made anew each time: nothing is counted in memory.
        answer = await ScriptedChatClient(["a", "b", "c"]).get_response(conversation)
        assert answer.text == expected
        conversation += [*answer.messages, *said("go on")]


async def test_where_a_script_stands_survives_json_and_a_conversation_cut_short() -> None:
    conversation = said("one")
    for _ in range(2):
        conversation += (await ScriptedChatClient(["a", "b", "c"]).get_response(conversation)).messages
    stored = json.loads(json.dumps([message.to_dict() for message in conversation[-1:]]))
    answer = await ScriptedChatClient(["a", "b", "c"]).get_response([Message.from_dict(each) for each in stored])
    assert answer.text == "c"


async def test_a_call_alone_says_where_the_script_stands() -> None:
    client = ScriptedChatClient([ToolCall("weather", city="Oslo"), "done"])
    [message] = (await client.get_response(said("snow?"), options={"tool_choice": "none"})).messages
    mended = [*said("snow?"), Message("assistant", message.contents)]
    assert (await client.get_response(mended)).text == "done"


async def test_a_conversation_that_begins_anew_begins_the_script_anew() -> None:
    client = ScriptedChatClient(["a", "b"])
    assert [(await client.get_response(said("hello"))).text for _ in range(2)] == ["a", "a"]


async def test_agents_with_one_client_have_places_of_their_own() -> None:
    client = ScriptedChatClient(["first", "second"])
    ada, grace = Agent(client, name="ada"), Agent(client, name="grace")
    heard = said("hello")
    heard += (await ada.run(heard)).messages
    heard += (await grace.run(heard)).messages
    heard += (await ada.run(heard)).messages
    assert [(message.author_name, message.text) for message in heard[1:]] == [
        ("ada", "first"),
        ("grace", "first"),
        ("ada", "second"),
    ]


async def test_scripts_are_given_by_the_names_of_agents() -> None:
    client = ScriptedChatClient({"ada": ["I am Ada"], "grace": lambda _, options: f"at {options['temperature']}"})
    assert (await Agent(client, name="ada").run("who?")).text == "I am Ada"
    assert (await Agent(client, name="grace").run("how?", options={"temperature": 0.5})).text == "at 0.5"
    with pytest.raises(ScriptEndedError, match=r"no script for 'eve'.*'ada', 'grace'"):
        await Agent(client, name="eve").run("who?")
    assert [call.agent for call in client.calls] == ["ada", "grace", "eve"]


async def test_a_script_that_is_used_up_says_so() -> None:
    client = ScriptedChatClient(["only this"])
    agent = Agent(client, name="ada")
    session = agent.create_session()
    await agent.run("one", session=session)
    with pytest.raises(ScriptEndedError, match=r"'ada' has 1 replies.*give it more"):
        await agent.run("two", session=session)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_exception_is_raised_once_and_the_script_goes_on_behind_it(stream: bool) -> None:  # noqa: FBT001
    client = ScriptedChatClient([ConnectionError("down"), ConnectionError("still down"), "up"])

    async def asked() -> str:
        if stream:
            return (await client.get_response(said("hello"), stream=True).get_final_response()).text
        return (await client.get_response(said("hello"))).text

    with pytest.raises(ConnectionError, match=r"^down"):
        await asked()
    with pytest.raises(ConnectionError, match="still down"):
        await asked()
    assert await asked() == "up"


async def test_a_reply_can_break_off_in_the_middle_of_a_stream() -> None:
    client = ScriptedChatClient([["so far so", ConnectionError("cut off")], "good"])
    stream = client.get_response(said("hello"), stream=True)
    with pytest.raises(ConnectionError, match="cut off"):
        await stream.get_final_response()
    assert "".join([update.text for update in stream.updates]) == "so far so"
    assert (await client.get_response(said("hello"))).text == "good"


async def test_a_function_may_be_async_and_sees_options() -> None:
    async def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        return f"{messages[-1].text} {options['seed']}"

    assert (await ScriptedChatClient(reply).get_response(said("hello"), options={"seed": 7})).text == "hello 7"


async def test_calls_tell_what_the_model_was_shown() -> None:
    client = ScriptedChatClient(["yes"])
    await Agent(client, "Be brief.", name="ada").run("Is it so?")
    [call] = client.calls
    assert [(message.role, message.text) for message in call.messages] == [
        ("system", "Be brief."),
        ("user", "Is it so?"),
    ]
    assert (call.text, call.agent, call.is_streamed) == ("Is it so?", "ada", False)


async def test_usage_is_a_token_for_each_word_or_as_given() -> None:
    counted = await ScriptedChatClient(["one two three"]).get_response(said("how many"))
    given = await ScriptedChatClient(["one"], usage={"total_token_count": 99}).get_response(said("how many"))
    assert counted.usage_details == {"input_token_count": 2, "output_token_count": 3, "total_token_count": 5}
    assert given.usage_details == {"total_token_count": 99}


async def test_a_reply_takes_as_long_as_it_is_told_to() -> None:
    clock = ManualClock(skips=True)
    began = clock.now()
    client = ScriptedChatClient(["one two"], seconds=3, clock=clock)
    await client.get_response(said("slowly"))
    await client.get_response(said("slowly"), stream=True).get_final_response()
    assert (clock.now() - began).total_seconds() == pytest.approx(6)


@pytest.mark.parametrize("script", ["a text", 7])
def test_what_is_no_script_is_refused(script: Any) -> None:
    with pytest.raises(TypeError, match="a script is a list of replies"):
        ScriptedChatClient(script)


async def test_what_is_no_reply_is_refused() -> None:
    nothing: Any = 7
    with pytest.raises(TypeError, match="a reply is a str"):
        await ScriptedChatClient([nothing]).get_response(said("hello"))
