"""A model behind a wire, in a workflow: the server counts what it is asked."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm
from tests.agents.openai_server import Say, calls, serving, text

from perdure import FunctionExecutor, SqliteCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext
from perdure.agents import Message
from perdure.errors import ChatClientException
from perdure.openai import OpenAIChatClient

if TYPE_CHECKING:
    from subprocess import CompletedProcess


ROOT = Path(__file__).parents[2]


def life(url: str, directory: Path) -> CompletedProcess[str]:
    return warm.run("-m", "tests.agents.openai_program", url, str(directory), cwd=ROOT)


def test_a_model_that_has_answered_is_not_asked_again_after_a_kill(tmp_path: Path) -> None:
    first = [calls(("c1", "note", '{"line": "one"}')), text("Noted one")]
    second = [calls(("c2", "note", '{"line": "two"}')), text("Noted two")]
    with serving(*first, *second, text("Asked again")) as server:
        assert life(server.url, tmp_path).returncode == -signal.SIGKILL
        assert len(server.requests) == 4
        resumed = life(server.url, tmp_path)
        assert resumed.stdout == "[['Noted one', 'Noted two']]", resumed.stderr
        assert len(server.requests) == 4
    assert (tmp_path / "notes").read_text(encoding="utf-8") == "one\ntwo\n"


def asking(client: OpenAIChatClient) -> Workflow:
    async def ask(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        response = await client.get_response([Message("user", [message])], stream=True).get_final_response()
        await ctx.yield_output(response.text)

    node = FunctionExecutor(ask, "node", input=str, output=Any, workflow_output=Any)
    return WorkflowBuilder(name="asking", start_executor=node).build()


async def test_nothing_of_a_stream_that_broke_is_recorded(tmp_path: Path) -> None:
    broken = Say({"content": "Hello"}, deltas=[{"content": "Hel"}, {"content": "lo"}], drops_after=2)
    with serving(broken, text("Hello again")) as server:
        settings: dict[str, Any] = {"base_url": server.url, "api_key": "k"}
        async with OpenAIChatClient("m", **settings) as client, SqliteCheckpointStorage(tmp_path / "db") as storage:
            workflow = asking(client)
            with pytest.raises(ChatClientException):
                await workflow.run("Hi", run_id="r", checkpoint_storage=storage)
            result = await workflow.run("Hi", run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == ["Hello again"]
    assert len(server.requests) == 2
