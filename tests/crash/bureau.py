"""An agent workflow for the resume suite: a router, a loop, a node that fails and its fallback, an approval. A script.

Each call of a model is an effect, counted outside. It has come back when a middleware around its record sees it. The
stores are those of each retention.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from typing_extensions import override

from perdure import (
    Agent,
    ChatContext,
    FileCheckpointStorage,
    FullHistory,
    KeepLast,
    LatestOnly,
    Retention,
    SqliteCheckpointStorage,
    SystemClock,
    chat_middleware,
)
from perdure.agent_workflows import AgentWorkflowBuilder, Approval, NodeApprovalRequest, OnError
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.resume import Subject, effect, main, returned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from perdure import CheckpointStorage, Message, PendingRequest, Workflow

DRAFTS_WANTED = 3


class Verdict(BaseModel):
    """Return the checker's verdict on a draft."""

    is_good: bool
    remark: str


def _name(agent: str, messages: Sequence[Message]) -> str:
    """Return a name for a model call, the same in every process: it depends on the messages."""
    told = [message for message in messages if message.role != "system"]
    return f"{agent} thinks: {len(told)} messages, {told[-1].text}"


def _agent(name: str, answer: Callable[[str], Any]) -> Agent[Any]:
    @chat_middleware
    async def note_answers(context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        known_as = _name(name, context.messages)
        context.stream_result_hooks.append(lambda _: returned(known_as))
        await call_next()
        if not context.stream:
            returned(known_as)

    def think(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        del options
        effect(_name(name, messages))
        return answer(messages[-1].text)

    return Agent(ScriptedChatClient(think, middleware=[note_answers]), f"You are the {name}.", name=name)


class StandingClock(SystemClock):
    """No time passes: events tell how long things took, and two runs would never tell the same."""

    @override
    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)


def _written(task: str) -> str:
    return f"{task}!"


def _checked(draft: str) -> str:
    return Verdict(is_good=draft.count("!") >= DRAFTS_WANTED, remark=draft).model_dump_json()


def _printed(_: str) -> str:
    raise ConnectionError("the press is broken")


def build() -> Workflow:
    """The bureau, a new one."""
    workflow = (
        AgentWorkflowBuilder(clock=StandingClock())
        .with_name("bureau")
        .add_router_agent("desk", _agent("desk", lambda _: ToolCall("handoff_to_write")))
        .with_handoff("write", "Whatever is to be written.")
        .with_handoff("file", "Whatever is to be filed.")
        .add_agent("file", _agent("file", lambda task: f"filed {task}"), reads="request")
        .add_agent("write", _agent("write", _written), output_key="draft", template="{{input}}{{check.remark?}}")
        .add_agent("check", _agent("check", _checked), input_key="draft", structured_output=Verdict)
        .add_agent(
            "press", _agent("press", _printed), input_key="write.draft", on_error=OnError("fallback", fallback="copier")
        )
        .add_agent("copier", _agent("copier", lambda task: f"copied {len(task)} letters"))
        .add_agent(
            "post",
            _agent("post", lambda text: f"posted: {text}"),
            input_key="press.answer",
            approval=Approval("Post it?"),
        )
        .from_("write")
        .to("check")
        .from_("check")
        .to("write")
        .when_equals("is_good", value=False)
        .from_("check")
        .to("press")
        .as_default()
        .from_("press")
        .to("post")
        .build()
    )
    return workflow.as_workflow()


def approve(request: PendingRequest) -> Any:
    """Yes, with a word added."""
    asked: NodeApprovalRequest = request.data
    return asked.approve(resume_data={"answer": f"{asked.outputs['answer']} (stamped)"})


def others_answer(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    asked: NodeApprovalRequest = request.data
    return asked.deny(f"no, says {number}") if number % 2 else asked.approve()


def _sqlite(checkpoints: Any) -> Callable[[Path], CheckpointStorage]:
    return lambda path: SqliteCheckpointStorage(path / "runs.db", retention=Retention(checkpoints=checkpoints))


def _file(checkpoints: Any) -> Callable[[Path], CheckpointStorage]:
    return lambda path: FileCheckpointStorage(path / "runs", retention=Retention(checkpoints=checkpoints))


STORAGES: dict[str, Any] = {
    "sqlite-latest": _sqlite(LatestOnly()),
    "sqlite-full": _sqlite(FullHistory()),
    "sqlite-last-3": _sqlite(KeepLast(3)),
    "file-latest": _file(LatestOnly()),
    "file-full": _file(FullHistory()),
    "file-last-3": _file(KeepLast(3)),
}


if __name__ == "__main__":
    main(Subject(build=build, message="a letter", answer=approve, rival=others_answer, storages=STORAGES))
