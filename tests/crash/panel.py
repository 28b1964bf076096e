"""A chat for the resume suite that a function leads, with a chat in turn as one of its agents. Run as a script.

Inside of the agent somebody speaks, asks whether a call may be made, and goes on when it is answered from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.crash.counted_models import counted

from perdure import Agent, Message, Workflow, tool
from perdure.orchestrations import GroupChatBuilder, GroupChatState
from perdure.testing import ToolCall
from perdure.testing.resume import Subject, effect, main

if TYPE_CHECKING:
    from perdure import PendingRequest


@tool(approval_mode="always_require", if_interrupted="rerun")
def order(item: str) -> str:
    """Order an item."""
    effect(f"order {item}")
    return f"ordered {item}"


def buy(messages: list[Message]) -> Any:
    """Order it, and say so before and after."""
    if messages[-1].role == "tool":
        return "It is on its way."
    return ["It is cheap.", ToolCall("order", item=messages[0].text)]


def listen(messages: list[Message]) -> str:
    """Say all that was heard."""
    return " / ".join(message.text for message in messages if message.text)


def select(state: GroupChatState) -> str:
    """The panel, and then who writes it down."""
    return "clerk" if state.current_round % 2 else "panel"


def build() -> Workflow:
    """New agents: two in the panel, and a clerk."""
    buyer = Agent(counted("buyer", buy), name="buyer", tools=[order])
    critic = Agent(counted("critic", listen), name="critic")
    panel = GroupChatBuilder(
        name="panel", participants=[buyer, critic], selection_func="round_robin", max_rounds=2, output_from="all"
    ).build()
    clerk = Agent(counted("clerk", listen), name="clerk")
    return GroupChatBuilder(
        name="hearing",
        participants=[panel.as_agent("panel"), clerk],
        selection_func=select,
        max_rounds=2,
        output_from="all",
    ).build()


def others_answer(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    del request
    return number % 2 == 0


if __name__ == "__main__":
    main(Subject(build=build, message="a lamp", rival=others_answer))
