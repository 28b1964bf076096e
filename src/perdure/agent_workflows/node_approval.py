"""The question whether what a node has put out may be used."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.agent_workflows.approvals import NodeApprovalRequest, NodeApprovalResponse
from perdure.agent_workflows.conditions import Condition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import WorkflowContext
    from perdure.agent_workflows.definition import Approval, Node

_LATE: Final = NodeApprovalResponse(approved=False, is_timed_out=True)
_NO_REASON: Final = "it was denied"
_TOO_LATE: Final = "nobody has approved it in time"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided: that it is used, maybe with changes, or that it was denied and why."""

    denied: str | None = None
    is_timed_out: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def decided(node: Node, agent_name: str, outputs: Mapping[str, Any], ctx: WorkflowContext[Any, Any]) -> Decision:
    """What becomes of the outputs of a node. If somebody has to say, the handler is left until they have."""
    approval = node.approval
    if approval is None or not _is_asked(approval, outputs):
        return Decision()
    request = NodeApprovalRequest(node.id, agent_name, approval.message or _question(node), dict(outputs))
    limit: dict[str, Any] = {} if approval.timeout is None else {"deadline": approval.timeout, "default": _LATE}
    answer: NodeApprovalResponse = await ctx.ask(request, NodeApprovalResponse, approves=dict(outputs), **limit)
    if answer.approved:
        return Decision(changes=_plain(answer.resume_data))
    return Decision(answer.reason or (_TOO_LATE if answer.is_timed_out else _NO_REASON), answer.is_timed_out)


def _is_asked(approval: Approval, outputs: Mapping[str, Any]) -> bool:
    when = approval.when
    if when is None:
        return True
    return bool(when.holds(outputs) if isinstance(when, Condition) else when(dict(outputs)))


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a person gave as JSON, which outputs are: what JSON does not have, as text."""
    return json.loads(json.dumps(dict(changes), default=str))


def _question(node: Node) -> str:
    return f"May what {node.id!r} has put out be used?"
