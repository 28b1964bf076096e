"""A sequence for the resume suite: a writer with a tool, an editor, a person after its turns, a judge of the end.

Run as a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.crash.counted_models import counted

from perdure import Agent, Message, Workflow, tool
from perdure.orchestrations import AgentRequestInfoResponse, SequentialBuilder
from perdure.testing import ToolCall
from perdure.testing.resume import Subject, effect, main

if TYPE_CHECKING:
    from perdure import PendingRequest

AGAIN = "again"


@tool(approval_mode="always_require", if_interrupted="rerun")
def print_page(text: str) -> str:
    """Print a page."""
    effect(f"print {text}")
    return f"printed {text}"


def task_of(messages: list[Message]) -> str:
    """Return the last request to the agents."""
    return [each.text for each in messages if each.role == "user" and each.text and each.text != AGAIN][-1]


def write(messages: list[Message]) -> Any:
    """Print the first draft; say it again if that is wanted."""
    if messages[-1].text == AGAIN:
        return f"{task_of(messages)}, again"
    results = [content for content in messages[-1].contents if content.type == "function_result"]
    return f"{task_of(messages)} is out" if results else ToolCall("print_page", text=task_of(messages))


def edit(messages: list[Message]) -> str:
    """Say how much was said."""
    return f"edited after {len(messages)}: {task_of(messages)}, again"


def judge(messages: list[Message]) -> str:
    """It is over when it was edited."""
    return "yes" if "edited" in messages[-1].text else "no"


def build() -> Workflow:
    """New agents, in a sequence."""
    writer = Agent(counted("writer", write), "Write.", name="writer", tools=[print_page])
    editor = Agent(counted("editor", edit), "Edit.", name="editor")
    reader = Agent(counted("reader", edit), "Nobody asks you.", name="reader")
    critic = Agent(counted("judge", judge), "Is it over?", name="judge")

    async def is_over(conversation: list[Message]) -> bool:
        return (await critic.run(conversation[-1].text)).text == "yes"

    builder = SequentialBuilder(name="press", participants=[writer, editor, reader], termination_condition=is_over)
    return builder.with_request_info(agents=[writer]).build()


def answer(request: PendingRequest) -> Any:
    """Yes to every page; a turn passes when it was said again."""
    if not hasattr(request.data, "agent_response"):
        return True
    is_again = request.data.agent_response.text.endswith(AGAIN)
    return AgentRequestInfoResponse.approve() if is_again else AgentRequestInfoResponse.from_strings([AGAIN])


def others_answer(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    if not hasattr(request.data, "agent_response"):
        return number % 2 == 0
    return AgentRequestInfoResponse.from_strings([AGAIN] if number % 2 else [])


if __name__ == "__main__":
    main(Subject(build=build, message="a lamp", answer=answer, rival=others_answer))
