"""Traces of models: one span for each call that is really made, with the names that others know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, MendableError, lone
from tests.agents.stub_model import Model
from tests.tracing.collected import EXPORTER, SAMPLER

from perdure import InMemoryCheckpointStorage
from perdure.agents import Agent, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    EXPORTER.clear()
    SAMPLER.is_asked = True
    yield
    SAMPLER.is_asked = False


def chats() -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name.startswith("chat ")]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_a_model_is_a_span_with_its_tokens_and_without_what_was_said(stream: bool) -> None:  # noqa: FBT001
    answer: Any = Model().get_response([Message("user", ["secret"])], stream=stream, options={"temperature": 0.5})
    await (answer.get_final_response() if stream else answer)
    (span,) = chats()
    told = dict(span.attributes or {})
    assert span.name == "chat stub-1"
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.provider.name"] == "stub"
    assert told["gen_ai.request.model"] == "stub-1"
    assert told["gen_ai.request.temperature"] == 0.5
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (3, 4)
    assert "secret" not in str(told)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_span_of_a_call_that_failed_says_so(stream: bool) -> None:  # noqa: FBT001
    def broken(_: Any) -> Any:
        raise ValueError("no")

    answer: Any = Model(say=broken).get_response([Message("user", ["hi"])], stream=stream)
    with pytest.raises(ValueError, match="no"):
        await (answer.get_final_response() if stream else answer)
    (span,) = chats()
    assert span.status.description == "ValueError"


async def test_an_abandoned_stream_ends_its_span() -> None:
    stream = Model().get_response([Message("user", ["a b c"])], stream=True)
    await anext(stream)
    await stream.aclose()
    assert len(chats()) == 1


async def test_an_answer_that_was_recorded_has_no_second_span() -> None:
    model, is_mended = Model(), list[bool]()

    async def do(_: str, ctx: Context) -> None:
        await Agent(model, name="a").run("hi")
        if not is_mended:
            raise MendableError
        await ctx.yield_output("done")

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    is_mended.append(True)
    await workflow.run(run_id=workflow.run_id)
    (span,) = chats()
    steps = [each for each in EXPORTER.get_finished_spans() if each.name == "perdure.step"]
    assert span.parent is not None
    assert [step.context.span_id for step in steps if step.context] == [span.parent.span_id]
