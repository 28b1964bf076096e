"""Agents that are killed half-way with SIGKILL and continue in a new process, from one SQLite file.

    python examples/demo.py

No service, no API key: the model follows a script, everything else is real. The program starts itself as a worker,
kills the worker in the middle of two agents' turns, and starts it again with the same command. Then a person approves a
call: in another process, which has only the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from perdure import (
    Agent,
    AgentExecutorRequest,
    AgentExecutorResponse,
    Message,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    tool,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from perdure import WorkflowRunResult
    from perdure.testing import Reply

RUN_ID = "report-1"
TOPIC = "Write about bridges."
FOUND = {
    "history": "The bridge of Arkadiko has stood for 3300 years.",
    "physics": "An arch turns its load into pressure, and stone bears pressure.",
    "economy": "A bridge that stands costs less than two that fell.",
}
SECONDS = {"physics, model, 2nd call": 2.0, "economy, tool library": 2.0}
SECONDS_ELSE = 0.2
BACK_BEFORE_THE_KILL = 6
TICKS_BEFORE_THE_KILL = 8
TICK_SECONDS = 0.1


class Outside:
    """The outside world. It reports each call when it starts and when it returns."""

    def __init__(self, tell: Callable[[str, str], None], pace: float) -> None:
        self._tell = tell
        self._pace = pace

    async def call(self, what: str) -> None:
        for _ in range(round(SECONDS.get(what, SECONDS_ELSE) * self._pace / TICK_SECONDS) or 1):
            self._tell("called", what)
            await asyncio.sleep(TICK_SECONDS * self._pace)
        self._tell("back", what)

    def says(
        self, what: str, reply: Callable[[Sequence[Message]], Reply]
    ) -> Callable[[Sequence[Message], Mapping[str, Any]], Awaitable[Reply]]:
        """Return a reply of a script that takes some time."""

        async def line(messages: Sequence[Message], _: Mapping[str, Any]) -> Reply:
            await self.call(what)
            return reply(messages)

        return line


def researcher(subject: str, outside: Outside) -> Agent:
    """Make an agent that calls its model, looks something up, and calls its model again."""

    # Reading may be repeated. By default an interrupted call is reported to the model and not repeated.
    @tool(if_interrupted="rerun")
    async def library(query: str) -> str:
        """Look something up."""
        await outside.call(f"{subject}, tool library")
        return FOUND[query]

    client = ScriptedChatClient(
        [
            outside.says(f"{subject}, model, 1st call", lambda _: ToolCall("library", query=subject)),
            outside.says(f"{subject}, model, 2nd call", lambda messages: str(messages[-1].contents[0].result)),
        ]
    )
    return Agent(client, f"You know about {subject}.", name=subject, tools=[library])


def editor(outside: Outside) -> Agent:
    """Make an agent that writes a report, and needs approval to publish it."""

    @tool(approval_mode="always_require")
    async def publish(report: str) -> str:
        """Publish a report."""
        await outside.call("editor, tool publish")
        return f"Published:\n{report}"

    client = ScriptedChatClient(
        [
            outside.says("editor, model, 1st call", lambda messages: ToolCall("publish", report=messages[-1].text)),
            outside.says("editor, model, 2nd call", lambda messages: str(messages[-1].contents[0].result)),
        ]
    )
    return Agent(client, "You publish what was found.", name="editor", tools=[publish])


@executor(id="ask")
async def ask(topic: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
    """Give every researcher the topic."""
    await ctx.send_message(AgentExecutorRequest([Message("user", [topic])]))


@executor(id="gather")
async def gather(found: list[AgentExecutorResponse], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
    """Give the editor all the findings."""
    report = "\n".join(each.agent_response.text for each in found)
    await ctx.send_message(AgentExecutorRequest([Message("user", [report])]))


def build(tell: Callable[[str, str], None], pace: float = 1.0) -> Workflow:
    """Build the workflow: three agents in parallel, then one that needs approval."""
    outside = Outside(tell, pace)
    researchers, last = [researcher(subject, outside) for subject in FOUND], editor(outside)
    builder = WorkflowBuilder(name="report", start_executor=ask, output_from=[last])
    return (
        builder.add_fan_out_edges(ask, researchers).add_fan_in_edges(researchers, gather).add_edge(gather, last).build()
    )


async def work(database: str) -> None:
    """Do the work of the worker process. It is the same every time."""
    storage = SqliteCheckpointStorage(database)
    result = await build(tell).run(TOPIC, run_id=RUN_ID, checkpoint_storage=storage)
    tell("state", result.get_final_state().value)
    for response in result.get_outputs():
        tell("result", response.text)


async def approve(database: str, name: str) -> None:
    """Do the work of the person's process. It has the file, and needs neither the workflow nor its agents."""
    storage = SqliteCheckpointStorage(database)
    for request in await storage.requests():
        call = request.data.function_call
        tell("question", f"{call.name}({', '.join(call.parse_arguments())})")
        seen = {} if request.approves is None else {request.request_id: request.approves}
        await storage.respond(request.run_id, {request.request_id: True}, by=name, approves=seen)


