"""A process is killed after the provider has charged and before the result is recorded. The customer is charged once.

python examples/charge_once.py                  everything: a process that is killed, one that continues, one more
python examples/charge_once.py work DIRECTORY   one process; with "die" at the end it kills itself at that moment
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import Executor, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, handler, step_key


class Provider:
    """A payment provider outside of our process. It charges once for each idempotency key."""

    def __init__(self, directory: Path) -> None:
        self._charges = directory / "charges"
        self._charges.mkdir(exist_ok=True)

    def charge(self, euros: int, key: str) -> str:
        charge = self._charges / key
        if charge.exists():
            say(f"provider: a key that I know, {euros} euros were charged before")
        else:
            charge.write_text(str(euros), encoding="utf-8")
            say(f"provider: a new key, {euros} euros are charged")
        return f"receipt for {euros} euros"

    def count(self) -> int:
        return len(list(self._charges.iterdir()))


class Shop(Executor):
    def __init__(self, provider: Provider, *, dies: bool) -> None:
        super().__init__("shop")
        self._provider = provider
        self._dies = dies

    @handler
    async def sell(self, item: str, ctx: WorkflowContext[None, str]) -> None:
        euros = await ctx.step("reserve", self.reserve, item)
        receipt = await ctx.step("charge", self.charge, euros)
        await ctx.yield_output(f"{item} sold, {receipt}")

    def reserve(self, item: str) -> int:
        say(f"reserving {item}")
        return 120

    def charge(self, euros: int) -> str:
        # The key is the same in every attempt, so the provider recognises the payment.
        receipt = self._provider.charge(euros, step_key())
        if self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt


def say(text: str) -> None:
    print(f"    {text}", flush=True)


async def work(directory: Path, *, dies: bool) -> None:
    storage = SqliteCheckpointStorage(directory / "runs.db")
    workflow = WorkflowBuilder(name="shop", start_executor=Shop(Provider(directory), dies=dies)).build()
    result = await workflow.run("a lamp", run_id="order-1", checkpoint_storage=storage)
    say(result.get_outputs()[0])


def live(directory: str, *options: str) -> None:
    command = [sys.executable, __file__, "work", directory, *options]
    ended = subprocess.run(command, check=False)  # noqa: S603 - this very file
    print(f"  ended with {ended.returncode}", flush=True)


def everything() -> None:
    with TemporaryDirectory() as directory:
        print("the first life is killed between the charge and its record", flush=True)
        live(directory, "die")
        print("the second one does not reserve again, and asks the provider with the same key", flush=True)
        live(directory)
        print("the third one finds all of it done", flush=True)
        live(directory)
        print("charges:", Provider(Path(directory)).count())


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            everything()
        case ["work", directory, *options]:
            asyncio.run(work(Path(directory), dies=options == ["die"]))
        case _:
            sys.exit(__doc__)
