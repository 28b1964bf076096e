"""What agents, sessions and options can't take: it is said at once, and what to give instead."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.agents.stub_model import BareModel, Model

from perdure.agents import Agent, AgentSession, ChatContext, ChatMiddleware, ChatMiddlewareLayer, Message
from perdure.observability import ChatTelemetryLayer

HI = [Message("user", ["hi"])]


class Layered(ChatMiddlewareLayer[Any], BareModel):
    """A client with one layer."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"client": None}, "with get_response, not None"),
        ({"client": "be brief"}, r"not 'be brief'; use Agent\(client, instructions\)"),
        ({"instructions": ["be brief"]}, r"instructions must be a str, not \['be brief'\]"),
        ({"default_options": 5}, "default_options must be a dict of options, .* not 5"),
        (
            {"default_options": {"response_format": "Verdict"}},
            "response_format must be a pydantic model .* not 'Verdict'",
        ),
        (
            {"default_options": {"response_format": dict}},
            "response_format must be a pydantic model .* not <class 'dict'>",
        ),
        ({"context_providers": ["mine"]}, "a list of ContextProviders; it contains 'mine'"),
        ({"context_providers": 5}, "a list of ContextProviders; it contains 5"),
    ],
)
def test_an_agent_is_not_made_of_what_it_could_not_use(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Agent(**cast("Any", {"client": Model(), **arguments}))


@pytest.mark.parametrize("session", ["abc", {"session_id": "1"}, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_a_session_is_a_session(session: Any, stream: bool) -> None:  # noqa: FBT001
    with pytest.raises(TypeError, match=r"session must be an AgentSession, not "):
        Agent(Model()).run("hi", session=session, stream=stream)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"type": "session"}, r"needs a session_id; found only \['type'\]"),
        ({"session_id": 5}, "a str as session_id and a dict as state, not 5 and {}"),
        ({"session_id": "a", "state": 5}, "not 'a' and 5"),
        ("abc", r"not 'abc'; parse JSON with json.loads\(\)"),
    ],
)
def test_a_session_is_made_of_what_a_session_gave(data: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        AgentSession.from_dict(data)


async def test_a_history_that_is_none_is_named_by_where_it_stands() -> None:
    session = AgentSession()
    session.state["in_memory"] = {"messages": ["hi"]}
    with pytest.raises(
        TypeError, match=r"session.state\['in_memory'\]\['messages'\] must be a list of Messages; it contains 'hi'"
    ):
        await Agent(Model()).run("hi", session=session)


async def test_one_middleware_need_not_stand_in_a_list() -> None:
    class Noting(ChatMiddleware):
        calls = 0

        async def process(self, context: ChatContext, call_next: Any) -> None:
            del context
            self.calls += 1
            await call_next()

    noting = Noting()
    await Agent(Model(), middleware=noting).run("hi")
    await Layered(middleware=noting).get_response(HI)
    assert noting.calls == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 7}, "temperature is 7; it must be between 0.0 and 2.0"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"max_tokens": -5}, "max_tokens is -5; it must be greater than 0"),
        ({"tool_choice": "maybe"}, "tool_choice is 'maybe'; it must be 'auto', 'required' or 'none'"),
        ({"tool_choice": 5}, "tool_choice is 5; it must be"),
        (
            {"tool_choice": {"mode": "auto", "required_function_name": "f"}},
            "names a required function; only 'required' can",
        ),
        ({"tool_choice": {"mode": "auto", "allowed_tools": "f"}}, "are 'f'; they must be a list of names"),
        ({"response_format": 5}, "response_format must be a pydantic model or a JSON schema, not 5"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_option_that_no_model_takes_is_refused_before_it_is_asked(
    options: dict[str, Any],
    said: str,
    stream: bool,  # noqa: FBT001
) -> None:
    model = BareModel()
    with pytest.raises((TypeError, ValueError), match=said):
        await model.get_response(HI, options=options, stream=stream)
    assert model.calls == []


async def test_a_client_may_have_helpers_of_any_name() -> None:
    class Mine(Model):
        """Has what the layers have had names for."""

        def _next(self) -> str:
            return "mine"

        _asked = _asked_stream = _compacted = _compacted_stream = _begun = _whole = _stream = _next

    class Passing(ChatMiddleware):
        async def process(self, context: ChatContext, call_next: Any) -> None:
            del context
            await call_next()

    client = Mine(middleware=[Passing()])
    assert (await client.get_response(HI)).text == "user: hi"
    assert (await client.get_response(HI, stream=True).get_final_response()).text == "user: hi "


def test_tracing_stands_where_the_reference_has_it() -> None:
    assert issubclass(Model, ChatTelemetryLayer)
