"""An agent that has another agent as a tool.

Shows: `as_tool`; model and tool calls of the inner agent are recorded too. The first attempt fails after the inner
agent has answered; the second one continues from there.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Agent, SqliteCheckpointStorage, WorkflowBuilder, tool
from perdure.testing import Reply, ScriptedChatClient, ToolCall

SCRIPTS: dict[str, list[Reply]] = {
    "librarian": [ToolCall("open_book", title="Owls"), "Owls turn their heads by 270 degrees."],
    "author": [ToolCall("librarian", task="How far do owls turn their heads?"), "Owls see what is behind them."],
}


@tool
def open_book(title: str) -> str:
    """Open a book."""
    print(f"  opening {title!r}")
    return "page 12: 270 degrees"


async def life(path: Path, *, is_failing: bool) -> None:
    scripts = dict(SCRIPTS)
    if is_failing:
        scripts["author"] = [scripts["author"][0], ConnectionError("the model of the author is not to be reached")]
    client = ScriptedChatClient(scripts)
    librarian = Agent(client, "You look things up.", name="librarian", description="Knows books", tools=[open_book])
    author = Agent(client, "You write.", name="author", tools=[librarian.as_tool()])
    workflow = WorkflowBuilder(
        name="book", start_executor=author, checkpoint_storage=SqliteCheckpointStorage(path)
    ).build()
    try:
        result = await workflow.run("Write about owls.", run_id="book-1")
        print(f"  {result.get_outputs()[-1].text}")
    except ConnectionError as error:
        print(f"  {error}")
    print("  asked:", *(call.agent for call in client.calls))


async def main() -> None:
    with TemporaryDirectory() as directory:
        for number, is_failing in enumerate((True, False), start=1):
            print(f"life {number}")
            await life(Path(directory, "runs.db"), is_failing=is_failing)


if __name__ == "__main__":
    asyncio.run(main())
