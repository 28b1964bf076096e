"""Writes the golden files of a format: `python tests/golden/make.py DIRECTORY`. Released ones are never rewritten."""

from __future__ import annotations

import asyncio
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from golden_program import Grade, Parcel, build

from perdure import (
    Edit,
    FileCheckpointStorage,
    Secret,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowCheckpoint,
    WorkflowMessage,
)

if TYPE_CHECKING:
    from perdure.storage import StoreStorage


class Ticks:
    """A clock whose second passes when it is looked at, and ids that count."""

    def __init__(self) -> None:
        self.seconds = 0
        self.ids = 0

    def now(self) -> datetime:
        self.seconds += 1
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def new_id(self) -> str:
        self.ids += 1
        return f"golden-{self.ids}"

    async def sleep(self, seconds: float) -> None:
        self.seconds += round(seconds)


async def stop_after(workflow: Workflow, run_id: str, commits: int) -> None:
    """Start a run and leave it after so many commits."""
    stream = workflow.run(run_id, run_id=run_id, stream=True)
    async for event in stream:
        commits -= event.type == "checkpoint"
        if not commits:
            break
    await stream.aclose()


async def write(storage: StoreStorage) -> None:
    """A run for each kind of thing that a checkpoint can hold."""
    clock = Ticks()
    await stop_after(build(storage, clock), "entered", 1)
    await stop_after(build(storage, clock), "half", 3)
    waiting = build(storage, clock).start(
        "waiting", run_id="waiting", function_invocation_kwargs={"user": "ada"}, client_kwargs={"key": Secret("k")}
    )
    await waiting.result()
    await waiting.respond({"about waiting-1": "first"})
    await waiting.result()
    await (await waiting.fork(edit=Edit(state={"label": "forked"}, retype=["parcels"]))).cancel()
    finished = build(storage, clock)
    await finished.run("finished", run_id="finished")
    await finished.run(responses={"verdict": {"accepted": True, "note": "good"}, "about finished-2": "two"})
    await finished.run(responses={"about finished-1": "one"})
    rewound = build(storage, clock).start("rewound", run_id="rewound")
    await rewound.result()
    (_, second, *_) = await rewound.checkpoints()
    await rewound.restore(second.checkpoint_id)
    await rewound.cancel()
    await storage.save(by_hand(build(storage, clock)))
    await storage.close()


def by_hand(workflow: Workflow) -> WorkflowCheckpoint:
    """A checkpoint that no run has written."""
    return WorkflowCheckpoint(
        "golden",
        workflow.graph_signature_hash,
        checkpoint_id="by-hand",
        timestamp="2030-06-01T00:00:00+00:00",
        messages={"near": [WorkflowMessage(Parcel("hand", Grade.POOR, ["near"]), "near")]},
        state={"label": "hand", "parcels": {"hand": Parcel("hand", Grade.POOR)}},
        iteration_count=2,
        metadata={"author": "somebody"},
    )


def main(directory: Path) -> None:
    """One directory of files, and one SQLite file."""
    files, database = directory / "files", directory / "runs.sqlite"
    directory.mkdir(parents=True)
    asyncio.run(write(FileCheckpointStorage(files)))
    asyncio.run(write(SqliteCheckpointStorage(database)))
    # Locks of the process that wrote them say nothing to a reader.
    for owners in (files / ".perdure" / "owners", directory / "runs.sqlite-owners"):
        shutil.rmtree(owners, ignore_errors=True)
    assert not list(directory.glob("runs.sqlite-*")), "the database is one file"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
