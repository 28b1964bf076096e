"""A writer and a reviewer take turns until the reviewer is content.

Shows: a group chat with a fixed order; combined termination conditions; the responses as a stream.
"""

import asyncio

from perdure import Agent, Workflow
from perdure.orchestrations import GroupChatBuilder, MaxMessages, TextMentioned
from perdure.testing import Script, ScriptedChatClient

SCRIPTS: dict[str, Script] = {
    "writer": ["Lamps, cheap.", "A lamp for every book."],
    "reviewer": ["Say what they are for.", "APPROVED, print it."],
}


def build_workflow() -> Workflow:
    client = ScriptedChatClient(SCRIPTS)
    return GroupChatBuilder(
        participants=[
            Agent(client, "You write slogans.", name="writer"),
            Agent(client, "You review slogans. Say APPROVED when one is good.", name="reviewer"),
        ],
        selection_func="round_robin",
        termination_condition=TextMentioned("APPROVED", by="reviewer") | MaxMessages(20),
        intermediate_output_from="all",
    ).build()


async def main() -> None:
    result = await build_workflow().run("A slogan for our lamps, please.")
    for response in result.get_intermediate_outputs():
        print(f"{response.messages[-1].author_name}: {response.text}")
    print(*(response.text for response in result.get_outputs()))


if __name__ == "__main__":
    asyncio.run(main())
