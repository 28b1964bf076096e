"""Compaction: long conversations are shortened for the model, and a conversation that is too long is handled once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.talkers import Model
from tests.workflow.nodes import node

from perdure import (
    Agent,
    AgentSession,
    ChatClientContextLengthException,
    ChatClientInvalidRequestException,
    Content,
    Message,
    SlidingWindowStrategy,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    TruncationStrategy,
    WorkflowBuilder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Words:
    """Counts words."""

    def count_tokens(self, text: str) -> int:
        return len(text.split())


def conversation() -> list[Message]:
    call = Content.from_function_call("c1", "look", arguments={"at": "it"})
    return [
        Message("system", ["Be brief."]),
        Message("user", ["first question"]),
        Message("assistant", ["first answer"]),
        Message("user", ["second question"]),
        Message("assistant", [call]),
        Message("tool", [Content.from_function_result("c1", result="seen")]),
        Message("assistant", ["second answer"]),
    ]


async def shown(strategy: Any, messages: list[Message]) -> list[str]:
    """Return what a model sees of messages."""
    await strategy(messages)
    left = [message for message in messages if not message.additional_properties.get("_excluded")]
    return [message.text or message.contents[0].type for message in left]


async def test_the_last_groups_are_kept_and_a_call_stays_with_its_result() -> None:
    kept = await shown(SlidingWindowStrategy(keep_last_groups=2), conversation())
    assert kept == ["Be brief.", "function_call", "function_result", "second answer"]
    kept = await shown(SlidingWindowStrategy(keep_last_groups=1, preserve_system=False), conversation())
    assert kept == ["second answer"]
    assert not await SlidingWindowStrategy(keep_last_groups=9)(conversation())


async def test_a_conversation_is_truncated_by_messages_or_tokens() -> None:
    kept = await shown(TruncationStrategy(max_n=6, compact_to=4), conversation())
    assert kept == ["Be brief.", "function_call", "function_result", "second answer"]
    words = TruncationStrategy(max_n=10, compact_to=10, tokenizer=Words())
    assert (await shown(words, conversation()))[:3] == ["Be brief.", "second question", "function_call"]
    assert await shown(TruncationStrategy(max_n=1, compact_to=1), [Message("user", ["one two"])]) == ["one two"]


async def test_strategies_are_composed_until_the_tokens_fit() -> None:
    window = SlidingWindowStrategy(keep_last_groups=3)
    composed = TokenBudgetComposedStrategy(token_budget=10, tokenizer=Words(), strategies=[window])
    assert (await shown(composed, conversation()))[1] == "second question"
    strict = TokenBudgetComposedStrategy(token_budget=4, tokenizer=Words(), strategies=[window])
    assert await shown(strict, conversation()) == ["Be brief.", "second answer"]


@pytest.mark.parametrize("wrong", [{"max_n": 1, "compact_to": 2}, {"max_n": 0, "compact_to": 0}])
def test_sizes_that_can_not_be_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"compact_to|max_n"):
        TruncationStrategy(**wrong)


async def test_older_messages_are_replaced_by_a_summary_that_grows() -> None:
    writer = Model(lambda messages: f"summary {len(messages)}")
    strategy = SummarizationStrategy(client=writer, target_count=2, threshold=1)
    messages = conversation()
    kept = await shown(strategy, messages)
    assert kept == ["Be brief.", "Summary of the conversation before:\nsummary 6", "second answer"]
    assert await shown(strategy, conversation()) == kept
    assert len(writer.shown) == 1, "a summary is made once"
    longer = [*conversation(), *(Message("user", [f"question {number}"]) for number in range(4))]
    assert (await shown(strategy, longer))[1:] == [
        "Summary of the conversation before:\nsummary 5",
        "question 2",
        "question 3",
    ]
    assert writer.shown[1][0] == "summary 6", "the next summary is made of the one before"


class Small(Model):
    """A model whose context holds so many messages."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def _inner_get_response(self, **given: Any) -> Any:
        messages: Sequence[Message] = given["messages"]
        if len(messages) > self.most:
            self.shown.append([])
            raise ChatClientInvalidRequestException("said: this model's maximum context length is 9 tokens")
        return super()._inner_get_response(**given)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_that_is_too_long_is_compacted_once(stream: bool) -> None:  # noqa: FBT001
    history = [Message("user", [str(number)]) for number in range(10)]

    async def run(most: int, strategy: Any) -> Any:
        model = Small(most)
        answer: Any = Agent(model, name="a", compaction_strategy=strategy).run(history, stream=stream)
        return await (answer.get_final_response() if stream else answer), len(model.shown)

    response, calls = await run(4, SlidingWindowStrategy(keep_last_groups=8))
    assert (response.text, calls) == ("4:9", 2)
    for most, strategy in ((2, SlidingWindowStrategy(keep_last_groups=8)), (4, None)):
        with pytest.raises(ChatClientContextLengthException, match="compaction_strategy"):
            await run(most, strategy)


async def test_a_run_whose_conversation_was_too_long_goes_on_with_a_strategy(storage: Any) -> None:
    session = AgentSession()
    session.state["in_memory"] = {"messages": [Message("user", [str(number)]) for number in range(10)]}

    def build(strategy: Any) -> Any:
        small = Agent(Small(4), name="a", compaction_strategy=strategy)

        async def ask(message: str, ctx: Any) -> None:
            await ctx.yield_output((await small.run([*session.state["in_memory"]["messages"], message])).text)

        return WorkflowBuilder(name="w", start_executor=node("ask", ask), checkpoint_storage=storage).build()

    with pytest.raises(ChatClientContextLengthException):
        await build(None).run("hi", run_id="r")
    result = await build(SlidingWindowStrategy(keep_last_groups=3)).run(run_id="r")
    assert result.get_outputs() == ["3:hi"]


async def test_a_summary_is_recorded_and_not_made_again_after_a_failure(storage: Any) -> None:
    writer = Model(lambda _: "short")
    history = [Message("user", [str(number)]) for number in range(10)]
    is_down = [True]

    def say(messages: Sequence[Message]) -> str:
        if is_down:
            is_down.clear()
            raise ConnectionError("down")
        return messages[0].text

    def build() -> Any:
        strategy = SummarizationStrategy(client=writer, target_count=2)
        talker = Agent(Model(say), name="a", compaction_strategy=strategy)

        async def ask(message: str, ctx: Any) -> None:
            await ctx.yield_output((await talker.run([*history, Message("user", [message])])).text)

        return WorkflowBuilder(name="w", start_executor=node("ask", ask), checkpoint_storage=storage).build()

    with pytest.raises(ConnectionError):
        await build().run("hi", run_id="r")
    result = await build().run(run_id="r")
    assert result.get_outputs() == ["Summary of the conversation before:\nshort"]
    assert len(writer.shown) == 1


def test_a_killed_process_does_not_summarize_again(tmp_path: Path) -> None:
    program = Path(__file__).with_name("summary_program.py")

    def live(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), str(tmp_path), how]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert live("killed").returncode == -signal.SIGKILL
    resumed = live("resumed")
    assert resumed.stdout.strip() == "Summary of the conversation before:\na summary", resumed.stderr
    assert (tmp_path / "summaries").read_text() == "made\n"
