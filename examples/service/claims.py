"""The workflow: read a claim, check it in two ways, let a person decide odd cases, and pay once."""

import asyncio
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler, step_key

NAME = "claims"
TIME_TO_DECIDE = timedelta(days=14)


@dataclass(frozen=True)
class Claim:
    """The input."""

    employee: str
    text: str


@dataclass(frozen=True)
class Expense:
    """The data that was read from a claim."""

    employee: str
    what: str
    cents: int


@dataclass(frozen=True)
class Finding:
    expense: Expense
    objection: str | None


@dataclass(frozen=True)
class Question:
    """The question to a person."""

    expense: Expense
    objections: list[str]


@dataclass(frozen=True)
class Decision:
    """The person's answer."""

    approved: bool
    remark: str = ""


@dataclass(frozen=True)
class Settled:
    """The output."""

    outcome: Literal["paid", "refused"]
    employee: str
    cents: int
    reason: str


class Bank:
    """A payment provider. It pays once for each key, however often it is asked."""

    def __init__(self, path: str) -> None:
        self._path = path

    def pay(self, employee: str, cents: int, *, key: str) -> str:
        with closing(sqlite3.connect(self._path, timeout=30)) as book, book:
            book.execute("CREATE TABLE IF NOT EXISTS payments (key TEXT PRIMARY KEY, employee TEXT, cents INTEGER)")
            book.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, ?)", (key, employee, cents))
        return f"payment {key[:8]}"


# These three stand for a model and two other systems that take some time.


async def extract(claim: Claim) -> Expense | None:
    await asyncio.sleep(0.1)
    found = re.fullmatch(r"(.+?)[ ,:]+(\d{1,6})(?:\.(\d\d))? (?:EUR|euros?)", claim.text.strip())
    if found is None:
        return None
    what, euros, cents = found.groups(default="0")
    return Expense(claim.employee, what, int(euros) * 100 + int(cents))


async def ask_policy(expense: Expense) -> str | None:
    await asyncio.sleep(0.1)
    return "more than 100 euros" if expense.cents > 100_00 else None


async def ask_auditor(expense: Expense) -> str | None:
    await asyncio.sleep(0.2)
    return "a minibar is not a business expense" if "minibar" in expense.what.lower() else None


class Reader(Executor):
    @handler
    async def read(self, claim: Claim, ctx: WorkflowContext[Expense, Settled]) -> None:
        expense = await ctx.step("extract", extract, claim)
        if expense is None:
            await ctx.yield_output(Settled("refused", claim.employee, 0, "no amount found, such as 'Taxi, 42.50 EUR'"))
        else:
            await ctx.send_message(expense)


class Policy(Executor):
    @handler
    async def check(self, expense: Expense, ctx: WorkflowContext[Finding]) -> None:
        await ctx.send_message(Finding(expense, await ctx.step("policy", ask_policy, expense)))


class Auditor(Executor):
    @handler
    async def check(self, expense: Expense, ctx: WorkflowContext[Finding]) -> None:
        await ctx.send_message(Finding(expense, await ctx.step("audit", ask_auditor, expense)))


class Desk(Executor):
    @handler
    async def judge(self, findings: list[Finding], ctx: WorkflowContext[Expense]) -> None:
        expense = findings[0].expense
        objections = [finding.objection for finding in findings if finding.objection is not None]
        if not objections:
            await ctx.send_message(expense)
            return
        # Nothing waits here: the handler returns, and the run may stay in the store for two weeks.
        await ctx.request_info(
            Question(expense, objections),
            Decision,
            deadline=TIME_TO_DECIDE,
            default=Decision(approved=False, remark="nobody has decided in time"),
            approves=expense,
        )

    @response_handler
    async def decide(self, question: Question, decision: Decision, ctx: WorkflowContext[Expense, Settled]) -> None:
        expense = question.expense
        if decision.approved:
            ctx.require_approved(expense)
            await ctx.send_message(expense)
        else:
            await ctx.yield_output(Settled("refused", expense.employee, expense.cents, decision.remark))


class Cashier(Executor):
    def __init__(self, bank: Bank) -> None:
        super().__init__("cashier")
        self._bank = bank

    @handler
    async def settle(self, expense: Expense, ctx: WorkflowContext[None, Settled]) -> None:
        receipt = await ctx.step("pay", self._pay, expense)
        await ctx.yield_output(Settled("paid", expense.employee, expense.cents, receipt))

    def _pay(self, expense: Expense) -> str:
        # The key is the same in every attempt: if the process is killed between payment and record, it still pays once.
        return self._bank.pay(expense.employee, expense.cents, key=step_key())


def build_workflow(bank: Bank) -> Workflow:
    """Make new executors for each run, so that runs share nothing."""
    reader, desk, cashier = Reader("reader"), Desk("desk"), Cashier(bank)
    checks = [Policy("policy"), Auditor("auditor")]
    builder = WorkflowBuilder(name=NAME, start_executor=reader)
    builder.add_fan_out_edges(reader, checks).add_fan_in_edges(checks, desk).add_edge(desk, cashier)
    return builder.build()
