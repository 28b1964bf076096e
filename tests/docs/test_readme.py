"""The programs of the README run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, directory: Path) -> str:
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_program_gives_its_result_however_often_it_is_started(tmp_path: Path) -> None:
    first = programs()[0]
    assert run(first, tmp_path) == "['A text about lasting, reviewed']\n"
    assert run(first, tmp_path) == "['A text about lasting, reviewed']\n"


def test_a_person_is_asked_and_answers_in_another_call(tmp_path: Path) -> None:
    [definition] = [program for program in programs() if "class Publisher" in program]
    [calls] = [program for program in programs() if "[question]" in program]
    program = "\n".join(
        [
            "import asyncio",
            "from perdure import SqliteCheckpointStorage, WorkflowBuilder",
            definition,
            "async def main():",
            "    workflow = WorkflowBuilder(name='publish', start_executor=Publisher(id='publisher')).build()",
            "    storage = SqliteCheckpointStorage('runs.db')",
            textwrap.indent(calls, "    "),
            "    again = await workflow.run(run_id='order-18', checkpoint_storage=storage)",
            "    print(again.get_outputs())",
            "asyncio.run(main())",
        ]
    )
    assert run(program, tmp_path) == "['lasting']\n"


def test_a_host_runs_the_workflow_of_the_first_program(tmp_path: Path) -> None:
    definition = programs()[0].partition("async def main")[0]
    factory = definition.replace("workflow = ", "def make_workflow():\n    return ")
    [service] = [program for program in programs() if "Host(" in program]
    setup, _, body = service.partition("async with host")
    main = textwrap.indent(f"async with host{body}", "    ")
    program = f"{factory}\n{setup}\nasync def main():\n{main}\nasyncio.run(main())"
    assert run(program, tmp_path) == "['A text about lasting, reviewed']\n"


def test_agents_stop_at_what_needs_approval_and_go_on_with_the_answer(tmp_path: Path) -> None:
    [definition] = [program for program in programs() if "def refund" in program]
    scripted = definition.replace("    ...\n", "    return f'refunded {amount} for {order}'\n").replace(
        'OpenAIChatClient("gpt-5-mini")', "ScriptedChatClient(SCRIPTS)"
    )
    before = """
import asyncio
from perdure.testing import ScriptedChatClient, ToolCall
SCRIPTS = {
    "clerk": [ToolCall("refund", order="o1", amount=7), "You get 7 back."],
    "scribe": ["A refund was made."],
}
"""
    after = """
async def main():
    storage = SqliteCheckpointStorage("runs.db")
    await workflow.run("It broke.", run_id="case-1", checkpoint_storage=storage)
    [request] = await storage.requests("case-1")
    await storage.respond("case-1", {request.request_id: True}, by="alice")
    result = await workflow.run(run_id="case-1", checkpoint_storage=storage)
    print([output.text for output in result.get_outputs()])
asyncio.run(main())
"""
    program = before + scripted + after
    assert run(program, tmp_path) == "['You get 7 back.', 'A refund was made.']\n"
