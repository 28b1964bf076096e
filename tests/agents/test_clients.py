"""Clients: how a model is asked, what it may give, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import BaseModel
from tests.agents.stub_model import USAGE, BareModel, Model, echo

from perdure.agents import (
    BaseChatClient,
    ChatContext,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
    SupportsChatGetResponse,
    merge_chat_options,
    prepend_instructions_to_messages,
    validate_chat_options,
    validate_tool_mode,
)
from perdure.agents.client.base import ChatLayer
from perdure.agents.client.options import merge_options
from perdure.errors import ChatClientInvalidResponseException, ContentError, MiddlewareException
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

HI = [Message("user", ["hi"])]


class Verdict(BaseModel):
    is_spam: bool


class Giving(BaseChatClient[Any]):
    """Gives whatever it is told to give."""

    def __init__(self, give: Callable[[], Any]) -> None:
        super().__init__()
        self._give = give

    def _inner_get_response(self, **_: Any) -> Any:
        return self._give()


async def pieces() -> AsyncGenerator[ChatResponseUpdate]:
    yield ChatResponseUpdate(contents=["a"], role="assistant")
    yield ChatResponseUpdate(contents=["b"])


async def later(value: Any) -> Any:
    return value


async def test_a_model_answers_as_a_whole_or_in_pieces() -> None:
    model = BareModel()
    whole = await model.get_response(HI)
    assert (whole.text, whole.usage_details) == ("user: hi", USAGE)
    stream = model.get_response(HI, stream=True)
    assert [update.text async for update in stream] == ["user: ", "hi ", ""]
    assert (await stream.get_final_response()).usage_details == USAGE


@pytest.mark.parametrize(
    "give",
    [
        pieces,
        lambda: later(pieces()),
        lambda: cast("Any", ResponseStream(pieces())),
        lambda: later(ResponseStream(pieces(), finalizer=ChatResponse[Any].from_updates)),
        lambda: later(ChatResponse(messages=Message("assistant", ["ab"]))),
    ],
    ids=["pieces", "pieces later", "a stream without an end", "a stream later", "a whole"],
)
async def test_a_client_may_stream_in_any_way(give: Callable[[], Any]) -> None:
    stream = Giving(give).get_response(HI, stream=True)
    assert "".join([update.text async for update in stream]) == "ab"
    assert (await stream.get_final_response()).text == "ab"


async def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(ChatClientInvalidResponseException, match="returned a 'int'"):
        await Giving(lambda: later(3)).get_response(HI)
    with pytest.raises(ChatClientInvalidResponseException, match=r"must stream a ResponseStream .* not 'int'"):
        await Giving(lambda: 3).get_response(HI, stream=True).get_final_response()


async def test_an_error_of_the_model_reaches_who_asked() -> None:
    def broken(_: Any) -> list[Content]:
        raise ChatClientInvalidResponseException("no")

    with pytest.raises(ChatClientInvalidResponseException):
        await BareModel(broken).get_response(HI)
    with pytest.raises(ChatClientInvalidResponseException):
        await BareModel(broken).get_response(HI, stream=True).get_final_response()


async def test_instructions_reach_a_client_as_an_option_which_it_can_make_the_first_message() -> None:
    model = BareModel()
    await model.get_response(HI, options={"instructions": "be brief", "temperature": 0.5})
    (messages, options, _) = model.calls[0]
    assert (messages, options) == (HI, {"instructions": "be brief", "temperature": 0.5})
    shown = prepend_instructions_to_messages(messages, options["instructions"])
    assert [(message.role, message.text) for message in shown] == [("system", "be brief"), ("user", "hi")]


async def test_what_is_for_the_client_alone_reaches_it_without_what_is_for_layers() -> None:
    model = Model()
    await model.get_response(HI, client_kwargs={"trace": "t", "session": object(), "middleware": []})
    assert model.calls[0][2] == {"trace": "t"}


async def test_an_answer_knows_what_it_was_to_look_like() -> None:
    model = BareModel(lambda _: [Content.from_text('{"is_spam": true}')])
    options = {"response_format": Verdict}
    assert (await model.get_response(HI, options=options)).value == Verdict(is_spam=True)
    streamed = await model.get_response(HI, options=options, stream=True).get_final_response()
    assert streamed.value == Verdict(is_spam=True)


async def test_middleware_that_no_layer_takes_is_refused_and_not_left_out() -> None:
    async def watch(context: ChatContext, call_next: Any) -> None:
        del context
        await call_next()

    with pytest.raises(MiddlewareException, match="BareModel has no layer"):
        await BareModel().get_response(HI, client_kwargs={"middleware": [watch]})


async def test_layers_without_a_client_behind_them_say_so() -> None:
    class Hollow(ChatMiddlewareLayer[Any]):
        pass

    with pytest.raises(TypeError, match="layers but no client"):
        await Hollow().get_response(HI)


async def test_a_strategy_shortens_what_the_model_sees_and_changes_no_message() -> None:
    async def forget(messages: list[Message]) -> bool:
        messages[0].additional_properties["_excluded"] = True
        messages.append(Message("user", ["be quick"]))
        return True

    said = [Message("user", ["old"]), Message("user", ["new"])]
    for stream in (False, True):
        model = BareModel(compaction_strategy=forget)
        answer: Any = model.get_response(said, stream=stream)
        response = await (answer.get_final_response() if stream else answer)
        assert response.text.strip() == "user: new | user: be quick"
    assert said[0].additional_properties == {}


async def test_a_hook_on_a_stream_changes_the_whole_as_well() -> None:
    def shout(update: ChatResponseUpdate) -> ChatResponseUpdate:
        return ChatResponseUpdate(contents=[update.text.upper()], role="assistant")

    stream = BareModel().get_response(HI, stream=True).with_transform_hook(shout)
    assert (await stream.get_final_response()).text == "USER: HI "


async def test_an_abandoned_stream_is_closed_at_the_source() -> None:
    closed: list[bool] = []

    async def endless() -> AsyncGenerator[ChatResponseUpdate]:
        try:
            while True:
                yield ChatResponseUpdate(contents=["a"], role="assistant")
        finally:
            closed.append(True)

    stream = Giving(endless).get_response(HI, stream=True)
    assert (await anext(stream)).text == "a"
    await stream.aclose()
    assert closed == [True]


def test_clients_of_ours_and_of_others_are_clients() -> None:
    class Duck:
        additional_properties: dict[str, Any] = {}  # noqa: RUF012 - as the protocol has it

        def get_response(self, messages: Any, **_: Any) -> Any: ...

    assert isinstance(BareModel(), SupportsChatGetResponse)
    assert isinstance(Duck(), SupportsChatGetResponse)
    assert isinstance(Model(), ChatLayer)


async def test_a_client_makes_an_agent() -> None:
    agent = Model(say=echo).as_agent(name="a", instructions="be brief", default_options={"temperature": 0.1})
    assert (await agent.run("hi")).text == "system: be brief | user: hi"
    assert agent.default_options["temperature"] == 0.1


def test_later_options_win_and_some_add_up() -> None:
    merged = merge_options(
        {"instructions": "a", "metadata": {"x": 1, "y": 1}, "seed": 1, "top_p": 0.5},
        {"instructions": "b", "metadata": {"y": 2}, "seed": 2, "top_p": None},
    )
    assert merged == {"instructions": "a\nb", "metadata": {"x": 1, "y": 2}, "seed": 2, "top_p": 0.5}


@pytest.mark.parametrize("options", [{"temperature": 3}, {"top_p": -0.1}, {"max_tokens": 0}, {"presence_penalty": 2.5}])
async def test_numbers_that_no_model_takes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        await validate_chat_options(options)


def test_two_sets_of_options_are_merged_with_their_tools() -> None:
    first: dict[str, Any] = {"tools": ["a", "b"], "instructions": "one", "temperature": 0.1, "metadata": {"k": 1}}
    second: dict[str, Any] = {"tools": "b", "instructions": "two", "temperature": None, "metadata": {"m": 2}}
    merged = merge_chat_options(first, second)
    assert merged == {"tools": ["a", "b"], "instructions": "one\ntwo", "temperature": 0.1, "metadata": {"k": 1, "m": 2}}
    assert merge_chat_options(None, None) == {}


def test_a_choice_of_tools_is_told_as_a_dict() -> None:
    assert validate_tool_mode("auto") == {"mode": "auto"}
    assert validate_tool_mode(None) is None
    chosen: Any = {"mode": "required", "required_function_name": "f"}
    assert validate_tool_mode(chosen) == chosen
    with pytest.raises(ContentError, match="'none' has allowed_tools"):
        validate_tool_mode({"mode": "none", "allowed_tools": ["f"]})
