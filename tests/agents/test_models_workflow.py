"""A model of another provider and an MCP server, in a workflow that is killed: both count what they are asked."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from tests import warm
from tests.agents.anthropic_server import anthropic_server, calls, text
from tests.agents.mcp_process import http_server, noted

if TYPE_CHECKING:
    from subprocess import CompletedProcess


ROOT = Path(__file__).parents[2]


def life(model_url: str, mcp_url: str, directory: Path) -> CompletedProcess[str]:
    return warm.run("-m", "tests.agents.models_program", model_url, mcp_url, str(directory), cwd=ROOT)


def test_after_a_kill_in_the_middle_of_a_call_nothing_is_asked_or_called_twice(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with anthropic_server() as model, http_server(notes) as server:
        model.will(calls("add", {"first": 1, "second": 2}), calls("kills", {}, "toolu_2"), text("So be it."))
        first = life(model.url, server.url, tmp_path)
        assert first.returncode == -signal.SIGKILL, first.stderr
        assert len(model.asked) == 2

        second = life(model.url, server.url, tmp_path)
        assert second.stdout == "['So be it.']", second.stderr

    assert [line["tool"] for line in noted(notes)] == ["add", "kills"]
    assert len(model.asked) == 3
    (result,) = model.asked[2]["messages"][-1]["content"]
    assert result["tool_use_id"] == "toolu_2"
    assert "interrupted" in str(result["content"])
    keys = [line["meta"]["perdure/idempotency-key"] for line in noted(notes)]
    assert len(set(keys)) == 2
