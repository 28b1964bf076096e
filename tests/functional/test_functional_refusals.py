"""What is wrong with a function, a step or a call is said by name, with what to do about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import (
    AnswerTypeError,
    IncompatibleGraphError,
    RunContext,
    RunExistsError,
    RunNotFoundError,
    UnknownRequestError,
    step,
    workflow,
)

if TYPE_CHECKING:
    from perdure.storage import StoreStorage as Storage


@workflow
async def nightly(ctx: RunContext) -> str:
    """Takes no message."""
    return f"done {await ctx.request_info('well?', str)}"


@workflow
async def perhaps(text: str | None) -> str:
    """Takes a message, or none."""
    return f"got {text}"


@workflow
async def question(text: str, ctx: RunContext) -> str:
    """Asks."""
    return f"{text}: {await ctx.request_info(text, str)}"


async def test_a_function_without_a_message_is_begun_and_found_by_its_run_id(storage: Storage) -> None:
    first = await nightly.run(run_id="r", checkpoint_storage=storage)
    assert [event.request_id for event in first.get_request_info_events()] == ["auto::0"]
    again = await nightly.twin().run(None, run_id="r", checkpoint_storage=storage)
    assert [event.request_id for event in again.get_request_info_events()] == ["auto::0"]
    last = await nightly.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert last.get_outputs() == ["done yes"]
    assert (await nightly.twin().run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["done yes"]


async def test_a_function_without_a_message_is_started_by_its_run_id(storage: Storage) -> None:
    run = await nightly.twin().start(run_id="r", checkpoint_storage=storage)
    await run.result()
    await run.respond({"auto::0": "yes"})
    assert (await run.result()).get_outputs() == ["done yes"]


async def test_a_message_that_may_be_none_can_be_left_out(storage: Storage) -> None:
    assert (await perhaps.run()).get_outputs() == ["got None"]
    assert (await perhaps.run(run_id="r", checkpoint_storage=storage)).get_outputs() == ["got None"]
    await perhaps.run("owl", run_id="s", checkpoint_storage=storage)
    assert (await perhaps.twin().run(run_id="s", checkpoint_storage=storage)).get_outputs() == ["got owl"]


async def test_a_run_of_another_function_is_not_taken_for_ones_own(storage: Storage) -> None:
    await perhaps.run(run_id="r", checkpoint_storage=storage)
    with pytest.raises(RunExistsError, match="is a run of workflow 'perhaps'"):
        await nightly.twin().run(run_id="r", checkpoint_storage=storage)


async def test_a_run_that_is_not_there_is_not_begun_by_answers(storage: Storage) -> None:
    with pytest.raises(RunNotFoundError):
        await nightly.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    with pytest.raises(RunNotFoundError):
        await nightly.twin().run(responses={}, checkpoint_storage=storage)


async def test_a_function_that_was_renamed_is_told_how_to_keep_its_name(storage: Storage) -> None:
    async def before(text: str, ctx: RunContext) -> str:
        return await ctx.request_info(text, str)

    await workflow(name="old")(before).run("go", run_id="r", checkpoint_storage=storage)
    with pytest.raises(IncompatibleGraphError) as caught:
        await workflow(name="new")(before).run(run_id="r", checkpoint_storage=storage)
    assert "@workflow(name='old')" in str(caught.value)
    assert "migrations" not in str(caught.value)


async def test_a_misspelt_option_is_no_keyword_of_the_run(storage: Storage) -> None:
    options: dict[str, Any] = {"checkpoint_storge": storage}
    with pytest.raises(TypeError, match="did you mean 'checkpoint_storage'"):
        question.run("owl", run_id="r", **options)
    with pytest.raises(TypeError, match="did you mean 'checkpoint_storage'"):
        question.as_agent().run("owl", run_id="r", **options)


async def test_any_keyword_is_one_of_the_run_if_the_function_takes_all() -> None:
    @workflow
    async def open_minded(_: str, **more: Any) -> list[str]:
        return sorted(more)

    assert (await open_minded.run("go", deadlines=1, user="Ada")).get_outputs() == [["deadlines", "user"]]


def test_a_message_has_to_be_positional() -> None:
    with pytest.raises(ValueError, match=r"'text'.*keyword"):

        @workflow
        async def by_keyword(*, text: str) -> str:  # pyright: ignore[reportUnusedFunction]
            return text


@pytest.mark.parametrize("key", [3, "", None, " 0#0"])
async def test_a_key_is_a_text(key: Any) -> None:
    @step(key=lambda: key)
    async def keyed() -> None:
        return None

    @workflow
    async def keys(_: str) -> None:
        await keyed()

    with pytest.raises((TypeError, ValueError), match=r"step 'keyed': a key"):
        await keys.run("go")


async def test_a_step_that_is_called_in_the_thread_of_a_plain_one_is_named() -> None:
    @step
    async def inner() -> None:
        return None

    @step
    def plain() -> Any:
        return inner()

    @workflow
    async def threads(_: str) -> None:
        await plain()

    with pytest.raises(RuntimeError, match="step 'inner' is called in a thread"):
        await threads.run("go")


async def test_arguments_that_do_not_fit_a_step_name_it() -> None:
    @step
    async def needs(text: str, ctx: RunContext) -> str:
        del ctx
        return text

    @step
    async def plain(text: str) -> str:
        return text

    @workflow
    async def wrong(which: str, ctx: RunContext) -> None:
        match which:
            case "none":
                await needs()
            case "context":
                await needs("owl", ctx)
            case _:
                await plain("a", "b")

    with pytest.raises(TypeError, match="step 'needs': missing a required argument: 'text'"):
        await wrong.run("none")
    with pytest.raises(TypeError, match=r"step 'needs'.*leave out its RunContext"):
        await wrong.run("context")
    with pytest.raises(TypeError, match="step 'plain': too many positional arguments"):
        await wrong.run("more")


async def test_answers_that_do_not_fit_say_what_to_do() -> None:
    instance = nightly.twin()
    await instance.run()
    with pytest.raises(AnswerTypeError, match=r"asks for a str, the answer is None, which does not fit"):
        await instance.run(responses={"auto::0": None})
    with pytest.raises(AnswerTypeError, match=r"the answer is 3, which does not fit"):
        await instance.run(responses={"auto::0": 3})
    with pytest.raises(UnknownRequestError, match=r"pending are 'auto::0'; "):
        await instance.run(responses={"auto::1": "yes"})
    await asyncio.sleep(0)
