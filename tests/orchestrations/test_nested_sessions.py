"""An orchestration used as an agent for several turns: no participant gets a message twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.orchestrations.chain_team import team

from perdure import AgentSession, SqliteCheckpointStorage
from perdure.orchestrations import ConcurrentBuilder, GroupChatBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.orchestrations import GroupChatState

LAST_WORD = "The group chat has reached the maximum number of rounds."


async def test_a_group_chat_is_told_only_what_is_new_in_each_process(tmp_path: Path) -> None:
    cast, seen = team(p=["P1", "P2"], q=["Q1", "Q2"]), list[list[str]]()

    def select(state: GroupChatState) -> str:
        seen.append([message.text for message in state.conversation])
        return "pq"[state.current_round % 2]

    def chat() -> GroupChatBuilder:
        storage = SqliteCheckpointStorage(tmp_path / "runs.db")
        return GroupChatBuilder(
            participants=cast.agents,
            selection_func=select,
            max_rounds=2,
            output_from="all",
            checkpoint_storage=storage,
            name="chat",
        )

    session = AgentSession()
    await chat().build().as_agent("chat").run("hi", session=session)
    session = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    await chat().build().as_agent("chat").run("more", session=session)
    assert seen[2:] == [["hi", "P1", "Q1", LAST_WORD, "more"], ["hi", "P1", "Q1", LAST_WORD, "more", "P2"]]
    assert cast.told("p")[1] == ["hi", "P1", "Q1", "more"]
    assert cast.told("q")[1] == ["hi", "P1", "Q1", "more", "P2"]


async def test_who_has_heard_of_another_in_another_order_is_not_told_its_own_words_again() -> None:
    cast = team(p=["P1", "P2", "P3"], q=["Q1", "Q2", "Q3"])
    agent = ConcurrentBuilder(participants=cast.agents).build().as_agent("both")
    session = agent.create_session()
    for text in ("hi", "more", "last"):
        await agent.run(text, session=session)
    assert cast.told("p")[2] == ["hi", "P1", "Q1", "more", "P2", "Q2", "last"]
    assert cast.told("q")[2] == ["hi", "Q1", "P1", "more", "Q2", "P2", "last"]
