"""`MagenticAgentExecutor`: an agent that takes part in a Magentic orchestration, and forgets when it is told to."""

from __future__ import annotations

from perdure import AgentExecutor, WorkflowContext, handler
from perdure.orchestrations.magentic_types import MagenticResetSignal  # noqa: TC001 - the handler's annotation is read


class MagenticAgentExecutor(AgentExecutor):
    """An agent of a Magentic team. A reset renews its session: it remembers nothing of what did not lead on."""

    @handler
    async def handle_magentic_reset(self, signal: MagenticResetSignal, ctx: WorkflowContext) -> None:
        """Begin anew."""
        del signal, ctx
        self.renew_session()
