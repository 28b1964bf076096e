"""What a request comes with: a deadline with its default, and what an answer approves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.activation.solo import Context, lone

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.errors import ApprovalMismatchError
from perdure.testing.clock import ManualClock


@dataclass
class Transfer:
    amount: int
    to: str


class Careful(Executor):
    """Asks before it does something, and does what it was told to do then."""

    def __init__(self, *, does: Any) -> None:
        super().__init__(id="careful")
        self.does = does

    @handler
    async def ask(self, transfer: Transfer, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.request_info("may I?", bool, request_id="q", approves=transfer)

    @response_handler
    async def act(self, request: str, response: bool, ctx: WorkflowContext[Any, str]) -> None:  # noqa: FBT001
        del request, response
        ctx.require_approved(self.does)
        await ctx.yield_output(f"transferred {self.does}")


def careful(does: Any, storage: Any) -> Workflow:
    return WorkflowBuilder(name="w", start_executor=Careful(does=does), checkpoint_storage=storage).build()


either = pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage], ids=["live", "checkpointed"])


@either
async def test_what_was_approved_is_done(storage: Any) -> None:
    workflow = careful(Transfer(5, "ann"), storage and storage())
    await workflow.run(Transfer(5, "ann"))
    result = await workflow.run(responses={"q": True})
    assert result.get_outputs() == [f"transferred {Transfer(5, 'ann')}"]


@either
async def test_anything_else_than_what_was_approved_is_refused(storage: Any) -> None:
    workflow = careful(Transfer(500, "ann"), storage and storage())
    await workflow.run(Transfer(5, "ann"))
    with pytest.raises(ApprovalMismatchError, match="ask again for what is to be done now"):
        await workflow.run(responses={"q": True})


async def test_a_digest_does_not_depend_on_the_order_of_keys_or_on_a_storage() -> None:
    digests: list[str] = []

    async def do(_: str, ctx: Context) -> None:
        digests.append(ctx.approval_digest({"amount": 5, "to": {"a": 1, "b": 2}}))
        digests.append(ctx.approval_digest({"to": {"b": 2, "a": 1}, "amount": 5}))

    await lone(do).run("go")
    await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert len(digests) == 4
    assert len(set(digests)) == 1


async def test_approval_can_only_be_required_where_an_answer_is_handled() -> None:
    async def do(_: str, ctx: Context) -> None:
        ctx.require_approved("anything")

    with pytest.raises(RuntimeError, match="no request is being answered"):
        await lone(do).run("go")


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"deadline": timedelta(hours=1)}, "has a deadline alone"),
        ({"default": True}, "has a default alone"),
        ({"deadline": timedelta(hours=1), "default": "yes"}, "is no bool"),
        ({"deadline": datetime(2030, 1, 1), "default": True}, "needs a time zone"),  # noqa: DTZ001 - that is the point
    ],
)
async def test_terms_that_make_no_sense_are_refused(terms: dict[str, Any], says: str) -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.request_info("may I?", bool, **terms)

    with pytest.raises(ValueError, match=says):
        await lone(do).run("go")


class Patient(Executor):
    """Asks, and takes an answer within the hour."""

    @handler
    async def ask(self, question: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.request_info(question, str, request_id="q", deadline=timedelta(hours=1), default="no")

    @response_handler
    async def hear(self, request: str, response: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{request} {response}")


async def test_when_the_deadline_has_passed_the_default_is_the_answer() -> None:
    clock, storage = ManualClock(), InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(
        name="w", start_executor=Patient(id="patient"), checkpoint_storage=storage, clock=clock
    ).build()
    await workflow.run("may I?", run_id="r")
    clock.advance(timedelta(hours=1))
    assert (await workflow.run(run_id="r")).get_outputs() == ["may I? no"]


@either
async def test_what_is_approved_is_the_same_in_whatever_order_its_keys_are(storage: Any) -> None:
    values: list[tuple[Any, Any]] = [
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ({(1, 2): 1, (3, 4): 2}, {(3, 4): 2, (1, 2): 1}),
        (Counter("aab"), Counter("baa")),
    ]

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output([ctx.approval_digest(one) == ctx.approval_digest(other) for one, other in values])

    assert (await lone(do, storage=storage and storage()).run("go")).get_outputs() == [[True] * 3]
