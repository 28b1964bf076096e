"""Executors that call agents themselves, as often as they need.

Shows: `agent.run` inside a handler is recorded. The first attempt fails; the second one calls no model again that has
answered.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import (
    Agent,
    Executor,
    Message,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from perdure.testing import ScriptedChatClient

SCRIPTS = {"writer": ["Lamps for people who read."], "critic": ["Too short."], "translator": ["Lampen für Leser."]}


class Writer(Executor):
    def __init__(self, client: ScriptedChatClient) -> None:
        super().__init__("writing")
        self._agent = Agent(client, "You write slogans.", name="writer")

    @handler
    async def write(self, wish: str, ctx: WorkflowContext[list[Message]]) -> None:
        asked = [Message("user", [wish])]
        response = await self._agent.run(asked)
        await ctx.send_message([*asked, *response.messages])


class Committee(Executor):
    """Two agents in one handler. In the first attempt a connection fails between them."""

    def __init__(self, client: ScriptedChatClient, *, is_line_good: bool) -> None:
        super().__init__("committee")
        self._critic = Agent(client, "You say what is wrong.", name="critic")
        self._translator = Agent(client, "You translate.", name="translator")
        self._is_line_good = is_line_good

    @handler
    async def judge(self, conversation: list[Message], ctx: WorkflowContext[None, str]) -> None:
        critique = await self._critic.run(conversation)
        if not self._is_line_good:
            raise ConnectionError("the line broke in the middle of the handler")
        translation = await self._translator.run(conversation)
        await ctx.yield_output(f"{conversation[-1].text} / {translation.text} ({critique.text})")


def build_workflow(client: ScriptedChatClient, *, is_line_good: bool) -> Workflow:
    writer, committee = Writer(client), Committee(client, is_line_good=is_line_good)
    return WorkflowBuilder(name="slogans", start_executor=writer).add_edge(writer, committee).build()


async def main() -> None:
    with TemporaryDirectory() as directory:
        storage = SqliteCheckpointStorage(Path(directory, "runs.db"))
        for is_line_good in (False, True):
            client = ScriptedChatClient(SCRIPTS)
            workflow = build_workflow(client, is_line_good=is_line_good)
            try:
                result = await workflow.run("lamps", run_id="slogan-1", checkpoint_storage=storage)
                print(*result.get_outputs())
            except ConnectionError as error:
                print(error)
            print("  asked:", *(call.agent for call in client.calls))


if __name__ == "__main__":
    asyncio.run(main())
