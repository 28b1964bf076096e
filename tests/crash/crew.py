"""A Magentic team for the resume suite: plans and a call that are approved, a reset, two members. Run as a script.

Each answer of a model is an effect, counted outside. It has come back when a middleware around its record has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.crash.servers import with_postgres
from tests.orchestrations.magentic_team import DONE, PROMPTS, ledger

from perdure import Agent, ChatContext, Message, Workflow, chat_middleware, tool
from perdure.orchestrations import MagenticBuilder, MagenticPlanReviewRequest
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.resume import SHIPPED, Subject, effect, main, returned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure import PendingRequest


@tool(approval_mode="always_require", if_interrupted="rerun")
def post(knows: int) -> str:
    """Let the world know."""
    effect(f"post {knows}")
    return f"posted {knows}"


def _name(messages: Sequence[Message]) -> str:
    """Return a name for a model call, the same in every process: it depends on the messages."""
    said = [message.text for message in messages]
    return f"{said[-1]} after {len(said)}: {said[0]}"


@chat_middleware
async def note_answers(context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
    """Around the record: what comes out here is on disk."""
    name = _name(context.messages)
    context.stream_result_hooks.append(lambda _: returned(name))
    await call_next()
    if not context.stream:
        returned(name)


def manage(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
    """Ask Ada, find that it leads nowhere, plan anew, ask Bob, and be done."""
    del options
    effect(_name(messages))
    question, spoke = messages[-1].text, [message.author_name for message in messages]
    if not question.startswith("PROGRESS?"):
        return f"to {question.split('?')[0].lower()}"
    if "bob" in spoke:
        return DONE
    is_second_plan = messages[0].author_name == "magentic_manager"
    speaker = "bob" if is_second_plan else "ada"
    return ledger(speaker, f"{speaker} acts", moves="ada" not in spoke)


def act(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
    """Say how much one knows. Bob lets the world know, too."""
    del options
    effect(_name(messages))
    if messages[-1].text == "bob acts":
        return ["It is time.", ToolCall("post", knows=len(messages))]
    return f"knows {len(messages)}"


def build() -> Workflow:
    """A team, a new one."""
    boss = Agent(ScriptedChatClient(manage, middleware=[note_answers]), name="boss")
    crew = [
        Agent(ScriptedChatClient(act, middleware=[note_answers]), name=name, tools=[post]) for name in ("ada", "bob")
    ]
    return MagenticBuilder(
        participants=crew, manager_agent=boss, enable_plan_review=True, max_stall_count=0, name="crew", **PROMPTS
    ).build()


def review(request: PendingRequest) -> Any:
    """Yes to every plan and every post."""
    return request.data.approve() if isinstance(request.data, MagenticPlanReviewRequest) else True


def others_review(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    if not isinstance(request.data, MagenticPlanReviewRequest):
        return number % 2 == 0
    return request.data.revise("be brief") if number % 2 else request.data.approve()


if __name__ == "__main__":
    storages = with_postgres(SHIPPED)
    main(Subject(build=build, message="tides", answer=review, rival=others_review, storages=storages))