def tell(event: str, text: str) -> None:
    """Report to the demo what this process really does, outside of any checkpoint."""
    print(json.dumps({"event": event, "text": text, "pid": os.getpid()}), flush=True)


async def undisturbed() -> tuple[str, list[str]]:
    """Run the workflow without a kill, for comparison. Return its result and the calls that returned."""
    back: list[str] = []
    workflow = build(lambda event, text: back.append(text) if event == "back" else None, pace=0)
    asked: WorkflowRunResult = await workflow.run(TOPIC)
    answers = {
        each.request_id: each.data.to_function_approval_response(approved=True)
        for each in asked.get_request_info_events()
    }
    return (await workflow.run(responses=answers)).get_outputs()[-1].text, back


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start a process of this program."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this very file


def told_by(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the reports of a process as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def until_killed(database: str) -> list[dict[str, Any]]:
    """Start a worker and kill it when some calls have returned and two are in flight. Return its reports."""
    told: list[dict[str, Any]] = []
    ticks = 0
    with started("worker", database) as process:
        for entry in told_by(process):
            told.append(entry)
            if sum(each["event"] == "back" for each in told) >= BACK_BEFORE_THE_KILL:
                ticks += 1
            if ticks > TICKS_BEFORE_THE_KILL:
                process.send_signal(signal.SIGKILL)
                break
    return told


def to_the_end(*arguments: str) -> list[dict[str, Any]]:
    """Start a process and wait for its end. Return its reports."""
    with started(*arguments) as process:
        return list(told_by(process))


def timeline(calls: Sequence[str], lives: Sequence[list[dict[str, Any]]]) -> Table:
    """Show which process made which call, as the processes reported it."""
    table = Table("call", *(f"process {told[0]['pid']}" for told in lives))
    for place, call in enumerate(calls):
        cells: list[str] = []
        for told in lives:
            events = [entry["event"] for entry in told if entry["text"] == call]
            cells.append("[green]made[/]" if "back" in events else "[red]killed here[/]" if events else "")
        is_last = place + 1 == len(calls) or calls[place + 1].partition(",")[0] != call.partition(",")[0]
        table.add_row(call, *cells, end_section=is_last)
    return table


def come_back(lives: Sequence[list[dict[str, Any]]]) -> list[str]:
    """Return the calls that returned, in any process."""
    return [entry["text"] for told in lives for entry in told if entry["event"] == "back"]


def main() -> None:
    """Kill, resume, approve, compare, and show it."""
    console = Console()
    console.print(
        Panel(
            "Three agents work side by side on a report: each asks its model, calls a tool, asks its model again. "
            "What a model or a tool returns is on disk, in one SQLite file, before the agent gets it.",
            title="perdure",
        )
    )
    database = str(Path(tempfile.mkdtemp(prefix="perdure-demo-"), "runs.db"))
    first = until_killed(database)
    console.print(f"[red]SIGKILL[/] to process {first[0]['pid']}, in the middle of two turns.")
    second = to_the_end("worker", database)
    console.print(
        f"The same command again: process {second[0]['pid']} continues inside the turns. "
        "It ends when a call needs approval."
    )
    [question] = to_the_end("approve", database, "alice")
    console.print(
        f"Process {question['pid']} has only that file. Here a person, alice, approves the call: {question['text']!r}."
    )
    third = to_the_end("worker", database)
    console.print("The same command, one last time:\n")
    lives = [first, second, third]
    result, calls = asyncio.run(undisturbed())
    console.print(timeline(sorted(calls, key=order), lives))
    if sorted(come_back(lives)) != sorted(calls) or third[-1]["text"] != result:
        sys.exit(f"not what an undisturbed run does: {come_back(lives)}, {third[-1]['text']!r}\n{calls}, {result!r}")
    console.print(Panel(result, title="the result", subtitle="[green]the same as without a kill[/]"))
    console.print(
        f"{len(calls)} calls returned, each of them [green]once[/]. The two calls in flight when the process died were "
        "made again, because their answers were lost. Everything else of these turns was on disk, although the "
        "superstep had no checkpoint yet."
    )
    console.print(f"Look at the run in the browser:\n{inspect_command(database)}", soft_wrap=True)


def inspect_command(database: str) -> str:
    """Return the command that opens the inspector on the demo's database."""
    program = Path(sys.executable).with_name("perdure")
    here = Path.cwd()
    return f"{program.relative_to(here) if program.is_relative_to(here) else program} inspect -s {database}"


def order(call: str) -> tuple[int, str]:
    """Sort calls by agent, then in the order of a turn."""
    agent, _, rest = call.partition(", ")
    return [*FOUND, "editor"].index(agent), {"model, 1st call": "1", "model, 2nd call": "3"}.get(rest, "2")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", database]:
            asyncio.run(work(database))
        case ["approve", database, name]:
            asyncio.run(approve(database, name))
        case _:
            main()
