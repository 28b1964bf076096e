"""A model fails. Each of the four error modes handles it in its own way.

Shows: retry, `stop` with a resume, `skip_dependents`, `isolate`, a fallback.
"""

import asyncio
from typing import Any

from perdure import Agent, ChatClientException, Retry
from perdure.agent_workflows import AgentWorkflow, fallback
from perdure.testing import Script, ScriptedChatClient

down = True


def search(*_: object) -> str:
    if down:
        raise ChatClientException("the search is down")
    return "Found: three lamps."


SCRIPTS: dict[str, Script] = {
    "searcher": search,
    "memory": ["I remember two lamps."],
    "writer": lambda messages, _: f"Written from {messages[-1].text!r}",
    "counter": ["Four words."],
}


def build_workflow(on_error: Any, *, has_fallback: bool = False) -> AgentWorkflow:
    client = ScriptedChatClient(SCRIPTS)
    builder = (
        AgentWorkflow.create()
        .with_name("Catalogue")
        .with_checkpointing()
        .with_in_memory_workflow_store()
        .add_agent("search", Agent(client, name="searcher"), retry=Retry(2, backoff=0), on_error=on_error)
        .add_agent("write", Agent(client, name="writer"), template="{{search.answer?}}")
        .add_agent("count", Agent(client, name="counter"), reads="request")
        .from_("search")
        .to("write")
    )
    return (builder.add_agent("memory", Agent(client, name="memory")) if has_fallback else builder).build()


async def main() -> None:
    global down  # noqa: PLW0603 - the world outside of the workflow
    for mode in ("skip_dependents", "isolate"):
        result = await build_workflow(mode).run("All lamps, please.")
        print(f"{mode}: success {result.success}, failed {dict(result.failed)}, skipped {list(result.skipped)}")
        print(f"  {result.final_answer!r}")
    result = await build_workflow(fallback("memory"), has_fallback=True).run("All lamps, please.")
    print(f"fallback: success {result.success}, failed {dict(result.failed)}")
    print(f"  {result.final_answer!r}")

    workflow = build_workflow("stop")
    try:
        await workflow.run("All lamps, please.")
    except ChatClientException as error:
        print(f"stop: {error}")
    down = False
    print(f"  resumed: {(await workflow.resume()).final_answer!r}")


if __name__ == "__main__":
    asyncio.run(main())
