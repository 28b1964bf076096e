"""One process asks and ends; another one answers later. Between them there is only a SQLite file.

python examples/human_in_the_loop.py                            both processes, one after the other
python examples/human_in_the_loop.py ask runs.db                the first
python examples/human_in_the_loop.py answer runs.db yes         the second
"""

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from perdure import (
    Executor,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)


@dataclass(frozen=True)
class Expense:
    what: str
    euros: int


@dataclass(frozen=True)
class Decision:
    is_approved: bool
    by: str


class Cashier(Executor):
    @handler
    async def take(self, expense: Expense, ctx: WorkflowContext[None, str]) -> None:
        if expense.euros > 50:
            # Nothing waits here: the handler returns, and the request is part of the next checkpoint.
            await ctx.request_info(expense, Decision)
        else:
            await ctx.yield_output(f"paid {expense.euros} euros for {expense.what}")

    @response_handler
    async def decide(self, expense: Expense, decision: Decision, ctx: WorkflowContext[None, str]) -> None:
        verb = "paid" if decision.is_approved else "refused"
        await ctx.yield_output(f"{verb} {expense.euros} euros for {expense.what}, says {decision.by}")


def build_workflow(path: str) -> Workflow:
    storage = SqliteCheckpointStorage(path)
    return WorkflowBuilder(start_executor=Cashier("cashier"), checkpoint_storage=storage, name="expenses").build()


async def ask(path: str) -> None:
    # With an id of our own, any process can continue the run.
    result = await build_workflow(path).run(Expense("a lamp", 120), run_id="expense-1")
    print(f"  the run is {result.get_final_state().value}; this process ends now", flush=True)


async def answer(path: str, word: str) -> None:
    workflow = build_workflow(path)
    result = await workflow.run(run_id="expense-1")
    for request in result.get_request_info_events():
        print(f"  asked by {request.source_executor_id!r}: {request.data}")
        decision = Decision(is_approved=word == "yes", by="Grace")
        answered = await workflow.run(responses={request.request_id: decision})
        print(" ", *answered.get_outputs(), flush=True)


def both() -> None:
    with TemporaryDirectory() as directory:
        path = f"{directory}/runs.db"
        for arguments in (["ask", path], ["answer", path, "yes"]):
            print(f"a process to {arguments[0]}", flush=True)
            subprocess.run([sys.executable, __file__, *arguments], check=True)  # noqa: S603 - this very file


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            both()
        case ["ask", path]:
            asyncio.run(ask(path))
        case ["answer", path, ("yes" | "no") as word]:
            asyncio.run(answer(path, word))
        case _:
            sys.exit(__doc__)
