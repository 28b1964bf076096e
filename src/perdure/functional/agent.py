"""`FunctionalWorkflowAgent`: a functional workflow that is talked to as an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, overload

from perdure.agents.agent import BaseAgent
from perdure.agents.content import Content
from perdure.agents.messages import Message, messages_of
from perdure.agents.responses import AgentResponse, AgentResponseUpdate
from perdure.events import WorkflowEvent
from perdure.graph.current import current_activation
from perdure.streams import ResponseStream
from perdure.workflows.agent_requests import REQUEST_INFO_FUNCTION_NAME, answered_ids, plain
from perdure.workflows.agent_telling import Teller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from perdure.agents.providers import ContextProvider
    from perdure.agents.sessions import AgentSession
    from perdure.functional.workflows import FunctionalWorkflow
    from perdure.graph.port import ActivationPort
    from perdure.storages.protocol import CheckpointStorage
    from perdure.workflows.result import WorkflowRunResult


class FunctionalWorkflowAgent(BaseAgent):
    """A functional workflow as an agent: what it is told is the message of a run, and what that gives is the answer.

    What the function asks is told as requests for an approval, and `pending_requests` has it by id. It is answered
    with `run(responses={request_id: ...})`, or with a message that holds the answers as contents.

    In a handler of another workflow its function is part of that run, unless it has a storage of its own: steps are
    recorded there, and what it asks are requests of the executor around it.
    """

    REQUEST_INFO_FUNCTION_NAME: ClassVar[str] = REQUEST_INFO_FUNCTION_NAME

    def __init__(
        self,
        workflow: FunctionalWorkflow,
        *,
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        **kwargs: Any,
    ) -> None:
        chosen = name or workflow.name
        super().__init__(
            id=f"FunctionalWorkflowAgent_{chosen}",
            name=chosen,
            description=workflow.description if description is None else description,
            context_providers=context_providers,
            **kwargs,
        )
        self._workflow = workflow
        self._pending: dict[str, WorkflowEvent[Any]] = {}

    @property
    def pending_requests(self) -> dict[str, WorkflowEvent[Any]]:
        """What the last call has left to be answered, by id."""
        return dict(self._pending)

    @overload
    def run(
        self,
        messages: Any = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        **kwargs: Any,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: Any = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        **kwargs: Any,
    ) -> Awaitable[AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: Any = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        **kwargs: Any,
    ) -> Any: ...
    def run(
        self,
        messages: Any = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        responses: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]] | Awaitable[AgentResponse[Any]]:
        """Give the workflow a message as it is, or answers, and get what its function returns and asks.

        The other options are those of the workflow's `run`. A session has no part in it: the function is given the
        message alone, and what it keeps is in the state of its run.
        """
        del session
        if responses is None and messages is not None:
            found = self._answers_in(messages)
            messages, responses = (None, found) if found else (messages, None)
        activation = current_activation()
        if activation is not None and responses is None and not self._has_runs_of_its_own(options):
            inside = self._inside(messages, activation)
            return ResponseStream(_told(inside), finalizer=AgentResponse[Any].from_updates) if stream else inside
        if not stream:
            return self._answered(
                cast("Awaitable[WorkflowRunResult]", self._workflow.run(messages, responses=responses, **options))
            )
        events = self._workflow.run(messages, stream=True, responses=responses, **options)
        return ResponseStream(self._pieces(events), finalizer=AgentResponse[Any].from_updates)

    def _has_runs_of_its_own(self, options: Mapping[str, Any]) -> bool:
        given = (options.get("checkpoint_storage"), options.get("checkpoint_id"), options.get("run_id"))
        return self._workflow.checkpoint_storage is not None or any(each is not None for each in given)

    async def _inside(self, message: Any, activation: ActivationPort) -> AgentResponse[Any]:
        """The answer as part of the run around it, which keeps what is done and asked here."""
        result = await self._workflow.node.inside(message, activation)
        told = [] if result is None else [WorkflowEvent("output", result, executor_id=self._workflow.name)]
        return self._teller().whole(told)

    def _answers_in(self, messages: Any) -> dict[str, Any]:
        """The answers in messages, by request; nothing if they hold something else."""
        given = cast("list[object]", messages if isinstance(messages, list | tuple) else [messages])
        if not given or not all(isinstance(each, Message | Content) for each in given):
            return {}
        said = messages_of(cast("list[Message | Content]", given))
        if not answered_ids(said):
            return {}
        contents = (content for message in said for content in message.contents)
        return dict(self._answer(content) for content in contents)

    def _answer(self, content: Content) -> tuple[str, Any]:
        if content.type == "function_result":
            return content.call_id or "", content.result
        request_id = content.id or ""
        asked = self._pending.get(request_id)
        return request_id, content if asked is not None and asked.response_type is Content else content.approved

    async def _answered(self, running: Awaitable[WorkflowRunResult]) -> AgentResponse[Any]:
        result = await running
        self._pending = {}
        response = self._teller().whole([event for event in result if event.type == "output"])
        asked = [self._request(event) for event in result.get_request_info_events()]
        if asked:
            response.messages.append(Message("assistant", asked, author_name=self.name))
        return response

    async def _pieces(self, events: ResponseStream[WorkflowEvent[Any], Any]) -> AsyncGenerator[AgentResponseUpdate]:
        self._pending = {}
        teller = self._teller()
        try:
            async for event in events:
                if event.type == "output":
                    for update in teller.pieces(event):
                        yield update
                elif event.type == "request_info":
                    contents = [self._request(event)]
                    yield AgentResponseUpdate(contents=contents, role="assistant", author_name=self.name)
        finally:
            await events.aclose()

    def _request(self, event: WorkflowEvent[Any]) -> Content:
        """What the function asks, as a request for an approval."""
        request_id = event.request_id
        self._pending[request_id] = event
        arguments = {"request_id": request_id, "data": plain(event.data)}
        call = Content.from_function_call(request_id, self.REQUEST_INFO_FUNCTION_NAME, arguments=arguments)
        return Content.from_function_approval_request(
            request_id, call, additional_properties={"request_id": request_id}
        )

    def _teller(self) -> Teller:
        clock = self._workflow.blueprint.clock
        return Teller(self.name, clock.new_id(), clock)


async def _told(whole: Awaitable[AgentResponse[Any]]) -> AsyncGenerator[AgentResponseUpdate]:
    for update in (await whole).to_updates():
        yield update
