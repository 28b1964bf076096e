"""`WorkflowAgent`: a workflow that is talked to as an agent."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from perdure.agent_errors import AgentInvalidRequestException
from perdure.agents import AgentResponse, BaseAgent, Message, Turn, messages_of, recorded, recorded_stream
from perdure.engine import Closing
from perdure.errors import WorkflowException
from perdure.storage import given_storage
from perdure.streams import ResponseStream
from perdure.types import is_type_compatible
from perdure.workflows.agent_merging import merged
from perdure.workflows.agent_requests import REQUEST_INFO_FUNCTION_NAME, RequestInfoFunctionArgs
from perdure.workflows.agent_runs import Memory
from perdure.workflows.agent_seats import NodeSeat
from perdure.workflows.agent_talk import Talk
from perdure.workflows.agent_telling import Teller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from perdure.agents import AgentResponseUpdate, AgentRunInputs, AgentSession, ContextProvider
    from perdure.storage import CheckpointStorage
    from perdure.workflows.workflow import Workflow

logger = logging.getLogger(__name__)

_STEP = "answer of a workflow"


class _Caller:
    """Stands for a call that is being answered, as long as it is."""


class WorkflowAgent(BaseAgent):
    """A workflow as an agent: a message to it is a turn of a run, and what the run yields and asks is the answer.

    A session stands for one run: `session.state["workflow"]` names it, so that whoever has the session and the storage
    goes on with it in any process. Without a session the run is that of the workflow instance. Requests are told as
    calls of the function `request_info`, or as the content that an agent inside asks; they are answered by the next
    message, with `Content.from_function_result(request_id, result=...)` or the content's own answer.

    A turn that failed, or that a process did not survive, goes on when the same message is given again, or none: what
    was done is not done again. Another message leaves it, and goes on from where the turn before had ended.

    One call at a time: the workflow is one instance, whose executors serve one run at once. Sessions may take turns.
    Serve people side by side with an agent each, over workflows that are built for each.
    """

    REQUEST_INFO_FUNCTION_NAME: ClassVar[str] = REQUEST_INFO_FUNCTION_NAME
    RequestInfoFunctionArgs = RequestInfoFunctionArgs

    records_itself: ClassVar[bool] = True
    """In a workflow, what it does is recorded as it is done: the executor around it need not record it as a whole."""

    def __init__(
        self,
        workflow: Workflow,
        *,
        id: str | None = None,  # noqa: A002 - the documented name
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        **kwargs: Any,
    ) -> None:
        start = workflow.get_start_executor()
        if not any(is_type_compatible(list[Message], type_) for type_ in start.input_types):
            raise ValueError(
                f"the start executor {start.id!r} of workflow {workflow.name!r} can't handle list[Message], which is "
                "what an agent is told: give it a handler for that, or start with an executor that has one"
            )
        super().__init__(
            id=id or f"WorkflowAgent_{workflow.blueprint.clock.new_id()[:8]}",
            name=name,
            description=description,
            context_providers=context_providers,
            **kwargs,
        )
        self._workflow = workflow
        self._memory = Memory()
        self._own_state: dict[str, Any] = {}
        """What a session would hold, for calls without one."""
        self._caller: weakref.ref[Any] | None = None
        self._has_warned = False

    @property
    def workflow(self) -> Workflow:
        """The workflow."""
        return self._workflow

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Awaitable[AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]] | Awaitable[AgentResponse[Any]]:
        """Say something to the workflow, and get what it yields and asks until it rests.

        With a session the workflow gets the conversation so far, and what is new behind it. `checkpoint_id` lets the
        run go on from a checkpoint first; without a message that is all, and what it tells is the answer.
        `checkpoint_storage` is used in place of the workflow's own. Without a message the run of the session goes on
        with what it has not finished, and tells again what the session has not got.

        Raises AgentInvalidResponseException if the run waits for answers and the message holds something else.
        """
        given = given_storage(checkpoint_storage)
        if checkpoint_id is not None and given is None and self._workflow.checkpoint_storage is None:
            raise AgentInvalidRequestException(
                f"checkpoint {checkpoint_id!r} has to be read from somewhere: give checkpoint_storage with it"
            )
        said = messages_of(messages)
        talk = Talk(
            agent=self,
            said=said,
            session=session,
            checkpoint_id=checkpoint_id,
            storage=self._workflow.checkpoint_storage if given is None else given,
            kwargs={"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs},
            streaming=stream,
            turn=Turn(f"workflow {self.name or self._workflow.name}", said),
            is_plain=checkpoint_id is None and given is None,
            memory=self._memory,
            own_state=self._own_state,
        )
        self._warn_of_storage(talk)
        if not stream:
            return self._answered(talk)
        updates: ResponseStream[AgentResponseUpdate, AgentResponse[Any]] = ResponseStream(
            self._updates(talk), finalizer=AgentResponse[Any].from_updates
        )
        self._take_place(updates)
        return updates.with_cleanup_hook(partial(self._make_room, weakref.ref(updates)))

    def _warn_of_storage(self, talk: Talk) -> None:
        if isinstance(talk.seat, NodeSeat) and self._workflow.checkpoint_storage is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the storage of workflow %r is not used inside of executor %r: the run around it holds its run",
                self._workflow.name,
                talk.seat.parent.executor_id,
            )

    @staticmethod
    def merge_updates(updates: Sequence[AgentResponseUpdate], response_id: str) -> AgentResponse[Any]:
        """One answer of pieces that were told one among the other: by answer, then by message, in the order of time."""
        return merged(updates, response_id)

    async def _answered(self, talk: Talk) -> AgentResponse[Any]:
        caller = _Caller()
        self._take_place(caller)
        try:
            await talk.begin()
            if talk.is_step:
                response, kept = await recorded(talk.turn, partial(self._outcome, talk), name=_STEP, counted=talk.count)
                talk.take(kept)
            else:
                response = await self._whole(talk)
            await talk.finish(response)
            return response
        finally:
            self._make_room(weakref.ref(caller))

    async def _outcome(self, talk: Talk) -> tuple[AgentResponse[Any], dict[str, Any]]:
        return await self._whole(talk), talk.kept()

    async def _whole(self, talk: Talk) -> AgentResponse[Any]:
        return self._teller().whole([event async for event in talk.events()])

    async def _updates(self, talk: Talk) -> AsyncGenerator[AgentResponseUpdate]:
        await talk.begin()
        stream = self._pieces(talk)
        if talk.is_step:
            stream = recorded_stream(
                talk.turn, partial(self._pieces, talk), name=_STEP, counted=talk.count, pieces=_pieces_of
            )
        try:
            async for update in stream:
                yield update
        finally:
            # An event loop that shuts down closes all generators at once: this one may be on its way.
            with suppress(RuntimeError):
                await stream.aclose()
        response, kept = await stream.get_final_response()
        talk.take(kept)
        await talk.finish(response)

    def _pieces(self, talk: Talk) -> ResponseStream[AgentResponseUpdate, tuple[AgentResponse[Any], dict[str, Any]]]:
        async def told() -> AsyncGenerator[AgentResponseUpdate]:
            teller = self._teller()
            async with Closing(talk.events()) as events:
                async for event in events:
                    for update in teller.pieces(event):
                        yield update

        return ResponseStream(told(), finalizer=lambda updates: (AgentResponse[Any].from_updates(updates), talk.kept()))

    def _teller(self) -> Teller:
        clock = self._workflow.blueprint.clock
        return Teller(self.name, clock.new_id(), clock)

    def _take_place(self, caller: object) -> None:
        if self._caller is not None and self._caller() is not None:
            raise WorkflowException(
                f"agent {self.name!r} is answering already: workflow {self._workflow.name!r} is one instance, and "
                "serves one call at a time; wait for the answer, or use an agent over a workflow of its own"
            )
        self._caller = weakref.ref(caller)

    def _make_room(self, caller: weakref.ref[Any]) -> None:
        if self._caller == caller:
            self._caller = None


def _pieces_of(outcome: tuple[AgentResponse[Any], dict[str, Any]]) -> list[AgentResponseUpdate]:
    return outcome[0].to_updates()
