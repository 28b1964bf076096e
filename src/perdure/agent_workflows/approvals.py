"""What a person is asked when a node needs approval, and the answer."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the codec follows the fields
from dataclasses import dataclass, field
from datetime import timedelta  # noqa: TC003 - the codec follows the fields
from typing import Any

from perdure import register_type


@dataclass(frozen=True, slots=True)
class NodeApprovalResponse:
    """The answer. `resume_data` takes the place of outputs of the same keys: a person may correct what was said."""

    approved: bool
    reason: str | None = None
    resume_data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_timed_out: bool = False


@dataclass(frozen=True, slots=True)
class NodeApprovalRequest:
    """Asks whether what a node has put out may be used. Answer it with `approve()` or `deny()`."""

    node_id: str
    agent_name: str
    message: str
    outputs: Mapping[str, Any]
    timeout: timedelta | None = None
    """How long the answer is waited for; then it is denied."""

    @staticmethod
    def approve(reason: str | None = None, *, resume_data: Mapping[str, Any] | None = None) -> NodeApprovalResponse:
        """The answer that it may be used, as it is or with these outputs changed."""
        return NodeApprovalResponse(approved=True, reason=reason, resume_data=dict(resume_data or {}))

    @staticmethod
    def deny(reason: str | None = None) -> NodeApprovalResponse:
        """The answer that it may not."""
        return NodeApprovalResponse(approved=False, reason=reason)


register_type(NodeApprovalRequest, name="perdure:NodeApprovalRequest")
register_type(NodeApprovalResponse, name="perdure:NodeApprovalResponse")
