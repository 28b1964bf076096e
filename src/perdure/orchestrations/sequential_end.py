"""The early end of a sequence: after a participant somebody looks whether the conversation is over.

It is an executor and no condition of an edge, so that an agent that is asked there is asked once, whatever happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union, cast

from perdure import AgentExecutorResponse, AgentResponse, FunctionExecutor, Message, WorkflowContext
from perdure.orchestrations.conversation import messages_of
from perdure.orchestrations.termination import is_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Executor
    from perdure.orchestrations.termination import TerminationCondition


def gate_after(participant: Executor, condition: TerminationCondition) -> Executor:
    """Who looks after a participant's turn: it sends on what it gets, or makes it the output of all."""

    async def look(message: Any, ctx: WorkflowContext[Any, AgentResponse]) -> None:
        conversation = _conversation(message)
        if conversation and await is_over(condition, conversation):
            await ctx.yield_output(_said_last(message, conversation), in_pieces=True)
        else:
            await ctx.send_message(message)

    taken = _any_of(participant.output_types)
    return FunctionExecutor(look, f"after-{participant.id}", input=taken, output=taken, workflow_output=AgentResponse)


def _any_of(types: Sequence[Any]) -> Any:
    """What is sent by one who declares these types; without a declaration, anything."""
    return Union[tuple(types)] if types else Any  # noqa: UP007 - a union of types that are known at run time only


def _conversation(message: object) -> list[Message]:
    """What was said so far, as far as a message tells; nothing, if it tells something else."""
    match message:
        case AgentExecutorResponse():
            return message.full_conversation
        case str() | Message():
            return messages_of(message)
        case list() if all(isinstance(each, str | Message) for each in cast("list[object]", message)):
            return messages_of(cast("list[str | Message]", message))
        case _:
            return []


def _said_last(message: object, conversation: list[Message]) -> AgentResponse[Any]:
    if isinstance(message, AgentExecutorResponse):
        return message.agent_response
    return AgentResponse(messages=conversation[-1:])
