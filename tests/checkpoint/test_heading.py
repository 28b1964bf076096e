"""The header of a checkpoint: a text that is made in one go, and is JSON whatever the names in it are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.checkpoint import Author
from perdure.checkpoint.manifest import Heading
from perdure.kernel import Request, Snapshot
from perdure.records import NewRun

ODD = ["100% done", "%b%d%s%%", 'say "hi"\\', "line\nfeed", "Ünïcode ☃", "{}", ""]


def header(name: str, snapshot: Snapshot, **more: Any) -> dict[str, Any]:
    """What is read of a header in which everything has this name."""
    author = Author(NewRun(name, name, name, name, name, None), name, 7)
    said: dict[str, Any] = {
        "checkpoint_id": name,
        "previous_id": None,
        "timestamp": name,
        "kind": name,
        "trace": None,
        **more,
    }
    return json.loads(Heading(author).text(snapshot, **said))


@pytest.mark.parametrize("name", ODD)
def test_names_come_back_as_they_are(name: str) -> None:
    read = header(name, Snapshot(turn=2, iteration=3, since_input=1))
    names = ("workflow_name", "checkpoint_id", "run_id", "timestamp", "graph_signature_hash", "kind")
    assert [read[each] for each in names] == [name] * len(names)
    assert read["run"] == {"created_at": name, "nonce": name, "input_digest": name, "parent_checkpoint_id": None}
    assert (read["turn"], read["iteration_count"], read["since_input"]) == (2, 3, 1)
    assert read["previous_checkpoint_id"] is None
    assert read["definition_version"] == 7
    assert "trace" not in read


@pytest.mark.parametrize("name", ODD)
def test_what_only_some_have_is_said_as_well(name: str) -> None:
    request = Request(name, name, data=None, request_type=str, response_type=int)
    snapshot = Snapshot(requests={name: request}, withheld_kwargs=(name, "token"))
    read = header(name, snapshot, previous_id=name, trace=name)
    assert read["previous_checkpoint_id"] == name
    assert read["trace"] == name
    assert read["withheld_kwargs"] == [name, "token"]
    assert read["pending_request_info_events"][name]["source_executor_id"] == name
