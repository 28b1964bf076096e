"""Runs of every package that an earlier release left unfinished: they go on, and end as if nothing had happened."""

from __future__ import annotations

import functools
import itertools
import json
import lzma
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
import pytest
from golden_programs import SCENARIOS, nodes
from golden_programs.places import KINDS, open_place
from golden_programs.world import world
from tests.postgres_server import needs_postgres, shared_server

from perdure import CheckpointNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from golden_programs.world import Place, Scenario

HERE = Path(__file__).parent
GOLDEN = sorted(HERE.glob("packages-*"))
# A run is exported without the session store that its program may use.
EXPORTED = [each for each in SCENARIOS if each.runs and each not in nodes.SCENARIOS and "forked" not in each.name]


@functools.cache
def notes_of(directory: Path) -> Any:
    """Return what each scenario had done before it was interrupted, and how it ends undisturbed."""
    return json.loads((directory / "scenarios.json").read_text("utf-8"))


@functools.cache
def _template(dump: Path) -> str:
    """Load a dump into a database that others are copied from."""
    server = shared_server()
    dsn = server.fresh_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(lzma.decompress(dump.read_bytes()))
    return dsn.partition("?")[0].rpartition("/")[2]


def unpack(directory: Path, kind: str, target: Path) -> str:
    """Make a copy of a golden store; where it is."""
    match kind:
        case "file":
            with tarfile.open(directory / "files.tar.xz") as archive:
                archive.extractall(target, filter="data")
            return str(target / "files")
        case "sqlite":
            copy = target / "runs.sqlite"
            copy.write_bytes(lzma.decompress((directory / "runs.sqlite.xz").read_bytes()))
            return str(copy)
        case _:
            server, template = shared_server(), _template(directory / "postgres.sql.xz")
            name = server.fresh_schema()
            server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
            return server.dsn.replace("/postgres?", f"/{name}?")


Copies: TypeAlias = "Callable[[Path, str], str]"


def _copies(factory: pytest.TempPathFactory) -> Copies:
    @functools.cache
    def copy(directory: Path, kind: str) -> str:
        return unpack(directory, kind, factory.mktemp(kind))

    return copy


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """Give a copy of each golden store; each scenario has runs of its own in it."""
    return _copies(tmp_path_factory)


@pytest.fixture(scope="module")
def copies_to_export(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """Give a copy of each golden store to export runs from."""
    return _copies(tmp_path_factory)


def on_every_store(scenarios: list[Scenario]) -> pytest.MarkDecorator:
    """Run a test for each golden store and scenario."""
    cases = [
        pytest.param(
            *(directory, kind, scenario),
            id=f"{directory.name}-{kind}-{scenario.name}",
            marks=[needs_postgres] if kind == "postgres" else [],
        )
        for directory in GOLDEN
        for kind in KINDS
        for scenario in scenarios
        if scenario.name in notes_of(directory)["ends"]
    ]
    return pytest.mark.parametrize(("directory", "kind", "scenario"), cases)


async def signatures(place: Place, run: str) -> set[str]:
    """Return the signatures in all checkpoints of a run: those of the release that began it, and those made now."""
    found: set[str] = set()
    for number in itertools.count():
        try:
            checkpoint = await place.storage.load(f"{run}@{number}")
        except CheckpointNotFoundError:
            break
        found.add(checkpoint.graph_signature_hash)
    return found


async def end(place: Place, scenario: Scenario, begun: Any, wanted: Any) -> None:
    """Finish a scenario: it ends as undisturbed, and nothing that was done is done again."""
    world.effects.clear()
    assert await scenario.finish(place) == wanted["outcome"]
    assert sorted([*begun["effects"], *world.effects]) == wanted["effects"]
    for run in scenario.runs:
        assert len(await signatures(place, run)) == 1, "the graph has the signature that it had when the run began"


def test_every_golden_scenario_has_its_program() -> None:
    known = {each.name for each in SCENARIOS}
    assert all(known >= notes_of(directory)["ends"].keys() for directory in GOLDEN)


@on_every_store(SCENARIOS)
async def test_unfinished_runs_go_on_to_their_end(
    copies: Copies, directory: Path, kind: str, scenario: Scenario
) -> None:
    notes = notes_of(directory)
    begun, wanted = notes["begun"][kind][scenario.name], notes["ends"][scenario.name]
    async with open_place(kind, copies(directory, kind), begun["saved"]) as place:
        await end(place, scenario, begun, wanted)


@on_every_store(EXPORTED)
async def test_exported_runs_go_on_elsewhere(
    copies_to_export: Copies, directory: Path, kind: str, scenario: Scenario, tmp_path: Path
) -> None:
    notes = notes_of(directory)
    begun, wanted = notes["begun"][kind][scenario.name], notes["ends"][scenario.name]
    async with open_place(kind, copies_to_export(directory, kind)) as source:
        for run in scenario.runs:
            await source.storage.export_run(run, tmp_path / run)
        async with open_place("memory", "") as place:
            for run in scenario.runs:
                assert await place.storage.import_run(tmp_path / run) == run
            await end(place, scenario, begun, wanted)
