"""Processes that answer one request at the same moment, round after round. Run as a script.

    python -m tests.inbox.crowd sqlite DIRECTORY ROUNDS [runs]

With `runs` every other process answers by driving the run itself, with run(responses=...). It prints one JSON line: how
each process fared in each round, and the effects, which are counted in a file outside of the store. The processes are
forked from this one, which has imported everything and started no thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from tests.inbox.bureau import Answer, Official, Question

from perdure import (
    FileCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    response_handler,
)
from perdure.errors import AlreadyAnsweredError, RunBusyError

PROCESSES = 8
REPORT_BYTES = 64
REQUESTS_PER_RUN = 10


class Effective(Official):
    """Leaves a line in a file for each answer that it is given."""

    def __init__(self, effects: Path) -> None:
        super().__init__()
        self.effects = effects

    @response_handler
    async def told(self, question: Question, answer: Answer, ctx: WorkflowContext[Never, str]) -> None:
        with self.effects.open("a") as file:
            file.write(f"{question.text} {answer}\n")
        await ctx.yield_output(str(answer))


@dataclass(frozen=True)
class Place:
    """What all of them share."""

    kind: str
    directory: Path

    def storage(self) -> FileCheckpointStorage | SqliteCheckpointStorage:
        if self.kind == "file":
            return FileCheckpointStorage(self.directory / "runs")
        return SqliteCheckpointStorage(self.directory / "runs.db")

    @property
    def effects(self) -> Path:
        return self.directory / "effects"

    def workflow(self, storage: FileCheckpointStorage | SqliteCheckpointStorage) -> Workflow:
        official = Effective(self.effects)
        return WorkflowBuilder(name="crowd", start_executor=official, checkpoint_storage=storage).build()


async def answer_each_round(place: Place, index: int, orders: int, reports: int, *, drives: bool) -> None:
    """Wait for the signal, answer, and report how that went."""
    storage = place.storage()
    number = 0
    while os.read(orders, 1):
        request_id, run_id, answer = f"q{number}", run_of(number), f"answer-of-{index}"
        try:
            if drives:
                await place.workflow(storage).run(run_id=run_id, responses={request_id: answer})
            else:
                await storage.respond(run_id, {request_id: answer}, by=answer)
            outcome = ["accepted", answer]
        except AlreadyAnsweredError as error:
            outcome = ["answered", str(error.what)]
        except RunBusyError:
            outcome = ["busy", ""]
        os.write(reports, json.dumps(outcome).ljust(REPORT_BYTES).encode())
        number += 1


def fork(place: Place, index: int, *, drives: bool) -> tuple[int, int]:
    """A process that answers: where to give it the signal, and where it reports."""
    orders, signal = os.pipe()
    reports, report = os.pipe()
    if os.fork():
        os.close(orders)
        os.close(report)
        return signal, reports
    status = 1
    try:
        os.close(signal)
        asyncio.run(answer_each_round(place, index, orders, report, drives=drives))
        status = 0
    finally:
        os._exit(status)


def run_of(number: int) -> str:
    """The run that asks in a round."""
    return f"r{number // REQUESTS_PER_RUN}"


async def rounds(place: Place, crowd: list[tuple[int, int]], count: int) -> dict[str, object]:
    """Let all of them answer at once, again and again. The runs are driven when all of their requests are answered."""
    storage = place.storage()
    outcomes: list[list[object]] = []
    for number in range(count):
        if number % REQUESTS_PER_RUN == 0:
            asked = [f"q{number + offset}" for offset in range(REQUESTS_PER_RUN)]
            await place.workflow(storage).run(asked, run_id=run_of(number))
        for signal, _ in crowd:
            os.write(signal, b".")
        outcomes.append([json.loads(os.read(reports, REPORT_BYTES)) for _, reports in crowd])
        if (number + 1) % REQUESTS_PER_RUN == 0:
            await place.workflow(storage).run(run_id=run_of(number))
    return {"outcomes": outcomes, "effects": place.effects.read_text().splitlines()}


def main(kind: str, directory: Path, count: int, *, some_drive: bool) -> None:
    place = Place(kind, directory)
    crowd = [fork(place, index, drives=some_drive and index % 2 == 1) for index in range(PROCESSES)]
    told = asyncio.run(rounds(place, crowd, count))
    for signal, _ in crowd:
        os.close(signal)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), some_drive="runs" in sys.argv[4:])
