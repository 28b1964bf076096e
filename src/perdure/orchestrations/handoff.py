"""Handoff: agents that receive all messages and pass the conversation to one another with tool calls."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

from typing_extensions import Unpack

from perdure import (
    Agent,
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentInvalidResponseException,
    AgentResponse,
    AgentResponseUpdate,
    Log,
    Message,
    WorkflowContext,
    WorkflowEvent,
    handler,
    response_handler,
)
from perdure.orchestrations.builder import OrchestrationBuilder, OrchestrationOptions
from perdure.orchestrations.handoff_tools import (
    HandoffAgentUserRequest,
    HandoffConfiguration,
    HandoffSentEvent,
    add_handoff_tools,
    clean_conversation_for_handoff,
    find_handoffs,
    get_handoff_tool_name,
)
from perdure.orchestrations.participants import (
    ParticipantRef,
    check_participants,
    is_from_outside,
    new_messages,
    participant_name,
    resolve_name,
    to_messages,
)
from perdure.orchestrations.request_info import AgentRequestInfoResponse
from perdure.orchestrations.termination import TerminationCondition, should_terminate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import AgentSession, Workflow

logger = logging.getLogger(__name__)

Context: TypeAlias = WorkflowContext[Any, AgentResponse | AgentResponseUpdate]

AUTONOMOUS_PROMPT: Final = "Nobody has answered. Go on by yourself with what you know."
AUTONOMOUS_TURN_LIMIT: Final = 50
_CORRECTIONS_MAX: Final = 2
_NO_CONTENT: Final = "the messages have no text, image or file"
# Number of turns the agent has continued by itself.
_TURNS_KEY = "autonomous_turns"
# The conversation as this agent received it, without tool calls.
_CONVERSATION_KEY = "said"
# Number of times the agent was told to hand off to one agent only.
_CORRECTIONS_KEY = "corrections"


class HandoffAgentExecutor(AgentExecutor):
    """Runs an agent in a handoff. It works on a copy of the agent, which has the handoff tools.

    It sends its text to all other agents. Then it hands off if the agent called a handoff tool, continues by itself in
    autonomous mode, or asks the user.
    """

    def __init__(
        self,
        agent: Agent[Any],
        handoffs: Sequence[HandoffConfiguration],
        *,
        agent_session: AgentSession | None = None,
        is_start_agent: bool = False,
        user_response_target_id: str | None = None,
        termination_condition: TerminationCondition | None = None,
        autonomous_mode: bool = False,
        autonomous_mode_prompt: str | None = None,
        autonomous_mode_turn_limit: int | None = None,
    ) -> None:
        super().__init__(add_handoff_tools(agent, handoffs), session=agent_session)
        self._targets = {get_handoff_tool_name(each.target_id): each.target_id for each in handoffs}
        self._is_start_agent = is_start_agent
        self._answers_go_to = user_response_target_id or self.id
        self._condition = termination_condition
        self._prompt = autonomous_mode_prompt or AUTONOMOUS_PROMPT
        limit = AUTONOMOUS_TURN_LIMIT if autonomous_mode_turn_limit is None else autonomous_mode_turn_limit
        self._autonomous_turns_max = limit if autonomous_mode else 0

    @handler
    async def run(self, request: AgentExecutorRequest, ctx: Context) -> None:
        """Receive messages of others, and answer if requested."""
        if is_from_outside(self, ctx):
            await self._start_conversation(request.messages, ctx, should_respond=request.should_respond)
        else:
            await self._receive(request.messages, ctx, should_respond=request.should_respond)

    @handler
    async def from_response(self, prior: AgentExecutorResponse, ctx: Context) -> None:
        """Start with the response of another agent."""
        await self._start_conversation(prior.full_conversation, ctx)

    @handler
    async def from_str(self, text: str, ctx: Context) -> None:
        """Start with a text."""
        await self._start_conversation(to_messages(text), ctx)

    @handler
    async def from_message(self, message: Message, ctx: Context) -> None:
        """Start with a message."""
        await self._start_conversation([message], ctx)

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: Context) -> None:
        """Start with messages."""
        await self._start_conversation(to_messages(messages), ctx)

    @response_handler
    async def handle_response(
        self, original_request: HandoffAgentUserRequest, response: list[Message], ctx: Context
    ) -> None:
        """Take the user's answer. An empty one ends the conversation."""
        if not response:
            return
        cleaned = clean_conversation_for_handoff(response)
        if not cleaned:
            await ctx.add_event(WorkflowEvent.warning(f"request {ctx.request_id!r} is asked again: {_NO_CONTENT}"))
            await ctx.request_info(original_request, list[Message])
            return
        await self._broadcast(cleaned, ctx)
        is_mine = self._answers_go_to == self.id
        await self._receive(cleaned, ctx, should_respond=is_mine)
        if not is_mine:
            await ctx.send_message(AgentExecutorRequest([], should_respond=True), self._answers_go_to)

    async def on_answer(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any, Any]) -> Sequence[Message]:
        """End the turn, or ask for a correction if the agent hands off to several agents."""
        targets = find_handoffs(answer.full_conversation, self._targets)
        if len(targets) > 1:
            await self._on_several_handoffs(answer, ctx)
            return self._make_correction(targets, answer, ctx)
        delete_key(_CORRECTIONS_KEY, ctx)
        if targets and (unsent := self.unsent_results(answer)):
            await self._run_agent(unsent, ctx, should_respond=False)
        return await self._on_turn(answer, targets[0] if targets else None, ctx)

    async def _on_several_handoffs(self, answer: AgentExecutorResponse, ctx: Context) -> None:
        """Share the text of a turn that hands off to several agents."""
        await self._share_response(answer.agent_response, ctx)

    async def _on_turn(self, answer: AgentExecutorResponse, target: str | None, ctx: Context) -> Sequence[Message]:
        """Handle a complete turn. The agent gets the returned messages and answers again."""
        return await self._end_turn(answer.agent_response, target, ctx)

    async def _end_turn(self, response: AgentResponse[Any], target: str | None, ctx: Context) -> Sequence[Message]:
        """Share the turn with the others, then hand off, continue or ask the user."""
        await self._share_response(response, ctx)
        if target is not None:
            await ctx.send_message(AgentExecutorRequest([], should_respond=True), target)
            await ctx.add_event(WorkflowEvent("handoff_sent", HandoffSentEvent(self.id, target)))
            delete_key(_TURNS_KEY, ctx)
            return ()
        if await self._is_terminated(ctx):
            return ()
        turns = ctx.scope().get(_TURNS_KEY, 0)
        if turns >= self._autonomous_turns_max:
            delete_key(_TURNS_KEY, ctx)
            await ctx.request_info(HandoffAgentUserRequest(response), list[Message])
            return ()
        ctx.scope().set(_TURNS_KEY, turns + 1)
        prompt = Message("user", [self._prompt])
        self._record([prompt], ctx)
        return () if await self._is_terminated(ctx) else [prompt]

    async def _start_conversation(
        self, messages: Sequence[Message], ctx: Context, *, should_respond: bool = True
    ) -> None:
        """Take input from outside and share it with the others."""
        cleaned = clean_conversation_for_handoff(messages)
        if not cleaned:
            raise ValueError(f"agent {self.id!r} got no input: {_NO_CONTENT}")
        new = new_messages(cleaned, self._conversation(ctx))
        if self._is_start_agent:
            await self._broadcast(new, ctx)
        await self._receive(new, ctx, should_respond=should_respond)

    async def _receive(self, messages: Sequence[Message], ctx: Context, *, should_respond: bool) -> None:
        self._record(messages, ctx)
        speaks = should_respond and not await self._is_terminated(ctx)
        await self._run_agent(messages, ctx, should_respond=speaks)

    async def _run_agent(self, messages: Sequence[Message], ctx: Context, *, should_respond: bool = True) -> None:
        """Send messages to this agent only. It answers if requested."""
        await super().run(AgentExecutorRequest(list(messages), should_respond=should_respond), ctx)

    async def _share_response(self, response: AgentResponse[Any], ctx: Context) -> None:
        cleaned = clean_conversation_for_handoff(response.messages)
        self._record(cleaned, ctx)
        await self._broadcast(cleaned, ctx)

    async def _broadcast(self, messages: Sequence[Message], ctx: Context) -> None:
        if messages:
            await ctx.send_message(AgentExecutorRequest(list(messages), should_respond=False))

    def _make_correction(self, targets: Sequence[str], answer: AgentExecutorResponse, ctx: Context) -> list[Message]:
        """Return the correction for an agent that hands off to several agents. Raises AgentInvalidResponseException."""
        named = ", ".join(map(repr, targets))
        corrections = ctx.scope().get(_CORRECTIONS_KEY, 0)
        if corrections == _CORRECTIONS_MAX:
            raise AgentInvalidResponseException(
                f"agent {self.id!r} hands off to {named} at once, after {corrections} corrections; tell it in its "
                "instructions to hand off to one agent at a time"
            )
        ctx.scope().set(_CORRECTIONS_KEY, corrections + 1)
        correction = (
            f"You have handed over to {named} at once, so nobody has taken over. Hand over to one of them only."
        )
        return [*self.unsent_results(answer), Message("user", [correction])]

    def _conversation(self, ctx: Context) -> Log[Message]:
        return cast("Log[Message]", ctx.scope().get(_CONVERSATION_KEY) or Log())

    def _record(self, messages: Sequence[Message], ctx: Context) -> None:
        if messages:
            cleaned = self._conversation(ctx)
            cleaned.extend(messages)
            ctx.scope().set(_CONVERSATION_KEY, cleaned)

    async def _is_terminated(self, ctx: Context) -> bool:
        return self._condition is not None and await should_terminate(self._condition, self._conversation(ctx))


