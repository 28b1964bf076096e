"""Files that were written in every format that was released are read for ever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from golden_program import Clerk, Grade, Judge, Office, Parcel, build

from perdure import (
    FileCheckpointStorage,
    MissingRunKwargsError,
    SqliteCheckpointStorage,
    WorkflowExecutor,
    WorkflowRunState,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure import Workflow
    from perdure.storage import StoreStorage

HERE = Path(__file__).parent
FORMATS = sorted(path for path in HERE.glob("format-*") if path.is_dir())
GOLDEN = [(path, kind) for path in FORMATS for kind in ("files", "runs.sqlite")]


@pytest.fixture(params=GOLDEN, ids=[f"{path.name}-{kind}" for path, kind in GOLDEN])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreStorage]:
    """A copy of golden files: reading may write beside them."""
    directory, kind = request.param
    source, copy = directory / kind, tmp_path / kind
    if source.is_dir():
        shutil.copytree(source, copy)
        storage: StoreStorage = FileCheckpointStorage(copy)
    else:
        shutil.copy(source, copy)
        storage = SqliteCheckpointStorage(copy)
    async with storage:
        yield storage


@pytest.fixture
def format_name(request: pytest.FixtureRequest) -> str:
    """Which format the storage is of."""
    directory, _ = request.node.callspec.params["storage"]
    return directory.name


async def resumed(storage: StoreStorage, run_id: str) -> Workflow:
    """The workflow, at the head of a run."""
    workflow = build(storage)
    await workflow.run(run_id=run_id)
    return workflow


async def test_every_checkpoint_can_be_looked_at(storage: StoreStorage, format_name: str) -> None:
    build(storage)
    checkpoints = await storage.list_checkpoints(workflow_name="golden")
    # Since the first format, what comes from outside is a commit of its own.
    assert len(checkpoints) == {"format-1": 33, "format-2": 34}[format_name]
    kinds = [(c.run_id, c.iteration_count) for c in checkpoints if c.run_id in {"entered", "half", "rewound"}]
    assert kinds[:4] == [("entered", 0), ("half", 0), ("half", 1), ("half", 2)]
    for checkpoint in checkpoints:
        fields = checkpoint.to_dict()
        assert fields["workflow_name"] == "golden"
        assert isinstance(fields["state"], dict)


async def test_a_run_that_had_only_been_entered_runs_as_a_new_one(storage: StoreStorage) -> None:
    workflow = build(storage)
    result = await workflow.run(run_id="entered")
    assert result.get_outputs() == ["begun entered", "ways near farfarther"]
    asked = [event.request_id for event in result.get_request_info_events()]
    assert asked == ["verdict", "about entered-1", "about entered-2"]


async def test_what_a_fan_in_had_gathered_is_still_there(storage: StoreStorage) -> None:
    result = await build(storage).run(run_id="half")
    assert result.get_outputs() == ["ways near farfarther"]


async def test_a_waiting_run_takes_its_answers(storage: StoreStorage) -> None:
    workflow = build(storage)
    with pytest.raises(MissingRunKwargsError, match=r"client_kwargs\.key"):
        await workflow.run(run_id="waiting", responses={"about waiting-2": "second"})
    result = await workflow.run(
        run_id="waiting", responses={"about waiting-2": "second"}, client_kwargs={"key": "again"}
    )
    assert result.get_outputs() == ["waiting-2 is first then second for waiting fine 1.10 2030-02-03"]
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    last = await workflow.run(responses={"verdict": {"accepted": False}})
    assert last.get_outputs() == ["near farfarther: False  ('waiting',)"]
    assert last.get_final_state() is WorkflowRunState.IDLE


async def test_a_fork_has_its_change(storage: StoreStorage) -> None:
    build(storage)
    (edited,) = [c for c in await storage.list_checkpoints() if c.state.get("label") == "forked"]
    assert edited.previous_checkpoint_id == "waiting@8"
    assert list(edited.pending_request_info_events) == ["verdict", "about waiting-2"]


async def test_a_finished_run_tells_its_outputs_again(storage: StoreStorage) -> None:
    result = await build(storage).run(run_id="finished")
    assert result.get_outputs() == [
        "begun finished",
        "ways near farfarther",
        "near farfarther: True good ('finished',)",
        "finished-2 is two for finished fine 1.10 2030-02-03",
        "finished-1 is two then one for finished fine 1.10 2030-02-03",
    ]
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_rewound_run_goes_on_from_where_it_was_put_back(storage: StoreStorage, format_name: str) -> None:
    workflow = build(storage)
    result = await workflow.run(run_id="rewound")
    assert result.get_outputs() == ["ways near farfarther"]
    (*_, last) = await storage.list_checkpoints(run_id="rewound")
    assert last.checkpoint_id == {"format-1": "rewound@9", "format-2": "rewound@11"}[format_name]


async def test_a_checkpoint_made_by_hand_is_resumed(storage: StoreStorage) -> None:
    workflow = build(storage)
    checkpoint = await storage.load("by-hand")
    assert checkpoint.metadata == {"author": "somebody"}
    assert checkpoint.messages["near"][0].data == Parcel("hand", Grade.POOR, ["near"])
    result = await workflow.run(checkpoint_id="by-hand")
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_executors_get_their_states_whole(storage: StoreStorage) -> None:
    workflow = await resumed(storage, "finished")
    office, desk = workflow.executors["office"], workflow.executors["desk"]
    assert isinstance(office, Office)
    assert isinstance(desk, WorkflowExecutor)
    clerk = desk.workflow.executors["clerk"]
    assert isinstance(clerk, Clerk)
    assert isinstance(workflow.executors["judge"], Judge)
    assert clerk.log == ["two", "one"]
    fresh = Office()
    assert fresh.memory == {}
    assert office.memory["labels"] == ["finished"]
    assert office.memory["large"] == [f"entry {number}" for number in range(600)]
    assert office.memory["raw"] == bytes(range(256)) * 16
    assert list(office.memory["recent"]) == ["finished"]
    assert office.memory["recent"].maxlen == 3
    assert office.memory["counted"]["i"] == 2
    assert list(office.memory["ordered"]) == ["b", "a"]
    assert office.memory[("odd", 1)] == {2, 3}
