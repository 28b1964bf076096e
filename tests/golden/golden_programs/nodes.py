"""Agent workflows: approvals, loops, routers, conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from perdure import Agent, WorkflowBuilder, WorkflowContext, executor
from perdure.agent_workflows import END, START, AgentWorkflow, ConversationPolicies, NodeApprovalRequest
from perdure.testing import ScriptedChatClient, ToolCall

from .agents import look
from .world import Place, Scenario, answer_all, heard, noted, text_of, world

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import Message, Workflow


class Bill(BaseModel):
    """An output of a node."""

    amount: float
    country: str = "FR"


def offers(place: Place) -> AgentWorkflow:
    """Build a workflow whose nodes wait for approvals and write data, with a conversation."""
    scripts = {
        "reader": noted("reader", Bill(amount=40)),
        "seller": noted("seller", "Nine lamps for 900."),
        "mailer": noted("mailer", heard),
    }
    client = ScriptedChatClient(scripts)
    return (
        AgentWorkflow.create()
        .with_name("Offers")
        .with_checkpointing()
        .with_workflow_store(place.storage)
        .with_session_store(place.sessions)
        .with_conversation(ConversationPolicies.shared_thread(session_id="offers"))
        .add_agent("read", Agent(client, name="reader"), structured_output=Bill)
        .add_agent(
            "offer", Agent(client, name="seller"), template="for {{amount}}", output_key="offer", approval="Send?"
        )
        .add_agent("mail", Agent(client, name="mailer"), input_key="offer")
        .from_("read")
        .to("offer")
        .when_at_most("amount", 100)
        .from_("offer")
        .to("mail")
        .build()
    )


async def finish_offers(place: Place) -> list[str]:
    flow = offers(place)
    (pending,) = await flow.requests()
    given = NodeApprovalRequest.approve("cheaper", resume_data={"offer": "Nine lamps for 450."})
    result = await flow.resume("offers", responses={pending.request_id: given})
    told = [message.text for message in await place.sessions.messages("offers", "main")]
    return [str(result.success), str(result.final_answer), str(dict(result.outputs)), *told]


async def write(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
    """Write a longer line each time, after a look; the second one is killed."""
    passes = next(message for message in reversed(messages) if message.role == "user").text.count("more")
    if messages[-1].role != "tool":
        world.did(f"think {passes}")
        return ToolCall("look", where=f"pass {passes}")
    if passes == 1:
        await world.reach("loop")
    world.did(f"write {passes}")
    return "Lamps" + " last" * passes


def judge(messages: Sequence[Message], _: Mapping[str, Any]) -> dict[str, Any]:
    """Want more until it is long."""
    lasts = messages[-1].text.count("last")
    world.did(f"judge {lasts}")
    return {"good": lasts > 1, "remark": "more " * (lasts + 1)}


def loop(place: Place) -> AgentWorkflow:
    """Build a loop."""
    verdict = {"type": "object", "properties": {"good": {"type": "boolean"}, "remark": {"type": "string"}}}
    client = ScriptedChatClient({"writer": write, "critic": judge, "printer": noted("printer", heard)})
    return (
        AgentWorkflow.create()
        .with_name("Loop")
        .with_checkpointing()
        .with_workflow_store(place.storage)
        .with_session_store(place.sessions)
        .with_conversation(ConversationPolicies.thread_per_agent(session_id="loop"))
        .with_max_iterations(5)
        .add_agent("write", Agent(client, name="writer", tools=[look]), template="{{input}} {{critic.remark?}}")
        .add_agent("critic", Agent(client, name="critic"), structured_output=verdict)
        .add_agent("print", Agent(client, name="printer"), input_key="write.answer")
        .from_(START)
        .to("write")
        .from_("write")
        .to("critic")
        .from_("critic")
        .to("write")
        .when_equals("good", value=False)
        .to("print")
        .as_default()
        .from_("print")
        .to(END)
        .build()
    )


async def finish_loop(place: Place) -> list[str]:
    result = await loop(place).resume("loop")
    told = [message.text for message in await place.sessions.messages("loop", "agent-write")]
    return [str(result.success), str(result.final_answer), str(dict(result.outputs)), *told]


def router(place: Place) -> AgentWorkflow:
    """Build a router, a node of several types, and a node that waits beside others."""
    scripts = {
        "desk": noted("desk", ToolCall("handoff_to_bills")),
        "bills": noted("bills", {"sum": 7}, Bill(amount=7, country="NO")),
        "help": noted("help", "Turn it off."),
        "pay": noted("pay", heard),
        "note": noted("note", heard),
    }
    client = ScriptedChatClient(scripts)
    return (
        AgentWorkflow.create()
        .with_name("Router")
        .with_checkpointing()
        .with_workflow_store(place.storage)
        .add_router_agent("desk", Agent(client, name="desk"))
        .with_handoff("bills", "It is about money.")
        .with_handoff("help", "Anything else.")
        .with_default_handoff("help")
        .add_agent("bills", Agent(client, name="bills"), reads="request", structured_output=Bill, approval=True)
        .add_agent("help", Agent(client, name="help"), reads="request")
        .add_agent("pay", Agent(client, name="pay"), input_key="amount")
        .from_("bills")
        .to("pay")
        .build()
    )


async def finish_router(place: Place) -> list[str]:
    flow = router(place)
    (pending,) = [each for each in await flow.requests() if each.run_id == "router"]
    await flow.respond("router", {pending.request_id: {"approved": True}}, by="ada")
    result = await flow.resume("router")
    return [str(result.success), str(result.final_answer), str(dict(result.outputs)), str(dict(result.skipped))]


def in_graph(place: Place) -> Workflow:
    """Build a graph with an agent workflow as a node."""
    client = ScriptedChatClient({"one": noted("one", "draft"), "two": noted("two", heard)})
    node = (
        AgentWorkflow.create()
        .with_name("Inside")
        .add_agent("one", Agent(client, name="one"), output_key="draft", approval="Well?")
        .add_agent("two", Agent(client, name="two"), input_key="draft")
        .from_("one")
        .to("two")
        .build()
        .as_executor("inside")
    )
    return (
        WorkflowBuilder(name="around", start_executor=node, checkpoint_storage=place.storage, clock=place.clock)
        .add_edge(node, last_word)
        .build()
    )


@executor(id="last-word")
async def last_word(message: Any, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(f"{type(message).__name__} {text_of(getattr(message, 'agent_response', message))}")


SCENARIOS = [
    Scenario(
        "nodes in a graph",
        lambda place: in_graph(place).run("task", run_id="around"),
        lambda place: answer_all(place, in_graph, "around", lambda _: NodeApprovalRequest.approve("fine")),
        ("around",),
    ),
    Scenario(
        "nodes that wait for an approval",
        lambda place: offers(place).run("Nine lamps, please.", execution_id="offers"),
        finish_offers,
    ),
    Scenario(
        "nodes killed in a loop",
        lambda place: loop(place).run("A line.", execution_id="loop"),
        finish_loop,
        ("loop",),
        "loop",
    ),
    Scenario(
        "nodes behind a router", lambda place: router(place).run("My money!", execution_id="router"), finish_router
    ),
]
