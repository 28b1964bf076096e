"""A workflow whose work leaves traces outside of it, and which can be stopped half-way by a file that is missing."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - handlers' annotations are read at run time
from typing import TYPE_CHECKING

from tests.golden import waiting_program

from perdure import Executor, WorkflowBuilder, WorkflowContext, handler
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure import CheckpointStorage, Workflow
    from perdure.storage import StoreStorage


class Office(Executor):
    """Hands the errand to both runners."""

    @handler
    async def hand_out(self, errand: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(errand)


class Runner(Executor):
    """Notes each of its deeds in a file, as something that must happen once."""

    def __init__(self, name: str, deeds: Path, *, needs: Path | None = None) -> None:
        super().__init__(id=name)
        self._deeds = deeds
        self._needs = needs

    @handler
    async def run(self, errand: str, ctx: WorkflowContext[None, str]) -> None:
        key = await ctx.step("go", self._note, errand)
        if self._needs is not None and not self._needs.exists():
            raise OSError("the way is closed")
        await ctx.yield_output(f"{self.id} {errand} {key}")

    def _note(self, errand: str) -> str:
        with self._deeds.open("a", encoding="utf-8") as deeds:
            deeds.write(f"{self.id} {errand}\n")
        return "gone"


class Errands:
    """The workflow in a directory: what was done, and whether the way is open."""

    def __init__(self, directory: Path) -> None:
        self._deeds = directory / "deeds"
        self._opening = directory / "opening"

    def build(self, storage: CheckpointStorage | str | None = None) -> Workflow:
        office = Office(id="office")
        left = Runner("left", self._deeds)
        right = Runner("right", self._deeds, needs=self._opening)
        builder = WorkflowBuilder(name="errands", start_executor=office, checkpoint_storage=storage)
        return builder.add_fan_out_edges(office, [left, right]).build()

    def open_the_way(self) -> None:
        self._opening.touch()

    def deeds(self) -> list[str]:
        return sorted(self._deeds.read_text("utf-8").splitlines())


async def wait_and_ask(storage: StoreStorage) -> None:
    """A run with a timer, a request, and the answer to it in the inbox."""
    await waiting_program.build(storage, ManualClock()).run("run", run_id="run", wait_for_timers=False)
    await storage.respond("run", {"consent to run": {"given": True}}, by="ada")
    await storage.send("run", "more", message_id="more")
