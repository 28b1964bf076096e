"""The question whether what a node has put out may be used."""

from __future__ import annotations

import copy
import inspect
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from perdure import WorkflowEvent
from perdure.agent_workflows.approvals import NodeApprovalRequest, NodeApprovalResponse
from perdure.agent_workflows.conditions import Condition
from perdure.agent_workflows.outputs import NoValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import WorkflowContext
    from perdure.agent_workflows.definition import Approval, Node
    from perdure.agent_workflows.node_reading import Reading, Spoken

_LATE: Final = NodeApprovalResponse(approved=False, is_timed_out=True)
_NO_REASON: Final = "it was denied"
_TOO_LATE: Final = "nobody has approved it in time"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided: what is used of it, maybe with changes; or that it was denied and why."""

    kept: Spoken | None
    denied: str = ""
    is_timed_out: bool = False


async def decided(node: Node, reading: Reading, spoken: Spoken, ctx: WorkflowContext[Any, Any]) -> Decision:
    """What becomes of what a node has put out. If somebody has to say, the handler is left until they have.

    A correction that can't be used is refused: it is asked again, and the question says why.
    """
    approval, outputs = node.approval, spoken.outputs
    if approval is None or not await _is_asked(approval, outputs, ctx):
        return Decision(spoken)
    message = approval.message or _question(node)
    limit: dict[str, Any] = {} if approval.timeout is None else {"deadline": approval.timeout, "default": _LATE}
    question = message
    while True:
        request = NodeApprovalRequest(node.id, reading.speaker, question, dict(outputs), approval.timeout)
        answer: NodeApprovalResponse = await ctx.ask(request, NodeApprovalResponse, approves=dict(outputs), **limit)
        if not answer.approved:
            why = answer.reason or (_TOO_LATE if answer.is_timed_out else _NO_REASON)
            return Decision(None, why, answer.is_timed_out)
        try:
            return Decision(reading.corrected(spoken, _plain(answer.resume_data)))
        except NoValueError as fault:
            await ctx.add_event(WorkflowEvent.warning(f"the approval of node {node.id!r} is asked again: {fault}"))
            question = f"{message}\nThe correction before can't be used: {fault}"


async def _is_asked(approval: Approval, outputs: Mapping[str, Any], ctx: WorkflowContext[Any, Any]) -> bool:
    when = approval.when
    if when is None:
        return True
    if isinstance(when, Condition):
        return when.holds(outputs)

    async def ask() -> bool:
        answer = when(copy.deepcopy(dict(outputs)))
        return bool(await answer if inspect.isawaitable(answer) else answer)

    # The handler is entered again when somebody has answered, and a function may say something else then.
    return await ctx.step("whether to ask", ask)


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a person gave as JSON, which outputs are: what JSON does not have, as text."""
    return json.loads(json.dumps(dict(changes), default=str))


def _question(node: Node) -> str:
    return f"May what {node.id!r} has put out be used?"
