"""A run waits for an approval; another process lists and answers the request. They share one SQLite file.

The answering process has only that file: it knows neither the workflow nor its classes, and could be a web page.

    python examples/approvals_desk.py                        everything, one process after the other
    python examples/approvals_desk.py work runs.db           the workflow: start the run, or continue it
    python examples/approvals_desk.py desk runs.db alice     a person who approves the open requests
"""

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from perdure import (
    AlreadyAnsweredError,
    Executor,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)

RUN_ID = "refund-1"


@dataclass(frozen=True)
class Refund:
    customer: str
    euros: int


@dataclass(frozen=True)
class Decision:
    is_approved: bool
    remark: str = ""


class Cashier(Executor):
    @handler
    async def take(self, refund: Refund, ctx: WorkflowContext) -> None:
        await ctx.request_info(refund, Decision, approves=refund)

    @response_handler
    async def decide(self, refund: Refund, decision: Decision, ctx: WorkflowContext[None, str]) -> None:
        # Only what was approved may be paid.
        ctx.require_approved(refund)
        verb = "refunded" if decision.is_approved else "did not refund"
        await ctx.yield_output(f"{verb} {refund.euros} euros to {refund.customer}: {decision.remark}")


def build_workflow(storage: SqliteCheckpointStorage) -> Workflow:
    return WorkflowBuilder(start_executor=Cashier("cashier"), checkpoint_storage=storage, name="refunds").build()


async def work(path: str) -> None:
    workflow = build_workflow(SqliteCheckpointStorage(path))
    # The same call each time: it starts the run, or finds it and applies the waiting answers.
    result = await workflow.run(Refund("Ada", 250), run_id=RUN_ID)
    print(f"  the run is {result.get_final_state().value}", *result.get_outputs(), sep="\n  ")


async def desk(path: str, name: str) -> None:
    storage = SqliteCheckpointStorage(path)
    for request in await storage.requests():
        answer = {"is_approved": True, "remark": f"well deserved, says {name}"}
        print(f"  run {request.run_id!r} asks for a {request.response_type}: {request.data}")
        seen = {} if request.approves is None else {request.request_id: request.approves}
        try:
            await storage.respond(request.run_id, {request.request_id: answer}, by=name, approves=seen)
            print(f"  {name} has answered; that is on disk now, and waits for the run")
        except AlreadyAnsweredError as error:
            print(f"  {name} comes too late: {error.by} has answered {error.what}")


def everything() -> None:
    with TemporaryDirectory() as directory:
        path = f"{directory}/runs.db"
        for arguments in (["work", path], ["desk", path, "alice"], ["desk", path, "bob"], ["work", path]):
            print("a process:", arguments[0], *arguments[2:], flush=True)
            subprocess.run([sys.executable, __file__, *arguments], check=True)  # noqa: S603 - this very file


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            everything()
        case ["work", path]:
            asyncio.run(work(path))
        case ["desk", path, name]:
            asyncio.run(desk(path, name))
        case _:
            sys.exit(__doc__)
