"""Steps in parallel, and a process that dies half-way: the next one does only what is left.

Shows: `@workflow`, `@step`, `asyncio.gather`; finished steps return their recorded results.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import SqliteCheckpointStorage, step, workflow


@step
async def look_up(source: str) -> str:
    print(f"  asking {source}")
    return f"what {source} knows"


@step
def sum_up(findings: list[str]) -> str:
    print("  summing up, in a thread")
    return ", ".join(findings)


@workflow
async def research(sources: list[str]) -> str:
    findings = await asyncio.gather(*(look_up(source) for source in sources))
    if "--unlucky" in sys.argv:
        print("  the process dies", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return await sum_up(findings)


async def live(path: Path) -> None:
    """Run or continue the workflow in one process. The first one dies; every later one continues."""
    storage = SqliteCheckpointStorage(path)
    result = await research.run(["the library", "a friend"], run_id="owls", checkpoint_storage=storage)
    print(f"  {result.get_outputs()[0]}")


async def main() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "runs.db")
        for flags in (("--unlucky",), (), ()):
            print("a process", flush=True)
            process = await asyncio.create_subprocess_exec(sys.executable, __file__, str(path), *flags)
            await process.wait()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])) if len(sys.argv) > 1 else main())
