"""Sessions: what is remembered of a conversation, by whom, and in which form it is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from tests.agents.stub_model import Model, kept

from perdure import Log
from perdure.agents import (
    Agent,
    AgentSession,
    ContextProvider,
    FileHistoryProvider,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
    register_state_type,
)
from perdure.errors import AgentInvalidRequestException, MiddlewareException

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from perdure.agents import ChatResponse, ChatResponseUpdate, Content, SupportsAgentRun


class Cart(BaseModel):
    items: list[str]


class Stateless(Model):
    STORES_BY_DEFAULT = True


def answer(_: Sequence[Message]) -> list[Content]:
    return Message("assistant", ["answer"]).contents


def texts(session: AgentSession, source: str = "in_memory") -> list[str]:
    return [message.text for message in session.state[source]["messages"]]


async def test_with_a_session_the_conversation_goes_on_and_is_a_log() -> None:
    agent = Agent(Model(), "be brief", name="a")
    session = agent.create_session()
    await agent.run("hi", session=session)
    response = await agent.run("again", session=session)
    assert response.text == "system: be brief | user: hi | assistant: system: be brief | user: hi | user: again"
    assert texts(session)[::2] == ["hi", "again"]
    assert isinstance(session.state["in_memory"]["messages"], Log)


async def test_without_a_session_nothing_is_remembered_even_with_a_history() -> None:
    agent = Agent(Model(), context_providers=[InMemoryHistoryProvider()])
    await agent.run("hi")
    assert (await agent.run("again")).text == "user: again"


async def test_a_run_that_failed_leaves_no_trace_in_the_history() -> None:
    def broken(_: Any) -> Any:
        raise ValueError("no")

    agent = Agent(Model(say=broken))
    session = agent.create_session()
    with pytest.raises(ValueError, match="no"):
        await agent.run("hi", session=session)
    assert "messages" not in session.state["in_memory"]


async def test_an_agent_is_not_changed_by_the_sessions_that_it_is_run_with() -> None:
    agent = Agent(Model())
    await agent.run("hi", session=agent.create_session())
    assert agent.context_providers == []


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_session_is_the_same_after_json(session_id: str | None) -> None:
    agent = Agent(Model())
    session = agent.create_session(session_id=session_id)
    session.state["mine"] = {"count": 3, "items": ("a", None)}
    await agent.run("hi", session=session)
    read = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    assert read.session_id == session.session_id
    assert read.state["mine"] == {"count": 3, "items": ["a", None]}
    await agent.run("again", session=read)
    assert texts(read)[::2] == ["hi", "again"]
    assert texts(session)[::2] == ["hi"]


async def test_a_session_is_the_same_after_a_checkpoint_and_its_history_still_a_log() -> None:
    agent = Agent(Model())
    session = agent.get_session("c1", session_id="s")
    session.state["in_memory"] = {"messages": Log([Message("user", ["hi"])])}
    read = kept(session)
    assert (read.session_id, read.service_session_id) == ("s", "c1")
    assert read.state == session.state
    assert isinstance(read.state["in_memory"]["messages"], Log)


def test_what_has_no_form_in_json_is_refused_with_its_path() -> None:
    session = AgentSession()
    session.state["mine"] = {"parts": [object()]}
    with pytest.raises(TypeError, match=r"state\['mine'\]\['parts'\]\[0\] is a 'object'"):
        session.to_dict()


def test_a_registered_class_comes_back_as_itself() -> None:
    register_state_type(Cart)
    session = AgentSession()
    session.state["cart"] = Cart(items=["tea"])
    assert AgentSession.from_dict(json.loads(json.dumps(session.to_dict()))).state["cart"] == Cart(items=["tea"])


def test_two_classes_can_not_have_one_name() -> None:
    register_state_type(Cart)
    with pytest.raises(ValueError, match="'cart' is already used by 'Cart'"):
        register_state_type(AgentSession, type_id="cart")


def test_a_dict_without_an_id_is_no_session() -> None:
    with pytest.raises(ValueError, match="needs a session_id"):
        AgentSession.from_dict({"state": {}})


class Facts(ContextProvider):
    """Adds to a run, and remembers how many there were."""

    async def before_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        del agent, session
        context.extend_messages(self, [Message("user", [f"fact {state.get('runs', 0)}"])])
        context.extend_instructions(self.source_id, "mind the facts")

    async def after_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        del agent, session
        assert context.response is not None
        state["runs"] = state.get("runs", 0) + 1


async def test_a_provider_adds_to_a_run_and_remembers_in_the_session() -> None:
    agent = Agent(Model(), "be brief", context_providers=[Facts("facts")])
    session = agent.create_session()
    assert (await agent.run("hi", session=session)).text == "system: be brief\nmind the facts | user: fact 0 | user: hi"
    assert "user: fact 1 | user: hi" in (await agent.run("hi", session=session)).text
    assert session.state["facts"] == {"runs": 2}
    assert texts(session)[::2] == ["hi", "hi"]


async def test_what_a_provider_adds_says_where_it_comes_from_and_leaves_the_original() -> None:
    context, message = SessionContext(input_messages=[]), Message("user", ["fact"])
    context.extend_messages(Facts("facts"), [message])
    (told,) = context.get_messages()
    assert told.additional_properties["_attribution"] == {"source_id": "facts", "source_type": "Facts"}
    assert message.additional_properties == {}


def test_messages_are_found_by_source() -> None:
    context = SessionContext(input_messages=[Message("user", ["new"])])
    context.extend_messages("a", [Message("user", ["1"])])
    context.extend_messages("b", [Message("user", ["2"])])
    assert [message.text for message in context.get_messages(sources={"b"}, include_input=True)] == ["2", "new"]
    assert [message.text for message in context.get_messages(exclude_sources={"b"})] == ["1"]


def test_a_provider_adds_no_middleware_around_the_run_that_has_begun() -> None:
    async def around(context: Any, call_next: Any) -> None: ...

    around.__annotations__["context"] = "AgentContext"
    with pytest.raises(MiddlewareException, match="provider 'facts' adds agent middleware"):
        SessionContext(input_messages=[]).extend_middleware("facts", around)


class Archive(HistoryProvider):
    """Keeps what was said, for nobody to load."""

    def __init__(self, **flags: Any) -> None:
        super().__init__("archive", load_messages=False, **flags)
        self.saved: list[str] = []

    async def get_messages(self, session_id: str | None, **_: Any) -> list[Message]:
        raise AssertionError(f"nobody loads {session_id}")

    async def save_messages(self, session_id: str | None, messages: Sequence[Message], **_: Any) -> None:
        del session_id
        self.saved += [message.text for message in messages]


@pytest.mark.parametrize(
    ("flags", "saved"),
    [
        ({}, ["hi", "answer"]),
        ({"store_inputs": False}, ["answer"]),
        ({"store_outputs": False}, ["hi"]),
        ({"store_context_messages": True}, ["fact 0", "hi", "answer"]),
        ({"store_context_messages": True, "store_context_from": {"none"}}, ["hi", "answer"]),
    ],
)
async def test_an_archive_keeps_what_its_flags_say_and_the_session_has_its_history_beside_it(
    flags: dict[str, Any], saved: list[str]
) -> None:
    archive = Archive(**flags)
    agent = Agent(Model(say=answer), context_providers=[Facts("facts"), archive])
    session = agent.create_session()
    await agent.run("hi", session=session)
    assert archive.saved == saved
    assert texts(session) == ["hi", "answer"]


async def test_a_history_leaves_out_what_was_excluded_if_it_is_told_to() -> None:
    state = {"messages": [Message("user", ["a"], additional_properties={"_excluded": True}), Message("user", ["b"])]}
    assert len(await InMemoryHistoryProvider().get_messages("s", state=state)) == 2
    assert len(await InMemoryHistoryProvider(skip_excluded=True).get_messages("s", state=state)) == 1


async def test_a_conversation_that_the_provider_keeps_has_no_history_of_ours() -> None:
    agent = Agent(Stateless())
    session = agent.create_session()
    await agent.run("hi", session=session)
    assert session.state == {}
    await agent.run("hi", session=session, options={"store": False})
    assert texts(session)[0] == "hi"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_id_that_the_provider_has_is_remembered_and_told_to_it(stream: bool) -> None:  # noqa: FBT001
    class Keeping(Model):
        async def whole(self, contents: list[Content]) -> ChatResponse[Any]:
            response = await super().whole(contents)
            response.conversation_id = "c1"
            return response

        async def streamed(self, contents: list[Content]) -> AsyncGenerator[ChatResponseUpdate]:
            async for update in super().streamed(contents):
                update.conversation_id = "c1"
                yield update

    model = Keeping()
    agent = Agent(model)
    session = agent.create_session()
    for _ in range(2):
        given: Any = agent.run("hi", session=session, stream=stream)
        await (given.get_final_response() if stream else given)
    assert session.service_session_id == "c1"
    assert [options.get("conversation_id") for _, options, _ in model.calls] == [None, "c1"]


async def test_an_id_that_is_no_text_is_refused() -> None:
    agent = Agent(Model())
    with pytest.raises(AgentInvalidRequestException, match="not a str"):
        await agent.run("hi", session=agent.get_session({"id": 1}))


async def test_a_history_in_files_is_there_for_another_agent(tmp_path: Path) -> None:
    models = [Model(), Model()]
    for model in models:
        agent = Agent(model, context_providers=[FileHistoryProvider(tmp_path / "histories")])
        await agent.run("h\u00e9llo\u2028", session=AgentSession(session_id="s-1"))
    assert len(models[1].calls[0][0]) == 3
    messages = await FileHistoryProvider(tmp_path / "histories").get_messages("s-1")
    assert [message.role for message in messages] == ["user", "assistant"] * 2
    assert messages[0].text == "h\u00e9llo\u2028"
    assert [path.name for path in (tmp_path / "histories").iterdir()] == ["s-1.jsonl"]


@pytest.mark.parametrize("session_id", ["../other", "a/b", "A", "", "\0", ".", "x" * 300])
async def test_any_session_id_has_a_file_of_its_own_in_the_directory(tmp_path: Path, session_id: str) -> None:
    history = FileHistoryProvider(tmp_path / "histories")
    await history.save_messages("a", [Message("user", "mine")])
    await history.save_messages(session_id, [Message("user", "theirs")])
    assert [message.text for message in await history.get_messages(session_id)] == ["theirs"]
    assert [len(list(each.iterdir())) for each in (tmp_path, tmp_path / "histories")] == [1, 2]


async def test_a_damaged_file_of_a_history_is_named(tmp_path: Path) -> None:
    history = FileHistoryProvider(tmp_path)
    await history.save_messages("s", [Message("user", "hi")])
    (tmp_path / "s.jsonl").write_text((tmp_path / "s.jsonl").read_text() + '{"role": "us')
    with pytest.raises(ValueError, match=r"line 2 of '.*s\.jsonl' is not a message"):
        await history.get_messages("s")
