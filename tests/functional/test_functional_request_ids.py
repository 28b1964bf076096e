"""One id is one question of a run: an answer is never one to another question."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import AlreadyAnsweredError, FunctionalWorkflow, Message, RunContext, UnknownRequestError, workflow
from perdure.orchestrations import SequentialBuilder

if TYPE_CHECKING:
    from perdure import Workflow, WorkflowRunResult
    from perdure.storage import StoreStorage as Storage


def asking(name: str) -> FunctionalWorkflow:
    """A function that asks one thing."""

    @workflow(name=name)
    async def ask(messages: list[Message], ctx: RunContext) -> str:
        del messages
        return f"{name}: {await ctx.request_info(f'{name}: may I?', bool)}"

    return ask


def pair() -> Workflow:
    """Two of them, one after the other."""
    agents = [asking("ann").as_agent(), asking("bob").as_agent()]
    return SequentialBuilder(participants=agents, chain_only_agent_responses=True).build()


def ids(result: WorkflowRunResult) -> list[str]:
    """What was asked."""
    return [event.request_id for event in result.get_request_info_events()]


async def test_an_answer_that_comes_twice_does_not_approve_what_the_next_one_asks(storage: Storage) -> None:
    (first,) = ids(await pair().run("hi", run_id="r", checkpoint_storage=storage))
    (second,) = ids(await pair().run(run_id="r", responses={first: True}, checkpoint_storage=storage))
    assert first != second
    with pytest.raises(AlreadyAnsweredError):
        await pair().run(run_id="r", responses={first: True}, checkpoint_storage=storage)
    (open_still,) = await storage.requests("r")
    assert open_still.data == "bob: may I?"


async def test_a_later_turn_of_a_run_asks_under_other_ids(storage: Storage) -> None:
    @workflow
    async def race(_: str, ctx: RunContext) -> str:
        asked = [asyncio.ensure_future(ctx.request_info(text, str)) for text in ("one?", "other?")]
        done, left = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for each in left:
            each.cancel()
        return done.pop().result()

    first = ids(await race.run("go", run_id="r", checkpoint_storage=storage))
    assert first == ["auto::0", "auto::1"]
    await race.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    await storage.send("r", "once more")
    again = ids(await race.twin().run(run_id="r", checkpoint_storage=storage))
    assert len(again) == 2
    assert not {*first} & {*again}
    with pytest.raises(UnknownRequestError):
        await race.twin().run(run_id="r", responses={"auto::1": "late"}, checkpoint_storage=storage)


async def test_another_question_under_the_same_id_is_an_error(storage: Storage) -> None:
    @workflow
    async def careless(_: str, ctx: RunContext) -> list[bool]:
        temporary = await ctx.request_info("delete the temporary files?", bool, request_id="ok")
        return [temporary, await ctx.request_info("delete the database?", bool, request_id="ok")]

    await careless.run("go", run_id="r", checkpoint_storage=storage)
    with pytest.raises(ValueError, match=r"'ok' is another question here.*choose another request_id"):
        await careless.twin().run(run_id="r", responses={"ok": True}, checkpoint_storage=storage)


async def test_the_same_question_under_the_same_id_has_one_answer_and_that_is_told(storage: Storage) -> None:
    async def stubborn(_: str, ctx: RunContext) -> Any:
        while not await ctx.request_info("ok?", bool, request_id="ok"):
            pass
        return "fine"

    asks = workflow(stubborn)
    await asks.run("go", run_id="r", checkpoint_storage=storage)
    warned: list[str] = []
    stream = asks.twin().run(run_id="r", responses={"ok": False}, checkpoint_storage=storage, stream=True)
    async with asyncio.timeout(20):
        async for event in stream:
            if event.type == "warning":
                warned.append(event.data)
                break
    # It asks for ever, but it can be stopped.
    await stream.aclose()
    assert "'ok' is asked again" in warned[0]
