"""A person takes part in a chat, as an executor that opens requests. Each answer goes to a new workflow object.

Shows: a participant of your own; a selection function; a chat that waits for a person in its checkpoint.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import (
    Agent,
    Executor,
    FileCheckpointStorage,
    Message,
    Workflow,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.orchestrations import (
    GroupChatBuilder,
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
    GroupChatState,
    TextMentioned,
)
from perdure.testing import ScriptedChatClient


class Person(Executor):
    """Receive the messages of the others, and open a request when it is this participant's turn."""

    @handler
    async def hear(self, said: GroupChatParticipantMessage, ctx: WorkflowContext) -> None:
        ctx.scope().set("last", said.messages[-1].text)

    @handler
    async def speak(self, _: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        await ctx.request_info(f"The last word was: {ctx.scope().get('last')}", str)

    @response_handler
    async def answer(self, _: str, answer: str, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        await ctx.send_message(GroupChatResponseMessage(Message("user", [answer])))


def person_after_agent(state: GroupChatState) -> str:
    return "person" if state.conversation[-1].author_name == "guide" else "guide"


def build_workflow(storage: FileCheckpointStorage) -> Workflow:
    client = ScriptedChatClient(["Take the tram.", "Then walk: it is not far."])
    return GroupChatBuilder(
        participants=[Agent(client, "You know the way.", name="guide"), Person("person")],
        selection_func=person_after_agent,
        termination_condition=TextMentioned("Thanks", by="person"),
        checkpoint_storage=storage,
        name="way",
    ).build()


async def main() -> None:
    with TemporaryDirectory() as directory:
        async with FileCheckpointStorage(Path(directory)) as storage:
            result = await build_workflow(storage).run("How do I get to the station?", run_id="way-1")
            for answer in ("There is no tram today.", "Thanks."):
                [request] = result.get_request_info_events()
                print(request.data)
                print(f"  the person: {answer}")
                result = await build_workflow(storage).run(run_id="way-1", responses={request.request_id: answer})
            print(result.get_outputs()[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
