"""An agent sorts mail, and its structured answer decides which edge is taken.

Shows: structured output and conditions that read it. A condition is evaluated once: its result is part of the
checkpoint.
"""

import asyncio
from typing import Any, Literal

from pydantic import BaseModel

from perdure import Agent, AgentExecutorResponse, Case, Default, Workflow, WorkflowBuilder, WorkflowContext, executor
from perdure.testing import ScriptedChatClient


class Verdict(BaseModel):
    kind: Literal["question", "spam", "unclear"]
    reason: str


def judge(messages: Any, _: Any) -> Verdict:
    text = messages[-1].text
    if "win" in text:
        return Verdict(kind="spam", reason="it promises too much")
    if text.endswith("?"):
        return Verdict(kind="question", reason="it ends with a question mark")
    return Verdict(kind="unclear", reason="it is too short")


def is_of(kind: str) -> Any:
    def condition(message: AgentExecutorResponse) -> bool:
        return Verdict.model_validate_json(message.agent_response.text).kind == kind

    return condition


@executor(id="answer")
async def answer(sorted_: AgentExecutorResponse, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"will be answered: {sorted_.full_conversation[0].text}")


@executor(id="drop")
async def drop(sorted_: AgentExecutorResponse, ctx: WorkflowContext[None, str]) -> None:
    verdict = Verdict.model_validate_json(sorted_.agent_response.text)
    await ctx.yield_output(f"dropped, since {verdict.reason}: {sorted_.full_conversation[0].text}")


@executor(id="ask")
async def ask(sorted_: AgentExecutorResponse, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"somebody has to look: {sorted_.full_conversation[0].text}")


def build_workflow() -> Workflow:
    client = ScriptedChatClient(judge)
    sorter = Agent(client, "You sort mail.", name="sorter", default_options={"response_format": Verdict})
    cases = [Case(is_of("question"), answer), Case(is_of("spam"), drop), Default(ask)]
    builder = WorkflowBuilder(name="mail", start_executor=sorter, output_from=[answer, drop, ask])
    return builder.add_switch_case_edge_group(sorter, cases).build()


async def main() -> None:
    for mail in ("When do you open?", "You win a car!", "Hm."):
        result = await build_workflow().run(mail)
        print(*result.get_outputs())


if __name__ == "__main__":
    asyncio.run(main())