def delete_key(key: str, ctx: Context) -> None:
    """Delete a key of the executor's own state if it exists."""
    if ctx.scope().has(key):
        ctx.scope().delete(key)


# Messages before the reviewed turn, if the agent was sent more.
_EARLIER_KEY = "before"
# Handoff target, or None, of each turn under review, by request id.
_DRAFTS_KEY = "drafts"


class ReviewedHandoffAgentExecutor(HandoffAgentExecutor):
    """Runs an agent in a handoff whose turns a person reviews.

    Until a turn is approved, the others don't receive it, nobody takes over, and it is not an output. Only this agent
    gets the reviewer's messages. With `shows_drafts`, turns under review are intermediate outputs.
    """

    def __init__(
        self, agent: Agent[Any], handoffs: Sequence[HandoffConfiguration], *, shows_drafts: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(agent, handoffs, **kwargs)
        self._shows_drafts = shows_drafts

    @property
    def yields_responses(self) -> bool:
        """Return True if drafts are outputs."""
        return self._shows_drafts

    async def _on_several_handoffs(self, answer: AgentExecutorResponse, ctx: Context) -> None:
        """Keep an invalid turn for the next review, since nobody can approve it."""
        ctx.scope().set(_EARLIER_KEY, Log(_with_earlier_messages(answer, ctx)))

    async def _on_turn(self, answer: AgentExecutorResponse, target: str | None, ctx: Context) -> Sequence[Message]:
        """Ask for a review, with all messages since the agent was first asked."""
        whole = AgentExecutorResponse(answer.executor_id, answer.agent_response, _with_earlier_messages(answer, ctx))
        delete_key(_EARLIER_KEY, ctx)
        request_id = f"{ctx.idempotency_key}-review"
        ctx.scope().set(_DRAFTS_KEY, {**ctx.scope().get(_DRAFTS_KEY, {}), request_id: target})
        await ctx.request_info(whole, AgentRequestInfoResponse, request_id=request_id)
        return ()

    @response_handler
    async def handle_request_info_response(
        self, original_request: AgentExecutorResponse, response: AgentRequestInfoResponse, ctx: Context
    ) -> None:
        """Accept the approved turn, or let the agent take another."""
        drafts: dict[str, str | None] = dict(ctx.scope().get(_DRAFTS_KEY, {}))
        target = drafts.pop(ctx.request_id or "")
        ctx.scope().set(_DRAFTS_KEY, drafts)
        if response.messages:
            speaks = not await self._is_terminated(ctx)
            if speaks:
                ctx.scope().set(_EARLIER_KEY, Log(original_request.full_conversation))
            await self._run_agent(response.messages, ctx, should_respond=speaks)
            return
        await ctx.yield_output(original_request.agent_response)
        more = await self._end_turn(original_request.agent_response, target, ctx)
        if more:
            await self._run_agent(more, ctx)


def _with_earlier_messages(answer: AgentExecutorResponse, ctx: Context) -> list[Message]:
    return [*ctx.scope().get(_EARLIER_KEY, ()), *answer.full_conversation]


class HandoffBuilder(OrchestrationBuilder):
    """Builds a workflow of agents that hand the conversation off to each other.

    Each agent gets a tool for every agent that it may hand off to: all others, or those named with `add_handoff`. All
    agents receive all messages; one speaks. If it ends its turn without a handoff, the user is asked, unless the agent
    continues by itself (`with_autonomous_mode`). The builder works on copies of the agents.

    `max_iterations` limits the supersteps since the last input, and so stops agents that hand off to each other for
    ever. By default it allows `MaxMessages`.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Agent[Any]] | None = None,
        description: str | None = None,
        **options: Unpack[OrchestrationOptions],
    ) -> None:
        super().__init__(**options)
        self._description = description
        self._agents: dict[str, Agent[Any]] = {}
        self._routes: dict[str, dict[str, str | None]] = {}
        self._start: str | None = None
        # The agents in autonomous mode; an empty list means all.
        self._autonomous: Sequence[ParticipantRef] | None = None
        self._prompts: Mapping[str, str] = {}
        self._turn_limits: Mapping[str, int] = {}
        self._returns_to_previous = True
        if participants:
            self.participants(participants)

    def participants(self, participants: Sequence[Agent[Any]]) -> Self:
        """Set the participants. Raises ValueError if they are already set, TypeError for one that is not an `Agent`."""
        if self._agents:
            raise ValueError("participants are already set: give all of them in one call")
        for each in check_participants(participants):
            name = participant_name(each)
            if not isinstance(each, Agent):
                raise TypeError(
                    f"participant {name!r} is a {type(each).__name__}, but only an Agent can get handoff tools; make "
                    "it an Agent, or build your own graph"
                )
            self._agents[name] = cast("Agent[Any]", each)
        return self

    def add_handoff(
        self, source: Agent[Any] | str, targets: Sequence[Agent[Any] | str], *, description: str | None = None
    ) -> Self:
        """Allow handoffs from one agent to others. From then on, only handoffs that were added are allowed.

        The description is for the agent's model. The default is the target's own description. Raises ValueError for an
        unknown participant.
        """
        source_name = self._resolve_participant(source, "add_handoff")
        routes = self._routes.setdefault(source_name, {})
        for target in targets:
            target_name = self._resolve_participant(target, "add_handoff")
            if target_name == source_name:
                raise ValueError(f"agent {source_name!r} can't hand off to itself: remove it from the targets")
            routes[target_name] = description
        return self

    def with_start_agent(self, agent: Agent[Any] | str) -> Self:
        """Set the agent that speaks first. Raises ValueError for an unknown participant."""
        self._start = self._resolve_participant(agent, "with_start_agent")
        return self

    def enable_return_to_previous(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - the documented form
        """Send the user's answers to the agent that asked (the default), or to the start agent."""
        self._returns_to_previous = enabled
        return self

    def with_autonomous_mode(
        self,
        *,
        agents: Sequence[Agent[Any] | str] | None = None,
        prompts: Mapping[str, str] | None = None,
        turn_limits: Mapping[str, int] | None = None,
    ) -> Self:
        """Let these agents, or all agents, continue without the user.

        Instead of a user's answer the agent gets its prompt, until it reaches its turn limit (50 by default). Then the
        user is asked. Prompts and limits are given by agent name.
        """
        self._autonomous, self._prompts, self._turn_limits = agents or (), prompts or {}, turn_limits or {}
        return self

    def build(self) -> Workflow:
        """Connect each agent with all others. Raises ValueError if an option is missing or wrong."""
        if not self._agents:
            raise ValueError("there are no participants: set them with participants(...)")
        if self._start is None:
            raise ValueError("there is no start agent: set one with with_start_agent(...)")
        nodes = self._make_nodes()
        outputs, intermediates = self._outputs.resolve(nodes, default=nodes)
        builder = self._workflow_builder(
            next(node for node in nodes if node.id == self._start),
            outputs,
            intermediates,
            condition=self._termination,
            speakers=len(nodes),
            description=self._description,
        )
        for node in nodes:
            others = [each for each in nodes if each is not node]
            if len(others) == 1:
                builder.add_edge(node, others[0])
            elif others:
                builder.add_fan_out_edges(node, others)
        return builder.build()

    def _resolve_participant(self, named: Agent[Any] | str, option: str) -> str:
        if not self._agents:
            raise ValueError(f"{option} needs participants: call participants(...) first")
        return resolve_name(named, list(self._agents), option=option)

    def _make_nodes(self) -> list[HandoffAgentExecutor]:
        names = list(self._agents)
        autonomous = [resolve_name(each, names, option="with_autonomous_mode") for each in self._autonomous or ()]
        for name in (*self._prompts, *self._turn_limits):
            resolve_name(name, names, option="with_autonomous_mode")
        for name, limit in self._turn_limits.items():
            if limit < 0:
                raise ValueError(f"the turn limit of {name!r} must be 0 or more, not {limit!r}")
        reviewed = self._reviewed_names(list(self._agents.values()))
        _, intermediates = self._outputs.resolve_names(names, default=names)
        nodes: list[HandoffAgentExecutor] = []
        for name, agent in self._agents.items():
            make = HandoffAgentExecutor
            if name in reviewed:
                # A draft may only be an intermediate output, because other outputs are final.
                make = functools.partial(ReviewedHandoffAgentExecutor, shows_drafts=name in intermediates)
            node = make(
                agent,
                self._handoffs(name),
                is_start_agent=name == self._start,
                user_response_target_id=None if self._returns_to_previous else self._start,
                termination_condition=self._termination,
                autonomous_mode=self._autonomous is not None and (not autonomous or name in autonomous),
                autonomous_mode_prompt=self._prompts.get(name),
                autonomous_mode_turn_limit=self._turn_limits.get(name),
            )
            nodes.append(node)
        return nodes

    def _handoffs(self, name: str) -> list[HandoffConfiguration]:
        """Return the allowed handoffs of an agent. If no handoff was added, all are allowed."""
        others = {other: None for other in self._agents if other != name}
        descriptions = self._routes.get(name, {}) if self._routes else others
        if not descriptions:
            logger.warning("agent %r has no handoffs; add some with add_handoff(...) if it needs them", name)
        return [
            HandoffConfiguration(target=target, description=description or self._agents[target].description)
            for target, description in descriptions.items()
        ]
