"""Three experts at once: first with the aggregator that is there, then with one that asks a fourth agent.

Shows: ConcurrentBuilder; an aggregator that is a function, with a type of the program's own as the output.
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
    """What the board has decided, and after how many opinions."""

    opinions: int
    text: str


def experts() -> list[Agent]:
    return [Agent(CLIENT, f"You know about {name}.", name=name) for name in ("market", "law", "money")]


async def decide(results: list[AgentExecutorResponse]) -> Decision:
    """The chair is asked inside of the workflow: after a crash its answer is there, and it is not asked again."""
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
