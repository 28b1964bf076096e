"""Three experts in parallel: first with the default aggregator, then with one that calls a fourth agent.

Shows: ConcurrentBuilder; an aggregator that is a function, with an output of the program's own type.
"""

import asyncio
from dataclasses import dataclass

from perdure import Agent, AgentExecutorResponse
from perdure.orchestrations import ConcurrentBuilder
from perdure.testing import Script, ScriptedChatClient

SCRIPTS: dict[str, Script] = {
    "market": ["People want lamps."],
    "law": ["Lamps are legal."],
    "money": ["Lamps are cheap."],
    "chair": lambda messages, _: f"Then let us sell them. ({messages[-1].text})",
}
CLIENT = ScriptedChatClient(SCRIPTS)


@dataclass
class Decision:
    """The decision of the board, and the number of opinions."""

    opinions: int
    text: str


def experts() -> list[Agent]:
    return [Agent(CLIENT, f"You know about {name}.", name=name) for name in ("market", "law", "money")]


async def decide(results: list[AgentExecutorResponse]) -> Decision:
    """Let the chair decide. The call is recorded: after a crash it is not made again."""
    chair = Agent(CLIENT, "You decide.", name="chair")
    heard = " ".join(result.agent_response.text for result in results)
    return Decision(len(results), (await chair.run(heard)).text)


async def main() -> None:
    result = await ConcurrentBuilder(participants=experts()).build().run("Shall we sell lamps?")
    for answer in result.get_outputs():
        print(*(f"{message.author_name}: {message.text}" for message in answer.messages), sep="\n")
    builder = ConcurrentBuilder(participants=experts()).with_aggregator(decide)
    result = await builder.build().run("Shall we sell lamps?")
    print(*result.get_outputs())


if __name__ == "__main__":
    asyncio.run(main())
