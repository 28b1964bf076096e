"""An agent workflow as an agent, as a tool, as a node of a graph, and as the workflow of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.building import Cast, review, writers

from perdure import (
    Agent,
    Content,
    Executor,
    Host,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from perdure.agent_workflows import AgentWorkflow, NodeApprovalRequest
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from perdure import AgentResponse
    from perdure.agent_workflows import AgentWorkflowBuilder, NodeApprovalResponse


def asking(cast: Cast) -> AgentWorkflowBuilder:
    return (
        AgentWorkflow.create()
        .with_name("Review")
        .add_agent("draft", cast["drafter"], output_key="draft", approval=True)
        .add_agent("review", cast["reviewer"], input_key="draft")
        .from_("draft")
        .to("review")
    )


async def test_a_workflow_is_an_agent_whose_answers_are_the_final_ones() -> None:
    workflow = review(writers()).with_description("Reviews.").build()
    agent = workflow.as_agent()
    assert (agent.name, agent.description) == ("Review", "Reviews.")
    colleague = workflow.as_agent("colleague", description="Helps.")
    assert colleague.name == "colleague"
    assert [message.author_name for message in (await colleague.run("lamps")).messages] == ["colleague"]
    session = agent.create_session()
    assert (await agent.run("lamps", session=session)).text == "A draft of lamps, reviewed"
    assert (await agent.run("tables", session=session)).text == "A draft of tables, reviewed"


def answer_to(response: AgentResponse[Any], answer: NodeApprovalResponse) -> Content:
    [call] = [content for message in response.messages for content in message.contents]
    return Content.from_function_result(call.call_id or "", result=answer)


async def test_as_an_agent_it_says_why_it_is_no_success_and_works_on() -> None:
    agent = asking(writers()).build().as_agent()
    session = agent.create_session()
    denial = answer_to(await agent.run("lamps", session=session), NodeApprovalRequest.deny("no lamps"))
    assert (await agent.run(denial, session=session)).text == "'draft' was denied: no lamps"
    approval = answer_to(await agent.run("tables", session=session), NodeApprovalRequest.approve())
    assert (await agent.run(approval, session=session)).text == "A draft of tables, reviewed"


async def test_as_an_agent_it_asks_and_goes_on_with_the_answer(tmp_path: Path) -> None:
    def built(cast: Cast) -> Any:
        return asking(cast).with_checkpointing().with_sqlite_workflow_store(tmp_path / "runs.db").build().as_agent()

    first, second = writers(), writers()
    agent = built(first)
    session = agent.create_session()
    approval = answer_to(await agent.run("lamps", session=session), NodeApprovalRequest.approve())
    assert (await built(second).run(approval, session=session)).text == "A draft of lamps, reviewed"
    assert (first.asked, second.asked) == (["drafter"], ["reviewer"])


async def test_as_a_tool_it_needs_permission_unless_it_is_told_otherwise() -> None:
    workflow = review(writers()).with_description("Reviews.").build()
    permitted = workflow.as_tool()
    assert (permitted.name, permitted.description, permitted.approval_mode) == ("Review", "Reviews.", "always_require")
    assert list(permitted.parameters()["properties"]) == ["input"]
    free = workflow.as_tool(name="review", description="Helps.", approval_mode="never_require")
    assert (free.name, free.description, free.approval_mode) == ("review", "Helps.", "never_require")

    client = ScriptedChatClient([ToolCall("Review", input="lamps"), "Done."])
    editor = Agent(client, name="editor", tools=[permitted])
    session = editor.create_session()
    [request] = (await editor.run("go", session=session)).user_input_requests
    answer = await editor.run(request.to_function_approval_response(approved=True), session=session)
    assert answer.text == "Done."
    assert client.calls[-1].messages[-1].contents[0].result == "A draft of lamps, reviewed"


async def test_as_a_tool_it_is_called_several_times_at_once() -> None:
    tool = review(writers()).build().as_tool(approval_mode="never_require")
    client = ScriptedChatClient([[ToolCall("Review", input="lamps"), ToolCall("Review", input="tables")], "Done."])
    await Agent(client, name="editor", tools=[tool]).run("go")
    results = [
        content.result for message in client.calls[-1].messages for content in message.contents if content.result
    ]
    assert results == ["A draft of lamps, reviewed", "A draft of tables, reviewed"]


@pytest.mark.parametrize(
    ("is_approved", "told"), [(True, "A draft of lamps, reviewed"), (False, "'draft' was denied: it was denied")]
)
async def test_what_it_asks_as_a_tool_is_asked_by_the_agent(is_approved: bool, told: str) -> None:  # noqa: FBT001
    tool = asking(writers()).build().as_tool(approval_mode="never_require")
    client = ScriptedChatClient([ToolCall("Review", input="lamps"), "Done."])
    editor = Agent(client, name="editor", tools=[tool])
    session = editor.create_session()
    [request] = (await editor.run("go", session=session)).user_input_requests
    assert request.function_call is not None
    asked = request.function_call.parse_arguments() or {}
    assert (asked["node"], asked["outputs"]) == ("draft", {"draft": "A draft of lamps"})
    answer = await editor.run(request.to_function_approval_response(approved=is_approved), session=session)
    assert answer.text == "Done."
    assert client.calls[-1].messages[-1].contents[0].result == told


async def test_what_it_asks_as_a_tool_is_answered_in_another_process(tmp_path: Path) -> None:
    def life(cast: Cast, storage: SqliteCheckpointStorage) -> Workflow:
        inner = asking(cast).with_checkpointing().with_sqlite_workflow_store(tmp_path / "inner.db").build()
        client = ScriptedChatClient(
            [ToolCall("Review", input="lamps"), lambda messages, _: messages[-1].contents[0].result]
        )
        editor = Agent(client, name="editor", tools=[inner.as_tool(approval_mode="never_require")])
        return WorkflowBuilder(name="outer", start_executor=editor, checkpoint_storage=storage).build()

    first, second = writers(), writers()
    async with SqliteCheckpointStorage(tmp_path / "outer.db") as storage:
        await life(first, storage).run("go", run_id="one")
        [request] = await storage.requests("one")
        await storage.respond("one", {request.request_id: {"approved": True}}, by="alice")
        [answer] = (await life(second, storage).run(run_id="one")).get_outputs()
    assert answer.text == "A draft of lamps, reviewed"
    assert (first.asked, second.asked) == (["drafter"], ["reviewer"])


class Shout(Executor):
    @handler
    async def shout(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(text.upper())


def graph(workflow: AgentWorkflow, storage: SqliteCheckpointStorage | None = None) -> Workflow:
    node = workflow.as_executor("review")
    builder = WorkflowBuilder(name="around", start_executor=node, checkpoint_storage=storage)
    return builder.add_edge(node, Shout("shout")).build()


async def test_as_a_node_it_takes_a_text_and_sends_its_answer() -> None:
    assert (await graph(review(writers()).build()).run("lamps")).get_outputs() == ["A DRAFT OF LAMPS, REVIEWED"]


async def test_what_a_node_asks_inside_is_asked_by_the_run_around_it(tmp_path: Path) -> None:
    first, second = writers(), writers()
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        await graph(asking(first).build(), storage).run("lamps", run_id="one")
        [request] = await storage.requests("one")
        assert request.data.outputs == {"draft": "A draft of lamps"}
        await storage.respond("one", {request.request_id: {"approved": True}}, by="alice")
        result = await graph(asking(second).build(), storage).run(run_id="one")
    assert result.get_outputs() == ["A DRAFT OF LAMPS, REVIEWED"]
    assert (first.asked, second.asked) == (["drafter"], ["reviewer"])


async def test_a_host_runs_it_and_its_executions_are_found_by_the_workflow() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(writers()).with_checkpointing().with_workflow_store(storage).build()
    host = Host(storage)
    host.register(workflow.as_workflow)
    async with host:
        run = await host.start("Review", "lamps", run_id="one")
        waiting = await run.result()
        [request] = waiting.get_request_info_events()
        await workflow.respond("one", {request.request_id: NodeApprovalRequest.approve()}, by="alice")
        [result] = (await run.result()).get_outputs()
    assert result.final_answer == "A draft of lamps, reviewed"
    again = await workflow.resume("one")
    assert (again.execution_id, again.final_answer) == ("one", result.final_answer)
