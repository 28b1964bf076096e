"""The same program on a directory of files and on SQLite: a process dies in the middle, the next one goes on.

Shows: storages are exchanged by changing one constructor call, and a killed process is replaced at once.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory

from perdure import FileCheckpointStorage, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, executor

DIES = sys.argv[-1] == "first"


@executor
async def draft(topic: str, ctx: WorkflowContext[str]) -> None:
    print(f"    drafting {topic}", flush=True)
    await ctx.send_message(f"a draft on {topic}")


@executor
async def polish(text: str, ctx: WorkflowContext[str, str]) -> None:
    if DIES:
        print("    killed while polishing", flush=True)
        os.kill(os.getpid(), SIGKILL)
    print(f"    polishing {text}", flush=True)
    await ctx.yield_output(f"polished: {text}")


async def run(kind: str, place: Path) -> None:
    checkpoint_storage = FileCheckpointStorage(place) if kind == "file" else SqliteCheckpointStorage(place)
    workflow = WorkflowBuilder(start_executor=draft).add_edge(draft, polish).build()

    # Resume from latest checkpoint after restart
    latest = await checkpoint_storage.get_latest(workflow_name=workflow.name)
    if latest:
        stream = await workflow.run(
            checkpoint_id=latest.checkpoint_id, checkpoint_storage=checkpoint_storage, stream=True
        )
    else:
        stream = await workflow.run("tides", checkpoint_storage=checkpoint_storage, stream=True)
    print("   ", *(await stream.get_final_response()).get_outputs())


def main() -> None:
    """Start this very file twice on each storage; the first process does not survive."""
    with TemporaryDirectory() as directory:
        for kind in ("file", "sqlite"):
            for life in ("first", "second"):
                print(f"{kind}, {life} process", flush=True)
                child = subprocess.run(  # noqa: S603 - this very file
                    [sys.executable, __file__, kind, f"{directory}/{kind}", life], check=False
                )
                print(f"  ended with {child.returncode}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asyncio.run(run(sys.argv[1], Path(sys.argv[2])))
