"""Keep the messages of agents in one thread, in one thread per agent, or in forks of the request.

Shows: conversation policies, and a session store that is separate from checkpoints.
"""

import asyncio

from perdure import Agent
from perdure.agent_workflows import AgentWorkflow, Conversation, ConversationPolicies
from perdure.testing import ScriptedChatClient
from perdure.threads import InMemorySessionStore

POLICIES: dict[str, tuple[Conversation, list[str]]] = {
    "one shared thread": (ConversationPolicies.shared_thread(session_id="s", thread_id="talk"), ["talk"]),
    "a thread per agent": (
        ConversationPolicies.thread_per_agent(session_id="s", thread_prefix="of-"),
        ["of-draft", "of-review"],
    ),
    "a fork per agent": (
        ConversationPolicies.fork_thread_per_agent(session_id="s", root_thread_id="request", thread_prefix="of-"),
        ["request", "of-draft", "of-review"],
    ),
}


def build_workflow(policy: Conversation, store: InMemorySessionStore) -> AgentWorkflow:
    client = ScriptedChatClient(
        {
            "drafter": lambda messages, _: f"Lamps last. (I was told {len(messages)})",
            "reviewer": lambda messages, _: f"Print it. (I was told {len(messages)})",
        }
    )
    return (
        AgentWorkflow.create()
        .with_name("Review")
        .with_session_store(store)
        .with_conversation(policy)
        .add_agent("draft", Agent(client, name="drafter"), output_key="draft")
        .add_agent("review", Agent(client, name="reviewer"), input_key="draft")
        .from_("draft")
        .to("review")
        .build()
    )


async def main() -> None:
    for name, (policy, threads) in POLICIES.items():
        print(name)
        store = InMemorySessionStore()
        await build_workflow(policy, store).run("Write about lamps.")
        for thread_id in threads:
            print(f"  {thread_id}")
            for message in await store.messages("s", thread_id):
                print(f"    {message.role}: {message.text}")


if __name__ == "__main__":
    asyncio.run(main())
