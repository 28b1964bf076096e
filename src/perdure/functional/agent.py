"""`FunctionalWorkflowAgent`: a functional workflow as an agent."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, overload

from typing_extensions import Unpack

from perdure.agents import AgentResponse, AgentResponseUpdate, BaseAgent, Content, Message, normalize_messages
from perdure.events import WorkflowEvent
from perdure.functional.workflow import FunctionalWorkflow, FunctionRunOptions, names_a_run
from perdure.graph import activation_at_work
from perdure.streams import ResponseStream
from perdure.workflows import REQUEST_INFO_FUNCTION_NAME, ResponseBuilder, WorkflowRunResult, answered_ids, to_plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from perdure.agents import AgentSession, ContextProvider

logger = logging.getLogger(__name__)


class FunctionAgentOptions(FunctionRunOptions, total=False):
    """The options of `FunctionalWorkflowAgent.run`, beside `stream`."""

    session: AgentSession | None


class FunctionalWorkflowAgent(BaseAgent):
    """A functional workflow as an agent: its input is the message of a run, and the run's output is its response.

    Questions of the function become approval requests; `pending_requests` lists them by id. Answer them with
    `run(responses={request_id: ...})`, or with a message that has the answers as contents.

    In a handler of another workflow the function is part of that run, unless the call has a `run_id`: its steps are
    recorded there, and its questions are requests of the enclosing executor. Its own storage is for its own runs.

    Attributes:
        records_itself: In a workflow its steps are recorded one by one: the enclosing executor does not record the turn
            as a whole.
    """

    records_itself: ClassVar[bool] = True

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
        """Return the open questions of the last call, by id."""
        return dict(self._pending)

    @overload
    def run(
        self, messages: Any = None, *, stream: Literal[True], **options: Unpack[FunctionAgentOptions]
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]]: ...
    @overload
    def run(
        self, messages: Any = None, *, stream: Literal[False] = False, **options: Unpack[FunctionAgentOptions]
    ) -> Awaitable[AgentResponse[Any]]: ...
    @overload
    def run(self, messages: Any = None, *, stream: bool = False, **options: Unpack[FunctionAgentOptions]) -> Any: ...
    def run(
        self, messages: Any = None, *, stream: bool = False, **options: Unpack[FunctionAgentOptions]
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]] | Awaitable[AgentResponse[Any]]:
        """Run the workflow with a message, or with answers. Return its output and its questions.

        The options are those of the workflow's `run`. The session is ignored: the function gets the message alone, and
        keeps what it needs in the state of its run.
        """
        given: dict[str, Any] = {**options}
        given.pop("session", None)
        is_named = names_a_run(given)
        if given.get("responses") is None and not is_named and (activation := activation_at_work()) is not None:
            # The function is part of the enclosing run.
            kwargs: Mapping[str, Any] = given.get("function_invocation_kwargs") or {}
            inside = self._respond(self._workflow.run_inside(messages, activation, given, kwargs))
            return ResponseStream(_updates(inside), finalizer=AgentResponse[Any].from_updates) if stream else inside
        if given.get("responses") is None and messages is not None:
            found = self._answers_in(messages, is_named=is_named)
            messages, given["responses"] = (None, found) if found else (messages, None)
        if not stream:
            return self._answered(self._workflow.run(messages, stream=False, **given))
        events = self._workflow.run(messages, stream=True, **given)
        # No generator: one that is dropped holds the stream until the loop closes it, and the next call is in its way.
        return events.flat_map(partial(self._pieces, self._builder()), AgentResponse[Any].from_updates)

    async def _respond(self, returned: Awaitable[Any]) -> AgentResponse[Any]:
        result = await returned
        events = [] if result is None else [WorkflowEvent("output", result, executor_id=self._workflow.name)]
        return self._builder().complete(events)

    def _answers_in(self, messages: Any, *, is_named: bool) -> dict[str, Any]:
        """Return the answers in messages, by request; nothing if the messages are for the function.

        A conversation may come before them, and a text next to them. The answers that count are those to open
        questions of this agent; for a run that is named, those in the last message.
        """
        given = cast("list[object]", messages if isinstance(messages, list | tuple) else [messages])
        if not all(isinstance(each, str | Message | Content) for each in given):
            return {}
        said = normalize_messages(cast("list[str | Message | Content]", given))
        if answered_ids(said):
            return self._answers(said)
        meant = [message for message in said if any(id_ in self._pending for id_ in self._answers([message]))]
        meant = meant or (said[-1:] if is_named else [])
        found = self._answers(meant)
        if found and not answered_ids(meant):
            logger.warning(
                "agent %r takes the answers to %s; the function does not get the rest of the messages",
                self.name,
                ", ".join(found),
            )
        return found

    def _answers(self, said: Sequence[Message]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for content in (content for message in said for content in message.contents):
            if content.type == "function_result":
                found[content.call_id or ""] = content.result
            elif content.type == "function_approval_response":
                asked = self._pending.get(content.id or "")
                takes_content = asked is not None and asked.response_type is Content
                found[content.id or ""] = content if takes_content else content.approved
        return found

    async def _answered(self, running: Awaitable[WorkflowRunResult]) -> AgentResponse[Any]:
        result = await running
        self._pending = {}
        response = self._builder().complete([event for event in result if event.type == "output"])
        asked = [self._request(event) for event in result.get_request_info_events()]
        if asked:
            response.messages.append(Message("assistant", asked, author_name=self.name))
        return response

    def _pieces(self, builder: ResponseBuilder, event: WorkflowEvent[Any]) -> Sequence[AgentResponseUpdate]:
        """Convert a workflow event to agent updates."""
        match event.type:
            case "started":
                self._pending = {}
            case "output" | "attempt_discarded":
                return builder.updates(event)
            case "request_info":
                contents = [self._request(event)]
                return [AgentResponseUpdate(contents=contents, role="assistant", author_name=self.name)]
            case _:
                pass
        return ()

    def _request(self, event: WorkflowEvent[Any]) -> Content:
        """Return a question of the function as an approval request."""
        request_id = event.request_id
        self._pending[request_id] = event
        arguments = {"request_id": request_id, "data": to_plain(event.data)}
        call = Content.from_function_call(request_id, self.REQUEST_INFO_FUNCTION_NAME, arguments=arguments)
        return Content.from_function_approval_request(
            request_id, call, additional_properties={"request_id": request_id}
        )

    def _builder(self) -> ResponseBuilder:
        clock = self._workflow.blueprint.clock
        return ResponseBuilder(self.name, clock.new_id(), clock)


async def _updates(response: Awaitable[AgentResponse[Any]]) -> AsyncGenerator[AgentResponseUpdate]:
    for update in (await response).to_updates():
        yield update
